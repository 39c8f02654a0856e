"""The number of series and of their days is limited, whatever names events have."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path

import pytest

from shared.sampling import series
from shared.sampling.baseline import MEMORY_DAYS
from shared.sampling.estimates import Sums
from shared.sampling.series import (
    NAME_LENGTH_MAX,
    OTHER,
    BlobDate,
    DaySums,
    HourSums,
    Series,
    Shape,
    Totals,
    limited,
)
from shared.sampling.trends import MIXED, TrendInputs, trends_of
from spark_jobs.job import run_job
from spark_jobs.options import Options
from spark_jobs.publish.results import Operations, merged
from spark_jobs.publish.stores import LocalStore
from tests.spark_jobs.test_publishing import DAY, Counting, Sized

FIRST = date(2026, 1, 1)
LONG = "x" * (NAME_LENGTH_MAX + 1)


def on(number: int) -> str:
    return str(FIRST + timedelta(days=number))


def sums(records: int) -> DaySums:
    return DaySums(Sums(records, weight_sum=2 * records), [HourSums(7, records, 2 * records)])


def totals_on(day: int, records: dict[str | tuple[str, str], int]) -> Totals:
    """Returns totals by the name of an event, or by event and dimension."""
    found = {}
    for name, count in records.items():
        event, *dims = (name,) if isinstance(name, str) else name
        found[on(day), Series("event", event, tuple(dims))] = sums(count)
    return found


def named(totals: Totals, day: int) -> dict[str, int]:
    """Returns the records of each series of a date, with its names in one text."""
    return {
        "/".join([series.event, *series.dims]): of.sums.records
        for (at, series), of in totals.items()
        if at == on(day)
    }


@pytest.fixture(autouse=True)
def three_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "SERIES_MAX", 3)


def nights(found: Iterable[Totals]) -> Totals:
    """Publishes one night after the other."""
    totals: Totals = {}
    for new in found:
        placed, _ = limited(totals, new, max(day for day, _ in {**totals, **new}), ())
        totals = merged(totals, placed, {day for day, _ in new})
    return totals


def test_the_largest_series_get_places_and_the_others_are_added_up() -> None:
    new = totals_on(0, {"a": 9, "b": 8, "c": 7, "d": 2, "e": 1, LONG: 50})
    placed, combined = limited({}, new, on(0), ())
    assert named(placed, 0) == {"a": 9, "b": 8, "c": 7, OTHER: 53}
    assert placed[on(0), Series("event", OTHER)] == DaySums(
        Sums(53, weight_sum=106), [HourSums(7, 53, 106)]
    )
    assert combined == {"event": 3}


def test_a_published_series_keeps_its_place_until_it_has_ended() -> None:
    ended = MEMORY_DAYS + 1
    totals = nights(
        [
            totals_on(0, {"a": 1, "b": 1, "c": 1}),
            totals_on(1, {"c": 1, "new": 900}),
            totals_on(MEMORY_DAYS, {"a": 1, "new": 900}),
            totals_on(ended, {"a": 1, "b": 1, "c": 1, "new": 900}),
            totals_on(ended + 1, {"a": 1, "b": 1, "c": 1, "new": 1}),
            totals_on(0, {"a": 2, "b": 2, "c": 2, "d": 2}),  # late records of the first date
        ]
    )
    assert named(totals, 0) == {"a": 2, "b": 2, "c": 2, OTHER: 2}
    assert named(totals, 1) == {"c": 1, OTHER: 900}
    assert named(totals, MEMORY_DAYS) == {"a": 1, OTHER: 900}
    assert named(totals, ended) == {"a": 1, "c": 1, "new": 900, OTHER: 1}
    assert named(totals, ended + 1) == {"a": 1, "c": 1, "new": 1, OTHER: 1}


def test_values_of_a_dimension_without_a_place_are_added_up_for_their_event() -> None:
    new = totals_on(0, {("a", "1"): 9, ("a", "2"): 8, ("a", "3"): 7, ("a", "4"): 6, ("b", "1"): 5})
    placed, combined = limited({}, new, on(0), ())
    assert named(placed, 0) == {"a/1": 9, "a/2": 8, "a/3": 7, "a/(other)": 6, "(other)/(other)": 5}
    assert combined == {"event": 2}


def test_events_that_were_asked_for_are_never_added_up_with_others() -> None:
    new = totals_on(0, {"a": 9, "b": 8, "c": 7, "wanted": 1, "d": 1})
    placed, combined = limited({}, new, on(0), {"wanted"})
    assert named(placed, 0) == {"a": 9, "b": 8, "c": 7, "wanted": 1, OTHER: 1}
    assert combined == {"event": 1}


class Names(Counting):
    """An engine that finds five events in each file."""

    def total(self, *_: object) -> tuple[Totals, Operations]:
        return {(DAY, Series("event", name)): sums(9) for name in "abcde"}, {}


def test_a_run_says_how_many_series_it_added_up(tmp_path: Path) -> None:
    request = Options(Shape(), "run", date(2017, 7, 1), events=("e",))
    done = run_job(Sized(sizes={DAY: 3}), LocalStore(tmp_path), Names(), request)
    assert [trend.event for trend in done.trends] == [OTHER, "a", "b", "c", "e"]
    (note,) = done.notes
    assert note.startswith("1 series of the kind event are added up as (other)")


def test_a_series_ends_after_ten_weeks_without_records() -> None:
    series, last = Series("event", "a"), 3 * MEMORY_DAYS
    days = {(on(day), series): sums(9) for day in (0, 2 * MEMORY_DAYS)}
    dates = {on(day): BlobDate() for day in range(last + 1)}
    trends = trends_of(days, TrendInputs(Shape(), dates, FIRST + timedelta(days=last + 1)))
    silent = {*range(MEMORY_DAYS + 1), *range(2 * MEMORY_DAYS, last + 1)}
    assert [trend.date for trend in trends] == [on(day) for day in sorted(silent)]


def test_no_loss_of_events_without_a_place_is_reported() -> None:
    """An event that gets a place leaves them, and the rest is then less."""
    days = {
        (on(day), Series("event", name)): sums(9000 if day < 30 else 9)
        for day in range(31)
        for name in ("a", OTHER)
    }
    dates = {on(day): BlobDate() for day in range(31)}
    trends = trends_of(days, TrendInputs(Shape(), dates, FIRST + timedelta(days=31)))
    last = {trend.event: (trend.verdict, trend.reason) for trend in trends if trend.date == on(30)}
    assert last["a"][0] == "events lost"
    assert last[OTHER] == ("uncertain", MIXED)
