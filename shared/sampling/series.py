"""The figures of an export: its series, the sums of their dates, and what was read of each date.

The number of series is limited: those without a place are added up as ``(other)``. Without a limit,
an event whose names contain numbers would fill the results and their tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import starmap
from operator import itemgetter
from typing import Any, NamedTuple

from shared.sampling.baseline import MEMORY_DAYS
from shared.sampling.estimates import Sums, sums_of

OTHER = "(other)"
UNDATED = "undated"
"""The blob date of files whose path names no date. Every run reads them."""
UNKNOWN_AGE = -1
SERIES_MAX = 500
"""The most series of a kind, beside those named ``(other)``."""
NAME_LENGTH_MAX = 1024
"""The most characters of a name. Azure cuts names of requests at this length."""
UNIX_START = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Shape:
    """The options that determine what a run computes. Results of different shapes cannot be added.
    Without a ``measurement`` each record counts 1. Dates are those of the time zone.
    """

    measurement: str = ""
    dimensions: tuple[str, ...] = ()
    time_zone: str = "UTC"


@dataclass(frozen=True, slots=True, order=True)
class Series:
    """An event, and its values for the chosen dimensions."""

    kind: str
    event: str
    dims: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.event or f"({self.kind} without a name)", *self.dims))

    @property
    def is_combined(self) -> bool:
        """Whether it adds up series that have no place of their own."""
        return OTHER in (self.event, *self.dims)


class HourSums(NamedTuple):
    """The adjusted count of the records of one hour that have the same age.

    The hour begins ``hour`` hours after 1970 in UTC. The age is the number of days from the date of
    the records to that of their files in UTC, up to a limit of the reader. It is None if it is
    unknown, as in results of earlier versions.
    """

    hour: int
    records: int
    weight_sum: float
    age: int | None = None


class DaySums(NamedTuple):
    """The sums of one series on one event date, and those of its hours and ages with records, in
    order.
    """

    sums: Sums
    hours: Sequence[HourSums] = ()


Totals = Mapping[tuple[str, Series], DaySums]
"""Sums by event date and series, in this order."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BlobDate:
    """What was read of a blob date. ``records`` counts records by event date, with copies, and
    ``files`` counts files by hour. Manifests of older versions do not have ``files``.
    """

    size_bytes: int = 0
    records: Mapping[str, int] = field(default_factory=dict)
    quarantined: int = 0
    files: Mapping[str, int] = field(default_factory=dict)
    bad_values: int = 0
    """Records without their value of the measurement, because it cannot be read."""
    damaged: int = 0
    """Files that could only be read in part."""

    def lacks_files_of(self, earlier: BlobDate) -> bool:
        """Whether files of any hour are gone. Without counts of files, fewer bytes are a sign."""
        if not earlier.files:
            return self.size_bytes < earlier.size_bytes
        return any(self.files.get(hour, 0) < count for hour, count in earlier.files.items())


def rows_of(totals: Totals) -> Iterator[Row]:
    """Yields a row for each date and series."""
    for (day, series), (sums, hours) in totals.items():
        names = {"date": day, "kind": series.kind, "event": series.event, "dims": series.dims}
        yield {**names, **asdict(sums), "hours": hours}


def totals_of(rows: Iterable[Row]) -> Totals:
    """Adds up the rows of each date and series in the given order."""
    days: dict[tuple[str, Series], tuple[Sums, dict[tuple[int, int], HourSums]]] = {}
    for row in rows:
        key = row["date"], Series(row["kind"], row["event"], tuple(row["dims"]))
        sums, hours = days.get(key, (None, {}))
        days[key] = (sums.merge(sums_of(row)) if sums else sums_of(row)), hours
        for hour, records, weight_sum, age in starmap(HourSums, row["hours"]):
            at = hour, UNKNOWN_AGE if age is None else age
            _, before, weight_before, _ = hours.get(at, (hour, 0, 0.0, age))
            hours[at] = HourSums(hour, before + records, weight_before + weight_sum, age)
    return {
        key: DaySums(sums, [each for _, each in sorted(hours.items())])
        for key, (sums, hours) in sorted(days.items(), key=itemgetter(0))
    }


def hours_until(time: datetime) -> int:
    """Returns the number of whole hours from 1970 to the time, in UTC."""
    return (time - UNIX_START) // timedelta(hours=1)


def limited(
    old: Totals, new: Totals, last: str, kept_events: Collection[str]
) -> tuple[Totals, Counter[str]]:
    """Returns the new totals with few enough series, and how many were added up, by kind.

    1. A series that was published in the ten weeks before the date ``last`` keeps its place. On a
       date for which a series was published, it stays, whether or not it still has a place.
    2. The series with the most records on all new dates get the free places.
    3. Other series are added up: those of an event that has a place, or is one of ``kept_events``,
       for this event, and all others for the event ``(other)``.
    """
    since = str(date.fromisoformat(last) - timedelta(days=MEMORY_DAYS))
    places = {series for day, series in old if day >= since and not series.is_combined}
    taken = Counter(series.kind for series in places)
    records = Counter[Series]()
    for (_, series), day in new.items():
        records[series] += day.sums.records
    for series in sorted(records.keys() - places, key=lambda s: (-records[s], s)):
        is_short = max(map(len, (series.event, *series.dims))) <= NAME_LENGTH_MAX
        if is_short and taken[series.kind] < SERIES_MAX:
            places.add(series)
            taken[series.kind] += 1
    names = {(series.kind, series.event) for series in places}
    combined = set[Series]()

    def placed(row: Row) -> dict[str, Any]:
        series = Series(row["kind"], row["event"], tuple(row["dims"]))
        if series in places or (row["date"], series) in old:
            return dict(row)
        is_named = (series.kind, series.event) in names or series.event in kept_events
        event = series.event if is_named else OTHER
        target = Series(series.kind, event, (OTHER,) * len(series.dims))
        combined.update({series} - {target})
        return {**row, "event": event, "dims": target.dims}

    totals = totals_of(map(placed, rows_of(new)))
    return totals, Counter(series.kind for series in combined)


def describe_combined(kind: str, count: int) -> str:
    return (
        f"{count} series of the kind {kind} are added up as (other), because a kind has at most"
        f" {SERIES_MAX} series and a name at most {NAME_LENGTH_MAX} characters; --event NAME keeps"
        " an event"
    )
