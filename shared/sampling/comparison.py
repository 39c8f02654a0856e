"""A day of an event held against the days before: by itself, and by its control series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from statistics import median
from typing import Literal

from shared.sampling.baseline import Point, expect
from shared.sampling.estimates import EventEstimates

SCORE_MAX = 2.8
"""Standard errors from the expectation beyond which a day is out of the ordinary.

Held on made-up series of a dozen kinds, so that fewer than one ordinary day in a hundred is called
loss in each of them.
"""
SCORE_MAX_CONTROLLED = 2.6
"""Of the ratio to the control series: it errs less in its tails."""
SCORE_MAX_LASTING = 1.7
"""On the day after one of loss: what was lost yesterday may well be lost today."""
FLOOR = 1e-3
"""Of the median: what is lower counts as that, so that nothing at all has a logarithm."""
RELATIVE_ERROR_MAX = 10.0
"""A larger one says no more than this."""
LOG_SHARE_MAX = 100.0
FEW_MIN = 0.5
"""Of the variance of days."""

DOUBTFUL_MAX = 0.05
"""A larger share of records with doubtful weights makes the whole day doubtful."""


@dataclass(frozen=True, slots=True)
class Day:
    """The figures of one event on one day; a day without records has the value 0.

    ``value`` is the adjusted count or sum; standard error in its unit. ``control`` is the day's
    figure of the control series in any unit, None where it is not known.
    """

    day: date
    value: float
    standard_error: float = 0
    effective_records: float = math.inf
    sampling_rate_percent: float | None = None
    control: float | None = None
    trusted: bool = True
    """False where weights cannot be trusted."""
    excluded: bool = False
    """True where the day tells nothing of later ones, such as one of known loss."""

    @property
    def relative_variance(self) -> float:
        """Of counting and sampling together; 0 where nothing was kept."""
        if self.value <= 0 or self.effective_records <= 0:
            return 0.0
        relative_error = min(self.standard_error / self.value, RELATIVE_ERROR_MAX)
        return max(1 / max(self.effective_records, 1.0), relative_error**2)


def day_of(
    figures: EventEstimates,
    day: date,
    of: Literal["count", "total"] = "count",
    control: float | None = None,
) -> Day:
    """By adjusted count, or by adjusted sum of a measurement that is not negative."""
    estimate = figures.count if of == "count" else figures.total
    return Day(
        day=day,
        value=estimate.value,
        standard_error=estimate.standard_error,
        effective_records=figures.effective_records,
        sampling_rate_percent=figures.sampling_rate_percent,
        control=control,
        trusted=figures.doubtful_records <= DOUBTFUL_MAX * figures.records,
    )


@dataclass(frozen=True, slots=True)
class Test:
    """One comparison: the share of what was expected, and its distance in standard errors."""

    share: float
    score: float
    score_min: float
    """Below it a day has fallen."""
    smallest_loss: float
    """The smallest loss that it would have called one, as a share."""
    few_records: bool
    """Days differ most by the chance of which records come and are kept."""

    @property
    def low(self) -> bool:
        return self.score < self.score_min

    @property
    def high(self) -> bool:
        return self.score > SCORE_MAX


@dataclass(frozen=True, slots=True)
class Tests:
    """None where there is too little history, or no control."""

    by_value: Test | None
    by_control: Test | None
    of_control: Test | None


def compare(today: Day, before: Sequence[Day], lasting: bool) -> Tests:
    """The control's own test tells whether a ratio moved because the control did."""
    everything = _logs([(d, d.value) for d in (*before, today)])
    by_value = _test(today, everything, SCORE_MAX, may_drift=True)
    if today.control is None or by_value is None:
        return Tests(by_value, None, None)
    controls = _logs([(d, d.control) for d in (*before, today) if d.control is not None])
    values = _logs([(d, d.value) for d in (*before, today) if d.control is not None])
    ratios = [
        replace(value, log_value=value.log_value - control.log_value)
        for value, control in zip(values, controls, strict=False)
    ]
    score_max = SCORE_MAX_LASTING if lasting else SCORE_MAX_CONTROLLED
    alone = [replace(point, variance=0) for point in controls]
    return Tests(
        by_value,
        _test(today, ratios, score_max, may_drift=False),
        _test(today, alone, SCORE_MAX, may_drift=True),
    )


def _logs(figures: Sequence[tuple[Day, float]]) -> list[Point]:
    """None of a series that is mostly zero: it has no level to fall from."""
    floor = FLOOR * median([value for _, value in figures]) if figures else 0.0
    if floor <= 0:
        return []
    return [Point(d.day, math.log(max(value, floor)), d.relative_variance) for d, value in figures]


def _test(today: Day, points: Sequence[Point], score_max: float, *, may_drift: bool) -> Test | None:
    """The last point against those before it.

    Sampling error is that of the expected figure: a fall must not excuse itself.
    """
    expected = expect(points[:-1], today.day, may_drift=may_drift) if points else None
    if expected is None:
        return None
    distance = min(points[-1].log_value - expected.log_value, LOG_SHARE_MAX)
    spread = expected.spread_with(points[-1].variance * min(math.exp(distance), 1.0))
    few = expected.usual_variance > FEW_MIN * expected.spread**2
    if few:
        score, smallest = 2 * math.expm1(distance / 2) / spread, _loss_by_roots(score_max * spread)
    else:
        score, smallest = distance / spread, 1 - math.exp(-score_max * spread)
    return Test(math.exp(distance), score, -score_max, smallest, few)


def _loss_by_roots(distance: float) -> float:
    """Few records scatter as their root does, so roots are compared: logarithms overstate falls."""
    return 1 - max(1 - distance / 2, 0.0) ** 2
