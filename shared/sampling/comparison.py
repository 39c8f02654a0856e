"""Compares a day of a series with earlier days, by its value and relative to a control series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from statistics import median
from typing import Literal

from shared.sampling.baseline import MEMORY_DAYS, Point, expect
from shared.sampling.estimates import Sums

SCORE_MAX = 2.8
"""A day is unusual if it is more than this many standard errors away from the expectation.

Verified on synthetic series of a dozen kinds: in each of them, fewer than 1 % of ordinary days are
reported as loss.
"""
SCORE_MAX_CONTROLLED = 2.6
"""The same limit for the ratio to the control series, whose errors have lighter tails."""
SCORE_MAX_LASTING = 1.7
"""The same limit on a day after a loss, because a loss usually continues."""
FLOOR = 1e-3
"""Values below this share of the median are raised to it, so that zero has a logarithm."""
RELATIVE_ERROR_MAX = 10.0
"""Larger relative errors are cut to this, because they carry no more information."""
LOG_SHARE_MAX = 100.0
FEW_MIN = 0.5
"""If sampling explains more than this share of the variance between days, there are few records."""

DOUBTFUL_MAX = 0.05
"""If more than this share of the records have doubtful weights, the day is not trusted."""


@dataclass(frozen=True, slots=True)
class Day:
    """The figures of one event on one day; a day without records has the value 0.

    ``value`` is the adjusted count or sum, and the standard error has the same unit. ``control`` is
    the day's figure of the control series in any unit, or None if it is unknown.
    """

    day: date
    value: float
    standard_error: float = 0
    effective_records: float = math.inf
    sampling_rate_percent: float | None = None
    control: float | None = None
    control_exported: bool = False
    """True if the control comes from the same export, which loses it together with the event."""
    trusted: bool = True
    """False if the weights cannot be trusted."""
    exact: bool = True
    """False if weights may be whole numbers that stand for fractions."""
    silent: str = ""
    """The hours in which collection stopped, if earlier days have records of the event in them."""
    capped: bool = False
    """True if collection seems to end each day at a cap."""
    age: int | None = None
    """The number of days after this one whose files were read; None if enough were read."""
    arrived: tuple[float, ...] = ()
    """The share of the value that had arrived at each age from 0 on; empty if it is unknown."""
    control_arrived: tuple[float, ...] = ()
    excluded: bool = False
    """True for a day that must not influence the baseline, such as one of a known loss."""
    unread: float = 0
    """The share of the records of the day's files that could not be read."""
    key: str = ""
    """The name of the key by which copies were recognized. Days with different keys are not
    compared.
    """

    @property
    def relative_variance(self) -> float:
        """The relative variance due to counting and sampling; 0 without records."""
        if self.value <= 0 or self.effective_records <= 0:
            return 0.0
        relative_error = min(self.standard_error / self.value, RELATIVE_ERROR_MAX)
        return max(1 / max(self.effective_records, 1.0), relative_error**2)

    def at(self, age: int | None, usually: float = 1.0) -> Day:
        """The day as it was at this age. ``usually`` is the share that has arrived by then, if that
        of this day is unknown."""
        if age is None:
            return self
        share = self.arrived[age] if self.arrived else usually
        of_control = self.control_arrived[age] if self.control_arrived else 1.0
        return replace(
            self,
            value=self.value * share,
            standard_error=self.standard_error * math.sqrt(share),
            effective_records=self.effective_records * share,
            control=None if self.control is None else self.control * of_control,
        )


def day_of(
    sums: Sums,
    day: date,
    of: Literal["count", "total"] = "count",
    control: float | None = None,
) -> Day:
    """The day's figures: its adjusted count, or the adjusted sum of a measurement that is never
    negative.
    """
    estimate = sums.count if of == "count" else sums.total
    return Day(
        day=day,
        value=estimate.value,
        standard_error=estimate.standard_error,
        effective_records=sums.effective_records,
        sampling_rate_percent=sums.sampling_rate_percent,
        control=control,
        trusted=sums.doubtful <= DOUBTFUL_MAX * sums.records,
        exact=sums.records - sums.exact <= DOUBTFUL_MAX * sums.records,
    )


def comparable(today: Day, history: Sequence[Day]) -> list[Day]:
    """The earlier days with which a day is compared."""
    return [
        d
        for d in history
        if 0 < (today.day - d.day).days <= MEMORY_DAYS and not d.excluded and d.key == today.key
    ]


@dataclass(frozen=True, slots=True)
class SameAge:
    """A day and the days before it, all as they were at the age that the day has now."""

    today: Day
    before: Sequence[Day]
    usually_arrived: float
    """The share of a day's records that has usually arrived at this age."""


def at_same_age(today: Day, history: Sequence[Day]) -> SameAge:
    """Telemetry that arrives a day late would otherwise be missing from the latest day only."""
    before = comparable(today, history)
    if (age := today.age) is None:
        return SameAge(today, before, 1.0)
    usually = median([d.arrived[age] for d in before if d.arrived] or [1.0])
    return SameAge(today.at(age), [d.at(age, usually) for d in before], usually)


@dataclass(frozen=True, slots=True)
class Test:
    """One comparison: the ratio to the expected figure, and the distance in standard errors."""

    share: float
    score: float
    score_min: float
    """The day has fallen if the score is below this."""
    smallest_loss: float
    """The smallest loss that the test would detect, as a share."""
    few_records: bool
    """True if days differ mainly by chance, because there are few records."""

    @property
    def low(self) -> bool:
        return self.score < self.score_min

    @property
    def high(self) -> bool:
        return self.score > SCORE_MAX


@dataclass(frozen=True, slots=True)
class Tests:
    """The comparisons of one day. A test is None if there is too little history, or no control."""

    by_value: Test | None
    by_control: Test | None
    of_control: Test | None


def compare(today: Day, before: Sequence[Day], lasting: bool) -> Tests:
    """Test the value, the ratio to the control, and the control itself.

    The test of the control shows whether the ratio moved because of the control.
    """
    all_values = _logs([(d, d.value) for d in (*before, today)])
    by_value = _test(today, all_values, SCORE_MAX, may_drift=True)
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


def unread_explains(today: Day, before: Sequence[Day], test: Test | None) -> bool:
    """Whether at least half of what a day lacks may be in records that could not be read, besides
    the usual number of such records.
    """
    if test is None or test.share >= 1:
        return False
    usual = median([d.unread for d in before]) if before else 0.0
    return today.unread - usual >= (1 - test.share) / 2


def _logs(figures: Sequence[tuple[Day, float]]) -> list[Point]:
    """The logarithms of the figures; empty for a series that is mostly zero, because it has no
    level.
    """
    floor = FLOOR * median([value for _, value in figures]) if figures else 0.0
    if floor <= 0:
        return []
    return [Point(d.day, math.log(max(value, floor)), d.relative_variance) for d, value in figures]


def _test(today: Day, points: Sequence[Point], score_max: float, *, may_drift: bool) -> Test | None:
    """Test the last point against the points before it.

    For a fall, the sampling error is that of the expected figure. With the error of the day itself,
    which is larger because it has fewer records, the fall would be hidden.
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
    """The loss, as a share, for a distance measured in square roots. Square roots are used because
    the spread of small counts is then constant. Logarithms would overstate a fall.
    """
    return 1 - max(1 - distance / 2, 0.0) ** 2
