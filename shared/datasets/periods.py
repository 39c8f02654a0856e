"""Periods of time that data sets are processed by: a day, two hours. All times are UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

DAY = timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME_MAX = datetime(2999, 12, 31, tzinfo=UTC)
"""Between the two all times can be reckoned with."""

CLOCKS_APART_MAX = timedelta(minutes=1)
"""Who asks and who delivers need not agree on the time better than that."""

DUPLICATE_WINDOW_MAX = timedelta(days=7)
"""The longest that Service Bus remembers message ids."""


@dataclass(frozen=True, slots=True)
class ProcessingRound:
    """A processing of a period: 0 the first one, n that at the end of the n-th lateness."""

    late: int
    due: datetime


@dataclass(frozen=True, slots=True)
class Period:
    """One kind of period: whole days, or a part of a day that goes into it without remainder.

    A period is processed ``delay`` after its end. What comes later has it processed again, at the
    end of the stretch of ``lateness`` that it comes in: these follow each other from the period's
    end on, so that data however late count, once for all that came meanwhile. Raises ValueError.
    """

    length: timedelta = DAY
    delay: timedelta = timedelta(hours=1)
    lateness: timedelta = timedelta(hours=12)

    def __post_init__(self) -> None:
        whole_minutes = self.length >= timedelta(minutes=1) and not self.length.seconds % 60
        if not whole_minutes or (DAY % self.length and self.length % DAY):
            raise ValueError(f"period of {self.length}: must be days or go into a day")
        if self.delay < timedelta(0) or self.lateness < timedelta(minutes=1):
            raise ValueError(
                f"delay {self.delay} must not be negative, lateness {self.lateness} not below "
                "a minute"
            )
        if self.memory >= DUPLICATE_WINDOW_MAX:
            raise ValueError(
                f"period and lateness (or delay) of {self.memory}: Service Bus remembers less "
                f"than {DUPLICATE_WINDOW_MAX}"
            )

    @property
    def memory(self) -> timedelta:
        """What a duplicate detection window must exceed: the same message is sent from the very
        beginning of a period until its processing, or while a stretch of lateness lasts."""
        return self.length + max(self.delay, self.lateness)

    def start(self, time: datetime) -> datetime:
        """When the period around that time began. Raises ValueError."""
        if not EPOCH <= time <= TIME_MAX:
            raise ValueError(f"{time} is not from {EPOCH:%Y} to {TIME_MAX:%Y}")
        return EPOCH + (time - EPOCH) // self.length * self.length

    def turn(self, start: datetime, now: datetime) -> ProcessingRound:
        """When data that are there now, of the period that begins at ``start``, are processed.

        A processing that is about to begin may have begun by another clock: that one is missed.
        """
        end, moment = start + self.length, now + CLOCKS_APART_MAX
        if moment < end + self.delay:
            return ProcessingRound(0, end + self.delay)
        late = max(0, (moment - end) // self.lateness) + 1
        return ProcessingRound(late, end + late * self.lateness)

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
