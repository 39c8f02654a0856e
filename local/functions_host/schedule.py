"""Timer schedules: NCRONTAB expressions and constant intervals."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from croniter import croniter

_TIME_SPAN = re.compile(r"(?:(\d+)\.)?(\d+):(\d{1,2}):(\d{1,2})(\.\d{1,7})?")


def parse_time_span(text: str) -> timedelta:
    """Parse `hh:mm:ss`, `d.hh:mm:ss` or `hh:mm:ss.fff`.

    As in the host, a first number of 24 or more means days: `24:00:00` is 24 days.
    """
    match = _TIME_SPAN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a time span such as 00:05:00")
    days, first, second, third = (int(part or 0) for part in match.groups()[:4])
    if days == 0 and first >= 24:
        return timedelta(days=first, hours=second, minutes=third)
    fraction = float(match[5] or 0)
    return timedelta(days=days, hours=first, minutes=second, seconds=third + fraction)


class Schedule(Protocol):
    """A timer's schedule."""

    def next_after(self, instant: datetime) -> datetime:
        """The first occurrence strictly after `instant` (UTC)."""
        ...


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """An NCRONTAB expression of 6 fields (seconds first) or 5, in UTC."""

    expression: str

    def next_after(self, instant: datetime) -> datetime:
        """The first occurrence strictly after `instant`."""
        # NCRONTAB, unlike Unix cron, needs both the day of month and the day of week to match.
        occurrences = croniter(
            self.expression, instant.astimezone(UTC), second_at_beginning=True, day_or=False
        )
        due: datetime = occurrences.get_next(datetime)
        return due


@dataclass(frozen=True, slots=True)
class IntervalSchedule:
    """A constant interval, counted from the start of the last run."""

    interval: timedelta

    def next_after(self, instant: datetime) -> datetime:
        """`instant` and one interval."""
        return instant + self.interval


def parse_schedule(text: str) -> Schedule:
    """Parse a timer trigger's schedule. Raises `ValueError` that states what is wrong."""
    if ":" in text:
        return _interval(text)
    fields = text.split()
    if len(fields) not in (5, 6):
        raise ValueError(f"schedule {text!r} has {len(fields)} fields, expected 6 (or 5)")
    if not croniter.is_valid(text, second_at_beginning=True):
        raise ValueError(f"schedule {text!r} is not an NCRONTAB expression")
    return CronSchedule(text)


def _interval(text: str) -> IntervalSchedule:
    interval = parse_time_span(text)
    if interval <= timedelta(0):
        raise ValueError(f"schedule {text!r} must be an interval longer than zero")
    return IntervalSchedule(interval)
