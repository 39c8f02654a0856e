"""Reads and writes the results folder of a version: sums for later versions, and trends for
readers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from operator import itemgetter
from typing import Any

from shared.sampling.estimates import sums_of
from shared.sampling.trend_rows import Trend, as_json
from spark_jobs.model import HourSums, Series, Totals
from spark_jobs.publish.stores import Store

SUMS, TRENDS, REPORT = "sums.jsonl", "trends.jsonl", "report.json"


def read(store: Store, results: str) -> Totals:
    """Returns the totals of an earlier version; no totals if the name is empty."""
    if not results:
        return Totals()
    lines = store.read(f"results/{results}/{SUMS}").splitlines()
    rows = {_key(row): row for row in map(json.loads, lines)}
    return Totals(
        {key: sums_of(row) for key, row in rows.items()},
        {key: [HourSums(*hour) for hour in row["hours"]] for key, row in rows.items()},
    )


def merged(old: Totals, changed: Collection[str], new: Totals) -> Totals:
    """Returns the new totals for the changed event dates, and the old totals for all other
    dates."""

    def with_changes(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> dict[Any, Any]:
        kept = {key: value for key, value in one.items() if key[0] not in changed}
        replaced = {key: value for key, value in other.items() if key[0] in changed}
        return dict(sorted({**kept, **replaced}.items(), key=itemgetter(0)))

    return Totals(with_changes(old.days, new.days), with_changes(old.hours, new.hours))


def without_more_records(old: Totals, new: Totals, dates: Collection[str]) -> set[str]:
    """Returns the dates for which the new totals have no more records than the old ones."""

    def records(totals: Totals, date: str) -> int:
        return sum(sums.records for (day, _), sums in totals.days.items() if day == date)

    return {date for date in dates if records(new, date) <= records(old, date)}


def write(
    store: Store,
    results: str,
    totals: Totals,
    trends: Sequence[Trend],
    report: Mapping[str, Any],
) -> None:
    sums = [
        json.dumps({**_names(key), **asdict(day), "hours": totals.hours.get(key, ())})
        for key, day in totals.days.items()
    ]
    store.write(f"results/{results}/{SUMS}", _lines(sums))
    store.write(f"results/{results}/{TRENDS}", _lines(map(as_json, trends)))
    store.write(f"results/{results}/{REPORT}", json.dumps(report, indent=1).encode())


def _names(key: tuple[str, Series]) -> dict[str, Any]:
    day, series = key
    return {"date": day, "kind": series.kind, "event": series.event, "dims": list(series.dims)}


def _key(row: Mapping[str, Any]) -> tuple[str, Series]:
    return row["date"], Series(row["kind"], row["event"], tuple(row["dims"]))


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
