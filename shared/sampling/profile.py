"""Computes the usual load of each hour of the week from adjusted hourly counts.

The profile has 168 values in items per minute, starting on Monday at 0:00. The hours are in local
time, which the load follows: with daylight saving time, a profile in UTC would be off by one hour
for half of the year.
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
"""With fewer kept records than this, the mean is used instead of the median. Most sampled counts of
a low load are zero, so the median would be too low.
"""
UNEVEN = 0.5
QUARTER = timedelta(minutes=15)
QUARTERS_MIN = 2
LIKE_DAYS = (range(0, 5), range(5, 7))

ROW_KEY = "profile"
DIGITS = 6

Cell = tuple[float, "HourMethod"]


class HourMethod(StrEnum):
    """The method by which an hour's value was computed."""

    MEDIAN = "median over weeks"
    MEAN = "mean over weeks: too few records for a median"
    UNEVEN = "median over weeks that differ by half or more"
    LIKE_DAYS = "too few weeks: same hour of similar days"
    ANY_DAY = "too few weeks: same hour of any day"
    BETWEEN = "too few weeks: interpolated between the nearest hours"
    UNKNOWN = "missing: no week is known"


CERTAIN = frozenset({HourMethod.MEDIAN, HourMethod.MEAN})


@dataclass(frozen=True, slots=True)
class HourCount:
    """The adjusted count of one hour. ``start`` is an aware time at a full hour in UTC.

    ``items`` is None if the hour is unknown, for example because its file is missing. It is 0 if
    there were no items. ``records`` is the number of kept records.
    """

    start: datetime
    items: float | None
    records: int


@dataclass(frozen=True, slots=True)
class UsualWeek:
    """Items per minute for each hour of the week, starting on Monday at 0:00, with the method.

    An hour that is unknown in every week is None, not zero.
    """

    items_per_minute: tuple[float | None, ...]
    time_zone: str
    methods: tuple[HourMethod, ...]
    weeks: tuple[int, ...]
    """The number of weeks in which each hour is known."""

    @property
    def uncertain(self) -> Mapping[int, HourMethod]:
        """The hours that are missing, were filled in, or differ greatly between weeks."""
        return {hour: how for hour, how in enumerate(self.methods) if how not in CERTAIN}


@dataclass(frozen=True, slots=True)
class NoProfile:
    """The reason why there is no profile."""

    time_zone: str
    reason: str


def week_profile(
    counts: Iterable[HourCount], until: datetime, time_zone: str = "UTC", weeks: int = WEEKS
) -> UsualWeek | NoProfile:
    """The profile of the weeks before ``until``; NoProfile if half of the hours are unknown.

    Raises ZoneInfoNotFoundError for a time zone that is not installed on this machine.
    """
    zone = ZoneInfo(time_zone)
    since = (until.astimezone(zone) - timedelta(weeks=weeks)).astimezone(UTC)  # local weeks
    recent = [count for count in counts if since <= count.start < until]
    samples = _samples(recent, zone)
    supported = tuple([len({hour.day for hour in samples.get(h, ())}) for h in range(HOURS)])
    known = {h: _cell(hours) for h, hours in samples.items() if supported[h] >= WEEKS_MIN}
    if len(known) < HOURS_MIN:
        return NoProfile(
            time_zone,
            f"{len(known)} of the week's {HOURS} hours are known from {WEEKS_MIN} weeks or more,"
            f" but a profile needs {HOURS_MIN}",
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
    """The local hours, by hour of the week.

    UTC hours are split into quarters, because the offset of some time zones is not a whole hour.
    """
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


def _cell(hours: Sequence[_LocalHour]) -> Cell:
    rates = [hour.items_per_minute for hour in hours]
    if mean([hour.records for hour in hours]) < RECORDS_MIN:
        return mean(rates), HourMethod.MEAN
    middle = median(rates)
    deviation = median([abs(rate - middle) for rate in rates])
    return middle, HourMethod.UNEVEN if deviation > UNEVEN * middle else HourMethod.MEDIAN


def _filled(known: Mapping[int, Cell], hour: int) -> Cell:
    """The value of an hour with too few weeks. It is taken from the same hour of similar days,
    otherwise from the same hour of any day, otherwise from the nearest hours.
    """
    weekday, hour_of_day = divmod(hour, 24)
    like = next(days for days in LIKE_DAYS if weekday in days)
    for how, days in ((HourMethod.LIKE_DAYS, like), (HourMethod.ANY_DAY, range(7))):
        same = [known[day * 24 + hour_of_day][0] for day in days if day * 24 + hour_of_day in known]
        if same:
            return median(same), how
    return _between(known, hour), HourMethod.BETWEEN


def _between(known: Mapping[int, Cell], hour: int) -> float:
    """Interpolate between the nearest known hours before and after, wrapping around the week."""

    def nearest(step: Callable[[int], int]) -> int:
        return next(distance for distance in range(1, HOURS) if step(distance) % HOURS in known)

    back = nearest(lambda distance: hour - distance)
    ahead = nearest(lambda distance: hour + distance)
    before, after = known[(hour - back) % HOURS][0], known[(hour + ahead) % HOURS][0]
    return (before * ahead + after * back) / (back + ahead)


def profile_row(resource_name: str, profile: UsualWeek | NoProfile) -> dict[str, Any]:
    """The profile as a row of the table with the scaling state, for the policy SeasonalFloor.

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
