"""Computes the usual week of an event from its hourly sums, for scaling rules."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from shared.sampling.profile import WEEKS, HourCount, NoProfile, UsualWeek, week_profile
from shared.sampling.series import UNIX_START, Totals, hours_until
from shared.sampling.trends import collection_of
from shared.sampling.verdict import CAPPED


def usual_week(
    totals: Totals, event: str, complete: Collection[str], time_zone: str
) -> UsualWeek | NoProfile:
    """Returns the usual week of an event, over all its kinds and dimensions, from the last weeks.
    An hour without records counts as zero if it is after the event's first hour and its date is
    complete and has telemetry of any event. Any other hour without records is unknown, and so are
    hours in which collection had stopped.
    """
    items, records = dict[int, float](), dict[int, int]()
    for (_, series), day in totals.items():
        for hour, count, weight_sum, _ in day.hours if series.event == event else ():
            items[hour] = items.get(hour, 0.0) + weight_sum
            records[hour] = records.get(hour, 0) + count
    if not items:
        return NoProfile(time_zone, f"there are no records of {event}")
    with_data = {date for (date, _), day in totals.items() if day.sums.records}
    dates = {date.fromisoformat(day) for day in with_data.intersection(complete)}
    if not dates:
        return NoProfile(time_zone, f"no date on which {event} could have occurred is complete")
    zone = ZoneInfo(time_zone)
    end = datetime.combine(max(dates) + timedelta(days=1), time(), zone).astimezone(UTC)
    first = max(min(items), hours_until(end - timedelta(weeks=WEEKS, days=1)))
    collection = collection_of(totals, dates, zone)
    unknown = collection.unknown_hours
    counts = [
        HourCount(
            start, None if number in unknown else items.get(number, 0.0), records.get(number, 0)
        )
        for number in range(first, hours_until(end) + 1)
        if _within(dates, start := UNIX_START + timedelta(hours=number), zone)
    ]
    week = week_profile(counts, end, time_zone)
    if isinstance(week, UsualWeek):
        return week
    since = (UNIX_START + timedelta(hours=min(items))).astimezone(zone).date()
    cap = f", and {CAPPED}" if collection.caps else ""
    return NoProfile(time_zone, f"{event} has records since {since} only{cap}: {week.reason}")


def _within(dates: Collection[date], start: datetime, zone: ZoneInfo) -> bool:
    """Returns whether the whole hour is in these local dates. In some zones, it may be in two."""
    last_quarter = start + timedelta(minutes=45)
    return all(at.astimezone(zone).date() in dates for at in (start, last_quarter))
