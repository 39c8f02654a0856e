"""Additive figures of one event on one day, as engines return them, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from shared.sampling.estimates import Figures, figures
from shared.sampling.partials import Lone, Partial

UNIX_START = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, order=True)
class Series:
    """Whose figures: an event, and its values of the chosen dimensions."""

    kind: str
    event: str
    dims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sums:
    """k is a record's weight, x its value; shares are what each operation adds to a variance."""

    records: int = 0
    duplicates: int = 0
    late: int = 0
    doubtful: int = 0
    valued: int = 0
    """Records that have the measurement."""
    raw_sum: float = 0
    weight_sum: float = 0
    weight_square_sum: float = 0
    weight_max: float = 0
    adjusted_sum: float = 0
    count_variance: float = 0
    sum_variance: float = 0
    count_shares: float = 0
    sum_shares: float = 0
    count_share_squares: float = 0
    sum_share_squares: float = 0

    @property
    def figures(self) -> Figures:
        lone = Lone(
            self.count_shares, self.sum_shares, self.count_share_squares, self.sum_share_squares
        )
        return figures(
            Partial(
                records=self.records,
                doubtful_records=self.doubtful,
                raw_sum=self.raw_sum,
                weight_sum=self.weight_sum,
                weight_square_sum=self.weight_square_sum,
                weight_max=self.weight_max,
                adjusted_sum=self.adjusted_sum,
                count_variance=self.count_variance,
                sum_variance=self.sum_variance,
                lone=lone,
            )
        )

    def merge(self, other: Sums) -> Sums:
        added = {name: getattr(self, name) + getattr(other, name) for name in NAMES}
        return Sums(**{**added, "weight_max": max(self.weight_max, other.weight_max)})


NAMES = tuple(each.name for each in fields(Sums))


def sums_of(found: Mapping[str, Any]) -> Sums:
    """What is missing or null is 0: nothing was sampled, so nothing adds to a variance."""
    return Sums(**{name: found[name] for name in NAMES if found.get(name) is not None})


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
