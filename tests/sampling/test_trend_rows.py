"""Trends as JSON and as table rows, with arbitrary names."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shared.sampling.trend_rows import Trend, as_json, keys, trend_row
from shared.trends.store.trends import trend_of
from tests.builders import trend_from_json

names = st.text(st.characters(codec="utf-8"), max_size=30)


@given(
    st.builds(
        Trend,
        date=st.dates().map(str),
        event=names,
        kind=st.sampled_from(["event", "request"]),
        dimensions=st.dictionaries(names, names, max_size=2),
        records=st.integers(0, 2**40),
        raw_sum=st.none() | st.floats(-1e9, 1e9),
        sampling_rate=st.none() | st.floats(0.1, 100),
        warnings=st.lists(names, max_size=2).map(tuple),
        evidence=st.dictionaries(names, st.none() | st.floats(-1, 1) | names, max_size=2),
    )
)
def test_a_trend_is_unchanged_after_a_round_trip(trend: Trend) -> None:
    assert trend_from_json(as_json(trend)) == trend
    assert trend_of(trend_row(trend)) == trend
    assert "\n" not in as_json(trend)


def test_a_table_row_has_no_null_values_and_valid_keys() -> None:
    row: dict[str, Any] = trend_row(Trend("2017-05-15", "POST /orders?x#1\n", "request"))
    assert None not in row.values()
    assert not set(row["PartitionKey"]) & set("/\\#?\n")
    assert row["RowKey"] == "2017-05-15"


def test_different_series_have_different_keys() -> None:
    long = "x" * 5_000
    trends = [
        Trend("2017-05-15", "a/b", "event"),
        Trend("2017-05-15", "a!002fb", "event"),
        Trend("2017-05-15", "a/b", "request"),
        Trend("2017-05-15", "a/b", "event", "Amount"),
        Trend("2017-05-15", "a/b", "event", dimensions={"tenant": "t"}),
        Trend("2017-05-15", f"{long}1", "event"),
        Trend("2017-05-15", f"{long}2", "event"),
    ]
    partition_keys = {keys(trend)["PartitionKey"] for trend in trends}
    assert len(partition_keys) == len(trends)
    assert max(len(key) for key in partition_keys) <= 512


def test_infinity_becomes_null_in_json() -> None:
    trend = Trend("2017-05-15", "a", "event", evidence={"score": math.inf})
    assert trend_from_json(as_json(trend)).evidence == {"score": None}
