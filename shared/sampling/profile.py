"""The usual load of each hour of the week, from adjusted counts by hour: robust, and gaps told.

168 items-per-minute values, Monday 0:00 first, in the hours of a time zone: people get up by local
time, so a profile in UTC would be an hour off for half of the year.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from statistics import mean, median
from typing import Any
from zoneinfo import ZoneInfo

HOURS = 168
WEEKS = 8
WEEKS_MIN = 2
HOURS_MIN = HOURS // 2
RECORDS_MIN = 10
"""Of fewer kept records the median would be too low: sampled counts of little are mostly zero."""
UNEVEN = 0.5
QUARTER = timedelta(minutes=15)
QUARTERS_MIN = 2
LIKE_DAYS = (range(0, 5), range(5, 7))

ROW_KEY = "profile"
DIGITS = 6

Cell = tuple[float, "HourMethod"]


class HourMethod(StrEnum):
    """How an hour's value was found."""

    MEDIAN = "median over weeks"
    MEAN = "mean over weeks: too few records for a median"
    UNEVEN = "median over weeks that differ by half and more"
    LIKE_DAYS = "too few weeks: same hour of like days"
    ANY_DAY = "too few weeks: same hour of any day"
    BETWEEN = "too few weeks: between the hours around"
    UNKNOWN = "no week is known: missing"


CERTAIN = frozenset({HourMethod.MEDIAN, HourMethod.MEAN})


@dataclass(frozen=True, slots=True)
class HourCount:
    """The adjusted count of one hour, which starts at ``start``, an aware full hour in UTC.

    ``items`` is None where the hour is not known, such as one whose file is missing; an hour in
    which nothing happened has 0. ``records`` is how many were kept.
    """

    start: datetime
    items: float | None
    records: int


@dataclass(frozen=True, slots=True)
class UsualWeek:
    """Items per minute for each hour of the week, Monday 0:00 first, and how each was found.

    An hour that no week supports is None: it is missing, not zero.
    """

    items_per_minute: tuple[float | None, ...]
    time_zone: str
    methods: tuple[HourMethod, ...]
    weeks: tuple[int, ...]
    """How many weeks support each hour."""

    @property
    def uncertain(self) -> Mapping[int, HourMethod]:
        """The hours of the week that are missing, were filled in or differ much between weeks."""
        return {hour: how for hour, how in enumerate(self.methods) if how not in CERTAIN}


@dataclass(frozen=True, slots=True)
class NoProfile:
    """There is no profile, and why."""

    time_zone: str
    reason: str


def week_profile(
    counts: Iterable[HourCount], until: datetime, time_zone: str = "UTC", weeks: int = WEEKS
) -> UsualWeek | NoProfile:
    """The profile of the weeks before ``until``; absent where half of the hours are not known.

    Raises ZoneInfoNotFoundError for a time zone that this machine does not know.
    """
    zone = ZoneInfo(time_zone)
    since = (until.astimezone(zone) - timedelta(weeks=weeks)).astimezone(UTC)  # by the local clock
    recent = [count for count in counts if since <= count.start < until]
    samples = _samples(recent, zone)
    supported = tuple([len({found.day for found in samples.get(h, ())}) for h in range(HOURS)])
    known = {hour: _cell(found) for hour, found in samples.items() if supported[hour] >= WEEKS_MIN}
    if len(known) < HOURS_MIN:
        return NoProfile(
            time_zone,
            f"{len(known)} of the week's {HOURS} hours are known from {WEEKS_MIN} weeks or more,"
            f" and a profile needs {HOURS_MIN}",
        )
    cells = [
        (known.get(hour) or _filled(known, hour)) if supported[hour] else (None, HourMethod.UNKNOWN)
        for hour in range(HOURS)
    ]
    values, how = zip(*cells, strict=True)
    return UsualWeek(values, time_zone, how, supported)


@dataclass(slots=True)
class _LocalHour:
    day: date
    items: float = 0
    records: float = 0
    quarters: int = 0

    @property
    def items_per_minute(self) -> float:
        return self.items / (self.quarters * 15)


def _samples(counts: Sequence[HourCount], zone: ZoneInfo) -> dict[int, list[_LocalHour]]:
    """By hour of the week. Quarters of hours: some zones are half or a quarter of one off."""
    local_hours: dict[tuple[date, int, int], _LocalHour] = {}
    for count in counts:
        if count.items is None:
            continue
        for quarter in range(4):
            at = (count.start.astimezone(UTC) + quarter * QUARTER).astimezone(zone)
            local_hour = local_hours.setdefault(
                (at.date(), at.hour, at.fold), _LocalHour(at.date())
            )
            local_hour.items += count.items / 4
            local_hour.records += count.records / 4
            local_hour.quarters += 1
    samples: dict[int, list[_LocalHour]] = {}
    for (day, hour, _), local_hour in local_hours.items():
        if local_hour.quarters >= QUARTERS_MIN:
            samples.setdefault(day.weekday() * 24 + hour, []).append(local_hour)
    return samples


def _cell(found: Sequence[_LocalHour]) -> Cell:
    rates = [hour.items_per_minute for hour in found]
    if mean([hour.records for hour in found]) < RECORDS_MIN:
        return mean(rates), HourMethod.MEAN
    middle = median(rates)
    deviation = median([abs(rate - middle) for rate in rates])
    return middle, HourMethod.UNEVEN if deviation > UNEVEN * middle else HourMethod.MEDIAN


def _filled(known: Mapping[int, Cell], hour: int) -> Cell:
    """Where one week is too few: from the same hour of days like this one, else of any day, else
    from the hours around."""
    weekday, hour_of_day = divmod(hour, 24)
    like = next(days for days in LIKE_DAYS if weekday in days)
    for how, days in ((HourMethod.LIKE_DAYS, like), (HourMethod.ANY_DAY, range(7))):
        same = [known[day * 24 + hour_of_day][0] for day in days if day * 24 + hour_of_day in known]
        if same:
            return median(same), how
    return _between(known, hour), HourMethod.BETWEEN


def _between(known: Mapping[int, Cell], hour: int) -> float:
    """On the line between the nearest known hours before and after, round the week."""

    def nearest(step: Callable[[int], int]) -> int:
        return next(distance for distance in range(1, HOURS) if step(distance) % HOURS in known)

    back = nearest(lambda distance: hour - distance)
    ahead = nearest(lambda distance: hour + distance)
    before, after = known[(hour - back) % HOURS][0], known[(hour + ahead) % HOURS][0]
    return (before * ahead + after * back) / (back + ahead)


def profile_row(resource_name: str, profile: UsualWeek | NoProfile) -> dict[str, Any]:
    """What the scaling rules read as a floor: one row of the table of scaling state.

    A missing hour is null.
    """
    row = {"PartitionKey": resource_name, "RowKey": ROW_KEY, "time_zone": profile.time_zone}
    if isinstance(profile, NoProfile):
        return {**row, "absent": profile.reason}
    items = [
        None if value is None else float(f"{value:.{DIGITS}g}")
        for value in profile.items_per_minute
    ]
    return {
        **row,
        "items_per_minute_0": json.dumps(items),
        "weeks": json.dumps(profile.weeks),
    }
