"""Finds hours in which collection stopped, and days on which it ended at a daily cap.

An outage of an export, missing files and a daily cap affect all tables, and a control series in
these tables as well. So this module looks at the number of records of all tables together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property
from itertools import groupby
from statistics import fmean, median, pstdev
from zoneinfo import ZoneInfo

from shared.sampling.baseline import DAYS_MIN, MEMORY_DAYS

STOPPED_RECORDS_MIN = 10
"""Each earlier day has at least this many records in hours whose silence proves that collection
stopped, after scaling to the level of the other hours of the day. With fewer, silence may be
chance.
"""
STEADY_MIN = 8.0
"""The share of these hours in their days is as steady as that of at least this many independent
records. Otherwise records come in bursts, and silence may be chance.
"""
ACCEPT_AFTER_STOPS = 28
"""When collection has stopped on more of the days that are remembered, this counts as usual."""
CAP_DAYS = 28
CAP_RECORDS_MIN = 50
FULL = 0.95
"""A day is full if it has at least this share of the records of the fullest day."""
FULL_DAYS_MIN = 0.7
"""The share of days that are full if there is a daily cap."""
STEADIER = 3.0
"""Under a cap, totals differ less than the records of half a day, by at least this factor. Without
one, they differ by about as much.
"""
SPREAD_MIN = 0.01
SILENT_HOURS_MIN = 2

Records = Mapping[int, Mapping[int | None, int]]
"""Records of all tables by UTC hour since 1970 and by age. An age is the number of days from the
date of a record to that of its file; None if it is unknown.
"""


def clock(day: date, zone: ZoneInfo) -> dict[int, time]:
    """The UTC hours that begin on a local date, with their local times."""
    first, end = (
        -(-int(datetime.combine(midnight, time(), zone).timestamp()) // 3600)
        for midnight in (day, day + timedelta(days=1))
    )
    return {hour: _local(hour, zone).time() for hour in range(first, end)}


def _local(hour: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(hour * 3600, UTC).astimezone(zone)


def arrived(found: Mapping[int | None, float], hour: int, last: int, age: int | None) -> float:
    """The part of ``found``, which is by age, that had arrived when the files of ``age`` days after
    the UTC date ``last`` were read; all of it if ``age`` is None.
    """
    if age is None:
        return sum(found.values())
    days = last - hour // 24 + age
    return sum(n for old, n in found.items() if old is not None and old <= days)


@dataclass(frozen=True)
class Collected:
    """When telemetry was collected. ``days`` are complete local dates whose hours are known."""

    records: Records
    days: Sequence[date]
    zone: ZoneInfo = field(default_factory=lambda: ZoneInfo("UTC"))
    ages: Mapping[date, int] = field(default_factory=dict)
    """The ages of days that are so young that more of their records may arrive."""

    @cached_property
    def stops(self) -> Mapping[date, Sequence[range]]:
        """The UTC hours without any record in which all earlier days have some."""
        stops: dict[date, Sequence[range]] = {}
        usual = {day: self._by_time(day, None) for day in self.days}
        remembered = timedelta(days=MEMORY_DAYS)
        for index, day in enumerate(self.days):
            earlier = [d for d in self.days[:index] if day - d <= remembered]
            before = [d for d in earlier if d not in stops]
            if len(earlier) - len(before) > ACCEPT_AFTER_STOPS:
                before = earlier
            if day in self.caps or len(before) < DAYS_MIN or all(usual[day].values()):
                continue
            age = self.ages.get(day)
            compared = [usual[d] if age is None else self._by_time(d, age) for d in before]
            if found := list(self._stops(day, compared)):
                stops[day] = found
        return stops

    def _by_time(self, day: date, age: int | None) -> dict[time, float]:
        """The number of records by local time, as far as they had arrived at this age."""
        hours = clock(day, self.zone)
        last = max(hours) // 24
        found: dict[time, float] = {}
        for hour, at in hours.items():  # an hour may occur twice
            here = arrived(self.records.get(hour, {}), hour, last, age)
            found[at] = found.get(at, 0.0) + here
        return found

    def _stops(self, day: date, before: Sequence[Mapping[time, float]]) -> Iterable[range]:
        times = clock(day, self.zone)
        found = {hour: sum(self.records.get(hour, {}).values()) for hour in times}
        silent = [hour for hour in times if not found[hour]]
        for _, each in groupby(enumerate(silent), lambda each: each[1] - each[0]):
            run = [hour for _, hour in each]
            hours = [hour for hour in run if all(d.get(times[hour], 1) for d in before)]
            others = {times[hour] for hour in times if hour not in run}
            inside = [sum(d.get(times[hour], 0) for hour in hours) for d in before]
            outside = [sum(n for at, n in d.items() if at in others) for d in before]
            usual = median(outside)
            level = min(sum(found.values()) / usual, 1.0) if usual else 1.0
            if not hours or level * min(inside) < STOPPED_RECORDS_MIN:
                continue
            shares = [here / rest for here, rest in zip(inside, outside, strict=True) if rest]
            if not usual or level >= STEADY_MIN * _spread(shares) ** 2:
                yield range(hours[0], hours[-1] + 1)

    @cached_property
    def caps(self) -> Mapping[date, range]:
        """The UTC hours from the one in which a daily cap was reached to the next record, by the
        local date on which it was reached.

        Under a cap, the number of records is constant from one reset to the next, although the
        numbers of half a day differ, and silence follows. The hour of the reset is not known, so
        all hours are tried.
        """
        if not self.days:
            return {}
        first, end = min(clock(self.days[0], self.zone)), max(clock(self.days[-1], self.zone)) + 1
        counts = [sum(self.records.get(hour, {}).values()) for hour in range(first, end)]
        if counts.count(0) < SILENT_HOURS_MIN * FULL_DAYS_MIN * len(counts) / 24:
            return {}
        found = max((_capped(counts, reset) for reset in range(24)), key=len)
        return {
            _local(first + hours.start, self.zone).date(): range(
                first + hours.start, first + hours.stop
            )
            for hours in found
        }

    @property
    def unknown_hours(self) -> set[int]:
        stops = [hours for of_day in self.stops.values() for hours in of_day]
        return {hour for hours in (*stops, *self.caps.values()) for hour in hours}

    def named(self, hours: Iterable[range]) -> str:
        """Such as "from 13:00 to 24:00 (UTC)"."""
        spans = []
        for each in hours:
            first, end = (f"{_local(h, self.zone):%H:%M}" for h in (each.start, each.stop))
            spans.append(f"from {first} to {'24:00' if end == '00:00' else end}")
        return f"{' and '.join(spans)} ({self.zone.key})"


def _capped(counts: Sequence[int], reset: int) -> Sequence[range]:
    """The hours from the last record before a reset to the next record, for each full day."""
    starts = range(reset, len(counts), 24)
    totals = [sum(counts[start : start + 24]) for start in starts[-CAP_DAYS:]]
    if totals[-1] < FULL * max(totals):  # the last day may not be over
        starts = starts[:-1]
    full: set[int] = set()
    for end in range(len(starts), DAYS_MIN - 1, -7):
        full |= _full(counts, starts[max(end - CAP_DAYS, 0) : end])
    return [_silence(counts, start) for start in sorted(full)]


def _full(counts: Sequence[int], starts: Sequence[int]) -> set[int]:
    """The starts of days that reached a cap; none if there seems to be no cap."""
    totals = {start: sum(counts[start : start + 24]) for start in starts}
    full = [start for start in starts if totals[start] >= FULL * max(totals.values())]
    if max(totals.values()) < CAP_RECORDS_MIN or len(full) < FULL_DAYS_MIN * len(starts):
        return set()
    silences = [_silence(counts, start) for start in full]
    if median([len(hours) for hours in silences]) <= SILENT_HOURS_MIN:
        return set()
    half = round(median([_half(counts, start, totals[start]) for start in full]))
    halves = [sum(counts[start : start + half + 1]) for start in full]
    steady = STEADIER * _spread([totals[start] for start in full])
    return set(full) if _spread(halves) >= max(steady, SPREAD_MIN) else set()


def _silence(counts: Sequence[int], start: int) -> range:
    """The hours from the last one with records to the next one with records."""
    last = max(hour for hour in range(len(counts))[start : start + 24] if counts[hour])
    following = (hour for hour in range(last + 1, len(counts)) if counts[hour])
    return range(last, next(following, len(counts)))


def _half(counts: Sequence[int], start: int, total: int) -> int:
    found, hour = 0, -1
    while 2 * found < total:
        hour += 1
        found += counts[start + hour]
    return hour


def _spread(figures: Sequence[float]) -> float:
    return pstdev(figures) / fmean(figures)
