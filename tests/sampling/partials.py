"""A reference implementation of a day's sums in plain Python, without Spark.

However records are split among files, tasks and days, merging the partials of the parts gives the
partial of the whole: exactly for counts, and up to rounding for sums of fractions. Duplicate
records must be removed before. `shared.sampling.estimates.Sums` describes how SDKs sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType

from shared.sampling.estimates import Sums
from shared.sampling.model import Weight


@dataclass(frozen=True, slots=True)
class Level:
    """The records of one operation that have the same weight."""

    weight: float
    records: int
    value_sum: float


@dataclass(frozen=True, slots=True)
class Operation:
    """The levels of one operation, by increasing weight, with each weight once."""

    levels: tuple[Level, ...]

    def merge(self, other: Operation) -> Operation:
        by_weight: dict[float, Level] = {}
        for level in (*self.levels, *other.levels):
            known = by_weight.get(level.weight)
            by_weight[level.weight] = level if known is None else _sum(known, level)
        return Operation(tuple([by_weight[weight] for weight in sorted(by_weight)]))

    @property
    def count_variance(self) -> float:
        """The operation's contribution to the variance of the adjusted count."""
        return _variance([(level.weight, float(level.records)) for level in self.levels])

    @property
    def sum_variance(self) -> float:
        """The operation's contribution to the variance of the adjusted sum, in its unit squared."""
        return _variance([(level.weight, level.value_sum) for level in self.levels])


def _sum(a: Level, b: Level) -> Level:
    return Level(a.weight, a.records + b.records, a.value_sum + b.value_sum)


def _variance(levels: list[tuple[float, float]]) -> float:
    """The Horvitz-Thompson estimator for records that share one random number.

    See `shared.sampling.estimates.Sums` for the formula.
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
    """The fields of a record that estimates use. ``value`` is the value of the measurement."""

    weight: Weight
    value: float | None = None
    """None if the record does not have the measurement: it is counted, but not in sums."""
    operation_id: str = ""


@dataclass(frozen=True, slots=True)
class SingleRecords:
    """The variances of records without an operation, which are sampled independently."""

    count_variance: float = 0
    sum_variance: float = 0
    count_variance_squares: float = 0
    """The sum of squared shares, from which the degrees of freedom are computed."""
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
    """Records whose weight cannot be trusted."""
    exact_records: int = 0
    raw_sum: float = 0
    weight_sum: float = 0
    weight_square_sum: float = 0
    weight_max: float = 0
    adjusted_sum: float = 0
    """Σ kx"""
    count_variance: float = 0
    """Σ k(k - 1), the variance of the adjusted count if records were sampled independently."""
    sum_variance: float = 0
    """Σ k(k - 1)x², the variance of the adjusted sum if records were sampled independently."""
    single: SingleRecords = SingleRecords()
    operations: Mapping[str, Operation] = field(default_factory=lambda: NO_OPERATIONS)
    """Only the sampled operations, because a weight of 1 contributes no variance."""

    @property
    def sums(self) -> Sums:
        """The sums as the nightly job computes them."""
        single, shares = self.single, self.operations.values()
        by_count = [operation.count_variance for operation in shares]
        by_sum = [operation.sum_variance for operation in shares]
        return Sums(
            records=self.records,
            doubtful=self.doubtful_records,
            exact=self.exact_records,
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
            self.exact_records + other.exact_records,
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
    """The merged partials; an empty partial if there are none."""
    return reduce(Partial.merge, partials, Partial())


def partial_of(items: Iterable[Item]) -> Partial:
    """One pass over the items."""
    records = doubtful = exact = 0
    raw = weights = squares = heaviest = adjusted = by_count = by_sum = 0.0
    single = SingleRecords()
    operations: dict[str, Operation] = {}
    for item in items:
        k, x = item.weight.value, item.value or 0.0
        records += 1
        doubtful += not item.weight.trusted
        exact += item.weight.exact
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
        records, doubtful, exact, raw, weights, squares, heaviest, adjusted, by_count, by_sum,
        single, operations,
    )  # fmt: skip


def _single(k: float, x: float) -> SingleRecords:
    count, total = k * (k - 1), (k * x) * ((k - 1) * x)
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


def figures(partial: Partial) -> Sums:
    return partial.sums
