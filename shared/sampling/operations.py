"""What of one operation was kept, and what it adds to the variance.

SDKs sample whole operations: a hash of the operation id is compared with the sampling rate, so all
records of an operation at one rate are kept or lost together. Where the rate changed within an
operation, the records at the lower rate are kept only if those at the higher one are.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """The records of one operation that have one weight."""

    weight: float
    records: int
    value_sum: float


@dataclass(frozen=True, slots=True)
class Operation:
    """The levels of one operation, lightest first, each weight once."""

    levels: tuple[Level, ...]

    def merge(self, other: Operation) -> Operation:
        by_weight: dict[float, Level] = {}
        for level in (*self.levels, *other.levels):
            known = by_weight.get(level.weight)
            by_weight[level.weight] = level if known is None else _sum(known, level)
        return Operation(tuple([by_weight[weight] for weight in sorted(by_weight)]))

    @property
    def count_variance(self) -> float:
        """What it adds to the variance of the adjusted count."""
        return _variance([(level.weight, float(level.records)) for level in self.levels])

    @property
    def sum_variance(self) -> float:
        """What it adds to the variance of the adjusted sum, in the square of its unit."""
        return _variance([(level.weight, level.value_sum) for level in self.levels])


def _sum(a: Level, b: Level) -> Level:
    return Level(a.weight, a.records + b.records, a.value_sum + b.value_sum)


def _variance(levels: list[tuple[float, float]]) -> float:
    """Horvitz and Thompson's estimator for records that share one random number.

    With inclusion 1/k and joint inclusion 1/max(k, l) it is the sum over all pairs of records of
    (1 - 1/min(k, l))·k·x·l·y. Summed by levels k1 < k2 < … that is the sum over levels of
    (1/k_before - 1/k)·(what all levels from this one up add to the adjusted sum)², with k0 = 1: of
    one level k(k - 1)(Σ x)², and never negative.
    """
    adjusted = variance = 0.0
    for index in range(len(levels) - 1, -1, -1):
        weight, value = levels[index]
        before = levels[index - 1][0] if index else 1.0
        adjusted += weight * value
        variance += (1 / before - 1 / weight) * adjusted * adjusted
    return variance
