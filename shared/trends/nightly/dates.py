"""Determines the dates to recompute. A date is a UTC day in the paths of the exported files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta

from shared.trends.nightly.errors import InputUnreadable
from shared.trends.nightly.model import Demand

DAY = timedelta(days=1)
Newest = Mapping[date, datetime] | InputUnreadable
"""The time at which data of each date were last written, or the reason why that is unknown."""


def recent_dates(now: datetime, late_days: int) -> tuple[date, ...]:
    """Yesterday and the ``late_days`` before it, newest first."""
    today = now.astimezone(UTC).date()
    return tuple(today - n * DAY for n in range(1, late_days + 2))


def completed_dates(start: datetime, end: datetime, now: datetime) -> tuple[date, ...]:
    """The dates between ``start`` (inclusive) and ``end`` (exclusive) that are over, because an
    incomplete day would look like lost events."""
    first = start.astimezone(UTC).date()
    last = (end.astimezone(UTC) - timedelta(microseconds=1)).date()
    touched = [first + n * DAY for n in range((last - first).days + 1)]
    return tuple(day for day in touched if _end(day) <= now)


def demands_for(
    dates: Sequence[date], newest: Newest, reason: str, known_until: datetime | None = None
) -> tuple[Demand, ...]:
    """The demands for those of the dates that have data.

    If the data cannot be listed, each demand is for data up to ``known_until``, or up to the end of
    the day, so that the date is computed once.
    """
    if isinstance(newest, InputUnreadable):
        reason = f"{reason}; its data cannot be listed"
        return tuple(Demand(day, known_until or _end(day), reason) for day in dates)
    return tuple(Demand(day, newest[day], reason) for day in dates if day in newest)


def _end(day: date) -> datetime:
    return datetime.combine(day + DAY, time(), UTC)
