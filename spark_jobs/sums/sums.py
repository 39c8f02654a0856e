"""What engines return: additive figures by event and day, and by hour."""

from __future__ import annotations

from dataclasses import dataclass

from shared.sampling.estimates import NAMES, Sums, sums_of

__all__ = ["NAMES", "HourSums", "Series", "Sums", "sums_of"]


@dataclass(frozen=True, slots=True)
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
