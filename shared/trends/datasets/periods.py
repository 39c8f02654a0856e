"""The periods for which data sets are processed, such as a day or two hours, in UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from shared.values.row_values import UNIX_START

DAY = timedelta(days=1)

CLOCKS_APART_MAX = timedelta(minutes=1)
"""The largest difference between the clock of a sender and the clock of Service Bus."""

DUPLICATE_WINDOW_MAX = timedelta(days=7)
"""The longest duplicate detection window of Service Bus."""


@dataclass(frozen=True, slots=True)
class Period:
    """One kind of period: a number of whole days, or a fraction of a day that divides it evenly.

    It is processed ``delay`` after its end, and again at the end of each interval of ``lateness``
    after its end in which data arrive, however late. Raises ValueError.
    """

    length: timedelta = DAY
    delay: timedelta = timedelta(hours=1)
    lateness: timedelta = timedelta(hours=12)

    def __post_init__(self) -> None:
        whole_minutes = self.length >= timedelta(minutes=1) and not self.length.seconds % 60
        if not whole_minutes or (DAY % self.length and self.length % DAY):
            raise ValueError(
                f"period of {self.length}: it must be whole days or divide a day evenly"
            )
        if self.delay < timedelta(0) or self.lateness < timedelta(minutes=1):
            raise ValueError(
                f"delay {self.delay} must not be negative, and lateness {self.lateness} must be at "
                "least a minute"
            )
        if self.memory >= DUPLICATE_WINDOW_MAX:
            raise ValueError(
                f"period plus lateness (or delay) is {self.memory}: it must be less than "
                f"{DUPLICATE_WINDOW_MAX}, the longest duplicate detection window of Service Bus"
            )

    @property
    def memory(self) -> timedelta:
        """The time that the duplicate detection window must exceed: the same message may be sent
        from the beginning of a period until its processing, or throughout a lateness interval.
        """
        return self.length + max(self.delay, self.lateness)

    def start(self, time: datetime) -> datetime:
        """When the period that contains the time began."""
        return UNIX_START + (time - UNIX_START) // self.length * self.length

    def next_round(self, start: datetime, now: datetime) -> tuple[int, datetime]:
        """The number and the time of the round that processes data which have arrived by now for
        the period that begins at ``start``. Round 0 is the first, and round n is at the end of the
        n-th lateness interval. One that is about to begin may have begun by another clock.
        """
        end, moment = start + self.length, now + CLOCKS_APART_MAX
        if moment < end + self.delay:
            return 0, end + self.delay
        late = max(0, (moment - end) // self.lateness) + 1
        return late, end + late * self.lateness

    def label(self, start: datetime) -> str:
        """The period that begins at ``start``, as part of an id: ``2026-03-01``, or
        ``2026-03-01T02:00Z/PT2H``. Kinds of period that share a queue never share a label.
        """
        if self.length == DAY:
            return f"{start:%Y-%m-%d}"
        if self.length > DAY:
            return f"{start:%Y-%m-%d}/P{self.length.days}D"
        hours, minutes = divmod(self.length // timedelta(minutes=1), 60)
        duration = f"{hours}H" * bool(hours) + f"{minutes}M" * bool(minutes)
        return f"{start:%Y-%m-%dT%H:%M}Z/PT{duration}"
