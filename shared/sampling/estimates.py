"""From sums over kept records to what was sent: adjusted count and sum, and how sure they are.

Horvitz and Thompson: a record of weight k was kept with probability 1/k, so counting it k times is
right on average. Two standard errors are told. By operation is the honest one, as SDKs keep or drop
whole operations; by record shows how much too small it would be to forget that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

NORMAL_975 = 1.959963984540054
T_SMALL = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706)
"""Student's t at 97.5 % of 1 to 5 degrees of freedom, where the expansion is not close enough."""
DEGREES_ROUNDING = 1e-9
"""Whole degrees may come out of sums a little below, depending on the order of these."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Additive figures of one event on one day: k is a record's weight, x its value.

    Merging the sums of files, tasks and days gives the sums of the whole. Copies of records must
    have been removed before. Shares are what each operation, or record without one, adds to the
    variance of the adjusted count or sum; a weight of 1 adds none.

    SDKs sample whole operations: a hash of the operation id is compared with the sampling rate, so
    all records of an operation at one rate are kept or lost together. Where the rate changed within
    an operation, the records at the lower rate are kept only if those at the higher one are. With
    inclusion 1/k and joint inclusion 1/max(k, l) Horvitz and Thompson's estimator is the sum over
    all pairs of records of (1 - 1/min(k, l))·k·x·l·y. Summed by levels k1 < k2 < … that is the sum
    over levels of (1/k_before - 1/k)·(what all levels from this one up add to the adjusted sum)²,
    with k0 = 1: of one level k(k - 1)(Σ x)², and never negative.
    """

    records: int = 0
    duplicates: int = 0
    late: int = 0
    doubtful: int = 0
    """Those whose weight cannot be trusted."""
    valued: int = 0
    """Records that have the measurement."""
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
    count_shares: float = 0
    sum_shares: float = 0
    count_share_squares: float = 0
    sum_share_squares: float = 0

    @property
    def figures(self) -> EventEstimates:
        return figures(self)

    def merge(self, other: Sums) -> Sums:
        added = {name: getattr(self, name) + getattr(other, name) for name in NAMES}
        return Sums(**{**added, "weight_max": max(self.weight_max, other.weight_max)})

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


NAMES = tuple(field.name for field in fields(Sums))


def sums_of(found: Mapping[str, Any]) -> Sums:
    """What is missing or null is 0: nothing was sampled, so nothing adds to a variance."""
    return Sums(**{name: found[name] for name in NAMES if found.get(name) is not None})


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


def figures(sums: Sums) -> EventEstimates:
    """The final figures. Of no records there are zeros, and no sampling rate."""
    weights, squares = sums.weight_sum, sums.weight_square_sum
    return EventEstimates(
        records=sums.records,
        raw_sum=sums.raw_sum,
        sampling_rate_percent=100 * sums.records / weights if sums.records else None,
        count=_count(sums),
        total=_total(sums),
        effective_records=weights * weights / squares if squares else 0.0,
        weight_max=sums.weight_max,
        doubtful_records=sums.doubtful,
    )


def _count(sums: Sums) -> Estimate:
    reach = _reach(sums.count_shares, sums.count_share_squares)
    at_least = float(sums.records)
    return _estimate(sums.weight_sum, sums.count_shares, sums.count_variance, reach, at_least)


def _total(sums: Sums) -> Estimate:
    reach = _reach(sums.sum_shares, sums.sum_share_squares)
    return _estimate(sums.adjusted_sum, sums.sum_shares, sums.sum_variance, reach, -math.inf)


def _reach(variance: float, squares: float) -> float:
    """The factor from the root of a variance to half an interval.

    Few or uneven shares make a variance unsure itself: Student's t with Satterthwaite's degrees of
    freedom, (Σv)²/Σv² shares less one.
    """
    return t_975(variance * variance / squares - 1 if squares > 0 else math.inf)


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
