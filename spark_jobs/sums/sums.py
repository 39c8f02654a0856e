"""What engines return: additive figures by event and day, and by hour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from shared.sampling.estimates import NAMES, Sums, sums_of

__all__ = ["NAMES", "HourSums", "Series", "Sums", "sums_of"]

UNIX_START = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, order=True)
class Series:
    """Whose figures: an event, and its values of the chosen dimensions."""

    kind: str
    event: str
    dims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HourSums:
    """The adjusted count of one hour, which begins ``hour`` hours after 1970 in UTC."""

    hour: int
    records: int
    weight_sum: float

    def merge(self, other: HourSums) -> HourSums:
        return HourSums(self.hour, self.records + other.records, self.weight_sum + other.weight_sum)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums by event date and series, and by hour; in the order of dates and series."""

    days: Mapping[tuple[str, Series], Sums] = field(default_factory=dict)
    hours: Mapping[tuple[str, Series], Sequence[HourSums]] = field(default_factory=dict)


def hours_until(time: datetime) -> int:
    """Since 1970 in UTC."""
    return (time - UNIX_START) // timedelta(hours=1)
