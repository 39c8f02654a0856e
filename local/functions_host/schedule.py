"""Timer schedules: NCRONTAB expressions and constant intervals."""

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from itertools import count
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


@dataclass(frozen=True, slots=True)
class Occurrences:
    """The times that an NCRONTAB expression selects, in UTC."""

    of: CronSchedule

    def next_after(self, instant: datetime) -> datetime:
        """The first occurrence strictly after the instant."""
        start = instant.astimezone(UTC).replace(microsecond=0) + timedelta(seconds=1)
        for days in count():
            date = start.date() + timedelta(days=days)
            if not self._selects(date.month, date.day, date.isoweekday() % 7):
                continue
            found = self._first((0, 0, 0) if days else (start.hour, start.minute, start.second))
            if found is not None:
                return datetime.combine(date, found, UTC)
        raise AssertionError("count() is endless")

    def _selects(self, month: int, day: int, weekday: int) -> bool:
        return month in self.of.months and day in self.of.days and weekday in self.of.weekdays

    def _first(self, earliest: tuple[int, int, int]) -> time | None:
        """The first time of a day at or after the earliest; None if there is none."""
        times = (
            time(*each)
            for hour in self.of.hours
            if hour >= earliest[0]
            for minute in self.of.minutes
            if (hour, minute) >= earliest[:2]
            for second in self.of.seconds
            if (each := (hour, minute, second)) >= earliest
        )
        return next(times, None)


def parse_schedule(text: str) -> Schedule:
    """Parse a timer trigger's schedule. Raises `ValueError` that states what is wrong."""
    return _interval(text) if ":" in text else _cron(text)


def _cron(text: str) -> Occurrences:
    try:
        return Occurrences(parse_cron(text))
    except ValueError as error:
        raise ValueError(f"schedule {text!r} is not an NCRONTAB expression: {error}") from error


def _interval(text: str) -> IntervalSchedule:
    interval = time_span(text)
    if interval <= timedelta(0):
        raise ValueError(f"schedule {text!r} must be an interval longer than zero")
    return IntervalSchedule(interval)
