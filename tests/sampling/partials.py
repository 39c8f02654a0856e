"""The sums of a day in one pass over its records, by the rules and not by an engine.

Whatever way records are split among files, tasks and days, merging the parts' partials gives the
partial of the whole: exactly in all that is counted, to rounding in sums of fractions. Copies of
records must have been removed before.

SDKs sample whole operations: a hash of the operation id is compared with the sampling rate, so all
records of an operation at one rate are kept or lost together. Where the rate changed within an
operation, the records at the lower rate are kept only if those at the higher one are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType

from shared.sampling import estimates
from shared.sampling.estimates import EventEstimates, Sums
from shared.sampling.model import Weight


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


NO_OPERATIONS: Mapping[str, Operation] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Item:
    """What an estimate needs of a record: ``value`` is that of the chosen measurement."""

    weight: Weight
    value: float | None = None
    """None where the record does not have it: it is counted, and adds nothing to sums."""
    operation_id: str = ""


@dataclass(frozen=True, slots=True)
class SingleRecords:
    """Variances of sampled records that belong to no operation: each was kept by itself."""

    count_variance: float = 0
    sum_variance: float = 0
    count_variance_squares: float = 0
    """Of each record's share, squared: these tell how many shares the variance rests on."""
    sum_variance_squares: float = 0

    def merge(self, other: SingleRecords) -> SingleRecords:
        return SingleRecords(
            self.count_variance + other.count_variance,
            self.sum_variance + other.sum_variance,
            self.count_variance_squares + other.count_variance_squares,
            self.sum_variance_squares + other.sum_variance_squares,
        )


@dataclass(frozen=True, slots=True)
class Partial:
    """Additive figures, with k for a record's weight and x for its value."""

    records: int = 0
    doubtful_records: int = 0
    """Those whose weight cannot be trusted."""
    raw_sum: float = 0
    weight_sum: float = 0
    weight_square_sum: float = 0
    weight_max: float = 0
    adjusted_sum: float = 0
    """Σ kx"""
    count_variance: float = 0
    """Σ k(k - 1): of the adjusted count, were each record sampled by itself."""
    sum_variance: float = 0
    """Σ k(k - 1)x²: of the adjusted sum, were each record sampled by itself."""
    single: SingleRecords = SingleRecords()
    operations: Mapping[str, Operation] = field(default_factory=lambda: NO_OPERATIONS)
    """The sampled ones only: a weight of 1 adds no variance, alone or beside others."""

    @property
    def sums(self) -> Sums:
        """As engines return them."""
        single, shares = self.single, self.operations.values()
        by_count = [operation.count_variance for operation in shares]
        by_sum = [operation.sum_variance for operation in shares]
        return Sums(
            records=self.records,
            doubtful=self.doubtful_records,
            raw_sum=self.raw_sum,
            weight_sum=self.weight_sum,
            weight_square_sum=self.weight_square_sum,
            weight_max=self.weight_max,
            adjusted_sum=self.adjusted_sum,
            count_variance=self.count_variance,
            sum_variance=self.sum_variance,
            count_shares=math.fsum([single.count_variance, *by_count]),
            sum_shares=math.fsum([single.sum_variance, *by_sum]),
            count_share_squares=math.fsum(
                [single.count_variance_squares, *[share * share for share in by_count]]
            ),
            sum_share_squares=math.fsum(
                [single.sum_variance_squares, *[share * share for share in by_sum]]
            ),
        )

    def merge(self, other: Partial) -> Partial:
        return Partial(
            self.records + other.records,
            self.doubtful_records + other.doubtful_records,
            self.raw_sum + other.raw_sum,
            self.weight_sum + other.weight_sum,
            self.weight_square_sum + other.weight_square_sum,
            max(self.weight_max, other.weight_max),
            self.adjusted_sum + other.adjusted_sum,
            self.count_variance + other.count_variance,
            self.sum_variance + other.sum_variance,
            self.single.merge(other.single),
            _merged(self.operations, other.operations),
        )


def merged(partials: Iterable[Partial]) -> Partial:
    """Of none it is the partial of no records."""
    return reduce(Partial.merge, partials, Partial())


def partial_of(items: Iterable[Item]) -> Partial:
    """One pass over the items."""
    records = doubtful = 0
    raw = weights = squares = heaviest = adjusted = by_count = by_sum = 0.0
    single = SingleRecords()
    operations: dict[str, Operation] = {}
    for item in items:
        k, x = item.weight.value, item.value or 0.0
        records += 1
        doubtful += not item.weight.trusted
        raw += x
        weights += k
        squares += k * k
        heaviest = max(heaviest, k)
        adjusted += k * x
        by_count += k * (k - 1)
        by_sum += k * (k - 1) * x * x
        if k <= 1:
            continue
        if not item.operation_id:
            single = single.merge(_single(k, x))
            continue
        operation = Operation((Level(k, 1, x),))
        known = operations.get(item.operation_id)
        operations[item.operation_id] = operation if known is None else known.merge(operation)
    return Partial(
        records, doubtful, raw, weights, squares, heaviest, adjusted, by_count, by_sum,
        single, operations,
    )  # fmt: skip


def _single(k: float, x: float) -> SingleRecords:
    count, total = k * (k - 1), k * (k - 1) * x * x
    return SingleRecords(count, total, count * count, total * total)


def _merged(a: Mapping[str, Operation], b: Mapping[str, Operation]) -> Mapping[str, Operation]:
    few, many = (a, b) if len(a) < len(b) else (b, a)
    if not few:
        return many
    together = dict(many)
    for operation_id, operation in few.items():
        known = together.get(operation_id)
        together[operation_id] = operation if known is None else known.merge(operation)
    return together


def figures(partial: Partial) -> EventEstimates:
    return estimates.figures(partial.sums)
