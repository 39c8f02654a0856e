"""Periods of time that data sets are processed by: a day, two hours. All times are UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

DAY = timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DUPLICATE_WINDOW_MAX = timedelta(days=7)
"""The longest that Service Bus remembers message ids."""


@dataclass(frozen=True, slots=True)
class Period:
    """One kind of period: whole days, or a part of a day that goes into it without remainder.

    Processing starts ``delay`` after a period's end. Data may come until ``lateness`` after that
    end without starting a second processing. Raises ValueError.
    """

    length: timedelta = DAY
    delay: timedelta = timedelta(hours=1)
    lateness: timedelta = timedelta(hours=12)

    def __post_init__(self) -> None:
        whole_minutes = self.length >= timedelta(minutes=1) and not self.length.seconds % 60
        if not whole_minutes or (DAY % self.length and self.length % DAY):
            raise ValueError(f"period of {self.length}: must be days or go into a day")
        if min(self.delay, self.lateness) < timedelta(0):
            raise ValueError(
                f"delay {self.delay} and lateness {self.lateness} must not be negative"
            )
        if self.memory >= DUPLICATE_WINDOW_MAX:
            raise ValueError(
                f"period and lateness of {self.memory}: Service Bus remembers less than "
                f"{DUPLICATE_WINDOW_MAX}"
            )

    @property
    def memory(self) -> timedelta:
        """What a duplicate detection window must exceed: from the first message of a period, at
        its very beginning, to the last one."""
        return self.length + self.lateness

    def start(self, time: datetime) -> datetime:
        """When the period around that time began."""
        return EPOCH + (time - EPOCH) // self.length * self.length

    def label(self, start: datetime) -> str:
        """The period that begins then, as an id: ``2026-03-01``, or ``2026-03-01T02:00Z/PT2H``.

        No two kinds of period share a label, so that they can share a queue.
        """
        if self.length == DAY:
            return f"{start:%Y-%m-%d}"
        if self.length > DAY:
            return f"{start:%Y-%m-%d}/P{self.length.days}D"
        hours, minutes = divmod(self.length // timedelta(minutes=1), 60)
        duration = f"{hours}H" * bool(hours) + f"{minutes}M" * bool(minutes)
        return f"{start:%Y-%m-%dT%H:%M}Z/PT{duration}"
