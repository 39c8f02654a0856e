"""From sums over kept records to what was sent: adjusted count and sum, and how sure they are.

Horvitz and Thompson: a record of weight k was kept with probability 1/k, so counting it k times is
right on average. Two standard errors are told. By operation is the honest one, as SDKs keep or drop
whole operations; by record shows how much too small it would be to forget that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shared.sampling.partials import Partial

NORMAL_975 = 1.959963984540054
T_SMALL = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706)
"""Student's t at 97.5 % of 1 to 5 degrees of freedom, where the expansion is not close enough."""
DEGREES_ROUNDING = 1e-9
"""Whole degrees may come out of sums a little below, depending on the order of these."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A total over all that was sent, kept or not; everything in the unit of the value.

    The interval holds the truth in about 95 % of cases. It knows of sampling only, not of loss.
    """

    value: float
    standard_error: float
    """Operations sampled as a whole."""
    standard_error_by_record: float
    """As if each record were sampled by itself."""
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class EventEstimates:
    """What is known of one event on one day."""

    records: int
    raw_sum: float
    sampling_rate_percent: float | None
    """100·n/Σk, which equals 100/avg(k); None without records.

    Where rates differ, the mean of 100/k over records is too high: kept records favour high rates.
    """
    count: Estimate
    total: Estimate
    effective_records: float
    """(Σk)²/Σk²: as many records of equal weight would be as sure (Kish)."""
    weight_max: float
    doubtful_records: int

    @property
    def trusted(self) -> bool:
        return self.doubtful_records == 0


def figures(partial: Partial) -> EventEstimates:
    """The final figures. A partial of no records has zeros, and no sampling rate."""
    weights, squares = partial.weight_sum, partial.weight_square_sum
    return EventEstimates(
        records=partial.records,
        raw_sum=partial.raw_sum,
        sampling_rate_percent=100 * partial.records / weights if partial.records else None,
        count=_count(partial),
        total=_total(partial),
        effective_records=weights * weights / squares if squares else 0.0,
        weight_max=partial.weight_max,
        doubtful_records=partial.doubtful_records,
    )


def _count(partial: Partial) -> Estimate:
    shares = [operation.count_variance for operation in partial.operations.values()]
    single = partial.single
    variance, reach = _spread(shares, single.count_variance, single.count_variance_squares)
    at_least = float(partial.records)
    return _estimate(partial.weight_sum, variance, partial.count_variance, reach, at_least)


def _total(partial: Partial) -> Estimate:
    shares = [operation.sum_variance for operation in partial.operations.values()]
    single = partial.single
    variance, reach = _spread(shares, single.sum_variance, single.sum_variance_squares)
    return _estimate(partial.adjusted_sum, variance, partial.sum_variance, reach, -math.inf)


def _spread(shares: list[float], single: float, lone_squares: float) -> tuple[float, float]:
    """The variance, and the factor from its root to half an interval.

    Few or uneven shares make a variance unsure itself: Student's t with Satterthwaite's degrees of
    freedom, (Σv)²/Σv² shares less one.
    """
    variance = math.fsum([single, *shares])
    squares = math.fsum([lone_squares, *[share * share for share in shares]])
    degrees = variance * variance / squares - 1 if squares > 0 else math.inf
    return variance, t_975(degrees)


def _estimate(
    value: float, variance: float, variance_by_record: float, reach: float, at_least: float
) -> Estimate:
    error = math.sqrt(variance)
    return Estimate(
        value=value,
        standard_error=error,
        standard_error_by_record=math.sqrt(variance_by_record),
        low=max(value - reach * error, at_least),
        high=value + reach * error,
    )


def t_975(degrees_of_freedom: float) -> float:
    """The quantile of Student's t at 97.5 %, for 95 % intervals of few shares.

    To within 0.1 % for whole degrees; between whole ones, of the next lower below 6.

    Expansion in 1/degrees around the normal quantile: Abramowitz and Stegun, 26.7.5.
    """
    if degrees_of_freedom < len(T_SMALL) + 1:
        return T_SMALL[min(max(int(degrees_of_freedom + DEGREES_ROUNDING), 1), len(T_SMALL)) - 1]
    z, v = NORMAL_975, degrees_of_freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3
