"""Computes the usual load of each hour of the week from adjusted hourly counts.

The profile has 168 values in items per minute, starting on Monday at 0:00. The hours are in local
time, which the load follows: with daylight saving time, a profile in UTC would be off by one hour
for half of the year.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from statistics import mean, median
from typing import Any
from zoneinfo import ZoneInfo

from shared.sampling.series import UNIX_START, Totals, hours_until
from shared.sampling.trends import collection_of
from shared.sampling.verdict import CAPPED

HOURS = 168
WEEKS = 8
WEEKS_MIN = 2
HOURS_MIN = HOURS // 2
RECORDS_MIN = 10
"""With fewer kept records than this, the mean is used instead of the median. Most sampled counts of
a low load are zero, so the median would be too low.
"""
QUARTER = timedelta(minutes=15)
QUARTERS_MIN = 2
LIKE_DAYS = (range(0, 5), range(5, 7))

ROW_KEY = "profile"
DIGITS = 6


Loads = Mapping[int, tuple[float, int]]
"""The adjusted count and the kept records of each known UTC hour since 1970. Both are 0 if there
were no items; an hour that is unknown, for example because its file is missing, is left out.
"""


@dataclass(frozen=True, slots=True)
class UsualWeek:
    """Items per minute for each hour of the week, starting on Monday at 0:00.

    An hour that is unknown in every week is None, not zero.
    """

    items_per_minute: tuple[float | None, ...]
    time_zone: str
    weeks: tuple[int, ...]
    """The number of weeks in which each hour is known."""
    absent: str = ""
    """Why there is no profile; there are no figures then."""


def usual_week(totals: Totals, event: str, complete: Collection[str], time_zone: str) -> UsualWeek:
    """Returns the usual week of an event, over all its kinds and dimensions, from the last weeks.
    An hour without records counts as zero if it is after the event's first hour and its date is
    complete and has telemetry of any event. Any other hour without records is unknown, and so are
    hours in which collection had stopped.
    """
    found = dict[int, tuple[float, int]]()
    for (_, series), day in totals.items():
        for hour, count, weight_sum, _ in day.hours if series.event == event else ():
            items, records = found.get(hour, (0.0, 0))
            found[hour] = items + weight_sum, records + count
    if not found:
        return UsualWeek((), time_zone, (), f"there are no records of {event}")
    with_data = {date for (date, _), day in totals.items() if day.sums.records}
    dates = {date.fromisoformat(day) for day in with_data.intersection(complete)}
    if not dates:
        reason = f"no date on which {event} could have occurred is complete"
        return UsualWeek((), time_zone, (), reason)
    zone = ZoneInfo(time_zone)
    end = datetime.combine(max(dates) + timedelta(days=1), time(), zone).astimezone(UTC)
    first = max(min(found), hours_until(end - timedelta(weeks=WEEKS, days=1)))
    collection = collection_of(totals, dates, zone)
    unknown = collection.unknown_hours
    loads = {
        hour: found.get(hour, (0.0, 0))
        for hour in range(first, hours_until(end) + 1)
        if hour not in unknown and _within(dates, _start(hour), zone)
    }
    week = week_profile(loads, end, time_zone)
    if not week.absent:
        return week
    since = _start(min(found)).astimezone(zone).date()
    cap = f", and {CAPPED}" if collection.caps else ""
    return replace(week, absent=f"{event} has records since {since} only{cap}: {week.absent}")


def _start(hour: int) -> datetime:
    return UNIX_START + timedelta(hours=hour)


def _within(dates: Collection[date], start: datetime, zone: ZoneInfo) -> bool:
    """Returns whether the whole hour is in these local dates. In some zones, it may be in two."""
    last_quarter = start + timedelta(minutes=45)
    return all(at.astimezone(zone).date() in dates for at in (start, last_quarter))


def week_profile(loads: Loads, until: datetime, time_zone: str = "UTC") -> UsualWeek:
    """The profile of the weeks before ``until``; absent if half of the hours are unknown.

    Raises ZoneInfoNotFoundError for a time zone that is not installed on this machine.
    """
    zone = ZoneInfo(time_zone)
    since = (until.astimezone(zone) - timedelta(weeks=WEEKS)).astimezone(UTC)  # local weeks
    recent = {hour: load for hour, load in loads.items() if since <= _start(hour) < until}
    samples = _samples(recent, zone)
    supported = tuple([len({hour.day for hour in samples.get(h, ())}) for h in range(HOURS)])
    known = {h: _usual(hours) for h, hours in samples.items() if supported[h] >= WEEKS_MIN}
    if len(known) < HOURS_MIN:
        reason = (
            f"{len(known)} of the week's {HOURS} hours are known from {WEEKS_MIN} weeks or more,"
            f" but a profile needs {HOURS_MIN}"
        )
        return UsualWeek((), time_zone, (), reason)
    values = [
        known[hour] if hour in known else _filled(known, hour) if supported[hour] else None
        for hour in range(HOURS)
    ]
    return UsualWeek(tuple(values), time_zone, supported)


@dataclass(slots=True)
class _LocalHour:
    day: date
    items: float = 0
    records: float = 0
    quarters: int = 0

    @property
    def items_per_minute(self) -> float:
        return self.items / (self.quarters * 15)


def _samples(loads: Loads, zone: ZoneInfo) -> dict[int, list[_LocalHour]]:
    """The local hours, by hour of the week.

    UTC hours are split into quarters, because the offset of some time zones is not a whole hour.
    """
    local_hours: dict[tuple[date, int, int], _LocalHour] = {}
    for hour, (items, records) in loads.items():
        for quarter in range(4):
            at = (_start(hour) + quarter * QUARTER).astimezone(zone)
            key = at.date(), at.hour, at.fold
            local_hour = local_hours.setdefault(key, _LocalHour(at.date()))
            local_hour.items += items / 4
            local_hour.records += records / 4
            local_hour.quarters += 1
    samples: dict[int, list[_LocalHour]] = {}
    for (day, hour, _), local_hour in local_hours.items():
        if local_hour.quarters >= QUARTERS_MIN:
            samples.setdefault(day.weekday() * 24 + hour, []).append(local_hour)
    return samples


def _usual(hours: Sequence[_LocalHour]) -> float:
    rates = [hour.items_per_minute for hour in hours]
    few_records = mean([hour.records for hour in hours]) < RECORDS_MIN
    return mean(rates) if few_records else median(rates)


def _filled(known: Mapping[int, float], hour: int) -> float:
    """The value of an hour with too few weeks. It is taken from the same hour of similar days,
    otherwise from the same hour of any day, otherwise interpolated between the nearest hours.
    """
    weekday, hour_of_day = divmod(hour, 24)
    like = next(days for days in LIKE_DAYS if weekday in days)
    for days in (like, range(7)):
        same = [known[day * 24 + hour_of_day] for day in days if day * 24 + hour_of_day in known]
        if same:
            return median(same)
    back = next(n for n in range(1, HOURS) if (hour - n) % HOURS in known)
    ahead = next(n for n in range(1, HOURS) if (hour + n) % HOURS in known)
    before, after = known[(hour - back) % HOURS], known[(hour + ahead) % HOURS]
    return (before * ahead + after * back) / (back + ahead)


def profile_row(resource_name: str, profile: UsualWeek) -> dict[str, Any]:
    """The profile as a row of the table with the scaling state, for the policy SeasonalFloor.

    A missing hour is null.
    """
    row = {"PartitionKey": resource_name, "RowKey": ROW_KEY, "time_zone": profile.time_zone}
    if profile.absent:
        return {**row, "absent": profile.absent}
    items = [v if v is None else float(f"{v:.{DIGITS}g}") for v in profile.items_per_minute]
    return {**row, "items_per_minute_0": json.dumps(items), "weeks": json.dumps(profile.weeks)}
