"""Timer schedules: NCRONTAB expressions and constant intervals."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from shared.settings.schedules import CronSchedule, parse_cron
from shared.values.durations import time_span


class Schedule(Protocol):
    """A timer's schedule."""

    def next_after(self, instant: datetime) -> datetime:
        """The first occurrence strictly after `instant` (UTC)."""
        ...


@dataclass(frozen=True, slots=True)
class IntervalSchedule:
    """A constant interval, counted from the start of the last run."""

    interval: timedelta

    def next_after(self, instant: datetime) -> datetime:
        """`instant` and one interval."""
        return instant + self.interval


def parse_schedule(text: str) -> Schedule:
    """Parse a timer trigger's schedule. Raises `ValueError` that states what is wrong."""
    return _interval(text) if ":" in text else _cron(text)


def _cron(text: str) -> CronSchedule:
    try:
        return parse_cron(text)
    except ValueError as error:
        raise ValueError(f"schedule {text!r} is not an NCRONTAB expression: {error}") from error


def _interval(text: str) -> IntervalSchedule:
    interval = time_span(text)
    if interval <= timedelta(0):
        raise ValueError(f"schedule {text!r} must be an interval longer than zero")
    return IntervalSchedule(interval)
