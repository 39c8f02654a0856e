"""Estimates counts and sums of all sent records from the kept ones, with standard errors.

The method is the Horvitz-Thompson estimator: a record of weight k was kept with probability 1/k, so
counting it k times is unbiased. The standard error is that of whole operations, which SDKs keep or
drop. If records were sampled independently, it would be smaller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

NORMAL_975 = 1.959963984540054
T_SMALL = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706)
"""Student's t at 97.5 % for 1 to 5 degrees of freedom, where the expansion is too inaccurate."""
DEGREES_ROUNDING = 1e-9
"""Tolerance for degrees of freedom that rounding errors of the sums make slightly too small."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Additive figures of one event on one day, where k is a record's weight and x its value.

    The sums of several files, tasks and days can be merged. Duplicate records must be removed
    before they are summed up. A share is the contribution of one operation, or of one record
    without an operation, to the variance of the adjusted count or sum. A weight of 1 contributes
    nothing.

    SDKs sample whole operations: they compare a hash of the operation ID with the sampling rate, so
    all records of an operation at the same rate are kept or dropped together. If the rate changed
    within an operation, the records at the lower rate are kept only if those at the higher rate
    are. The inclusion probability of a record is therefore 1/k, and the joint one of two records is
    1/max(k, l). The Horvitz-Thompson estimate of the variance is then the sum of
    (1 - 1/min(k, l))·k·x·l·y over all pairs of records. Grouped by levels k1 < k2 < … with k0 = 1,
    it equals the sum over all levels of (1/k_before - 1/k)·(contribution of this level and all
    higher ones to the adjusted sum)². For a single level this is k(k - 1)(Σ x)². It is never
    negative.
    """

    records: int = 0
    duplicates: int = 0
    late: int = 0
    doubtful: int = 0
    """Records whose weight cannot be trusted."""
    exact: int = 0
    """Records that state their sampling rate itself, and not a whole number instead."""
    valued: int = 0
    """Records that have the measurement."""
    repaired: int = 0
    """Records whose weight was corrected by the ids of kept operations."""
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
    count_shares: float = 0
    sum_shares: float = 0
    count_share_squares: float = 0
    sum_share_squares: float = 0

    @property
    def count(self) -> Estimate:
        shares = self.count_shares, self.count_share_squares
        return _estimate(self.weight_sum, *shares, at_least=float(self.records))

    @property
    def total(self) -> Estimate:
        return _estimate(self.adjusted_sum, self.sum_shares, self.sum_share_squares)

    @property
    def sampling_rate_percent(self) -> float | None:
        """100·n/Σk, which equals 100/avg(k); None without records.

        The mean of 100/k over records would be too high if rates differ, because records at high
        rates are kept more often.
        """
        return 100 * self.records / self.weight_sum if self.records else None

    @property
    def effective_records(self) -> float:
        """(Σk)²/Σk², the number of records of equal weight with the same uncertainty (Kish)."""
        squares = self.weight_square_sum
        return self.weight_sum * self.weight_sum / squares if squares else 0.0

    @property
    def repaired_share(self) -> float:
        return self.repaired / self.records if self.records else 0.0

    def merge(self, other: Sums) -> Sums:
        added = {name: getattr(self, name) + getattr(other, name) for name in NAMES}
        return Sums(**{**added, "weight_max": max(self.weight_max, other.weight_max)})


NAMES = tuple(field.name for field in fields(Sums))


def sums_of(row: Mapping[str, Any]) -> Sums:
    """The sums in a row. A missing or null value is 0, because it adds nothing to a variance."""
    return Sums(**{name: row[name] for name in NAMES if row.get(name) is not None})


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimated total over all sent records, kept or not. All figures have the same unit.

    The interval contains the true value in about 95 % of cases. It accounts for sampling only, not
    for lost records.
    """

    value: float
    standard_error: float
    low: float
    high: float

    def widened(self, relative_error: float) -> Estimate:
        """With another, independent error of the value."""
        error = relative_error * abs(self.value)
        low, high = (
            math.hypot(reach, NORMAL_975 * error)
            for reach in (self.value - self.low, self.high - self.value)
        )
        standard_error = math.hypot(self.standard_error, error)
        return Estimate(self.value, standard_error, self.value - low, self.value + high)


def _estimate(
    value: float, variance: float, squares: float, at_least: float = -math.inf
) -> Estimate:
    """A variance that is estimated from few or uneven shares is itself uncertain. Half the width of
    the interval, in standard errors, is therefore Student's t with Satterthwaite's degrees of
    freedom, (Σv)²/Σv² - 1.
    """
    error = math.sqrt(variance)
    reach = error * t_975(variance * variance / squares - 1 if squares > 0 else math.inf)
    return Estimate(value, error, max(value - reach, at_least), value + reach)


def t_975(degrees_of_freedom: float) -> float:
    """The 97.5 % quantile of Student's t, for 95 % intervals.

    Accurate to 0.1 % for whole degrees. Below 6, fractional degrees are rounded down. Otherwise the
    quantile is expanded in 1/degrees around the normal quantile: Abramowitz and Stegun, 26.7.5.
    """
    if degrees_of_freedom < len(T_SMALL) + 1:
        return T_SMALL[min(max(int(degrees_of_freedom + DEGREES_ROUNDING), 1), len(T_SMALL)) - 1]
    z, v = NORMAL_975, degrees_of_freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3
