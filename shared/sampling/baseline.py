"""The expected figure of a day, estimated from the recent level and from earlier days of the same
weekday.

All estimates are medians or other quantiles, so a bad day or week in the history has little effect.
Figures are logarithms, because the effects of weekdays, growth and loss are multiplicative.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from statistics import median

MEMORY_DAYS = 70
LEVEL_DAYS = (7, 14, 28)
DAYS_MIN = 14
SAME_WEEKDAYS_MIN = 2
SPREAD_MIN = 0.015
"""The minimum spread, for a history that by chance looks steadier than any real series."""
WITHIN = 0.8
"""The spread is estimated from the forecast error that this share of days does not exceed.

A larger share than the usual half makes the estimate more certain and includes the tails. Bad days
remain outside it.
"""
SIGMA_PER_ERROR = 1 / 1.2816
"""80 % of normally distributed errors are within 1.2816 standard errors."""
WORST_PER_SIGMA = 2.5
"""The spread is widened until the mean of the two worst falls is within this many standard errors.
A series that has fallen this far without a loss may fall as far again.
"""
WORST_WIDENS_MAX = 1.5
"""The maximum factor of that widening. Larger falls in the history were losses, and must not hide
other losses.
"""
LONGER_IF_BETTER = 0.98
"""A level over more days is preferred if its spread is below this share of the best spread so far.
"""
DRIFT_MIN = 0.75
"""The difference, in units of the spread, above which the series has moved: otherwise the median of
a week hardly ever differs by more from a level over more days.
"""


@dataclass(frozen=True, slots=True)
class Point:
    """The logarithm of one day's figure, and the part of its variance that sampling explains."""

    day: date
    log_value: float
    variance: float = 0


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected logarithm of a figure, and the standard error of a single day around it."""

    log_value: float
    spread: float
    usual_variance: float
    """The median variance that sampling explains. The spread includes it."""

    def spread_with(self, variance: float) -> float:
        """The spread for a day with this sampling variance, if that is larger than usual."""
        return math.sqrt(self.spread**2 + max(variance - self.usual_variance, 0.0))


@dataclass(frozen=True, slots=True)
class _Level:
    """A forecast by the median of the preceding days: its current value, and its spread."""

    present: float
    spread: float


def expect(history: Sequence[Point], day: date, *, may_drift: bool = False) -> Expectation | None:
    """The expected figure of the day; None if there is too little history.

    Points may be in any order and have gaps. ``may_drift`` is for a series whose slow fall is not
    an alarm, such as traffic itself.

    1. Estimate the effect of each weekday as the median distance from the median of the week
       around it.
    2. Subtract the effects. Estimate the level as the median of the last 7, 14 or 28 days,
       whichever would have forecast the history best: more days for a steady series, fewer for one
       that drifts. If the series may drift, the last week is used when it differs from the longer
       level.
    3. Estimate the spread from the errors of that forecast. They are scaled up for a short history,
       because the effects were fitted to the same days.
    """
    points = sorted(
        [p for p in history if 0 < (day - p.day).days <= MEMORY_DAYS], key=lambda p: p.day
    )
    effects = _weekday_effects(points)
    levels = [p.log_value - effects[p.day.weekday()] for p in points if p.day.weekday() in effects]
    if len(levels) < DAYS_MIN or day.weekday() not in effects:
        return None
    level = _level(levels, may_drift)
    usual_variance = median([p.variance for p in points[-LEVEL_DAYS[0] :]])
    spread = max(level.spread * _overfit(len(levels)), SPREAD_MIN, math.sqrt(usual_variance))
    return Expectation(level.present + effects[day.weekday()], spread, usual_variance)


def _level(levels: Sequence[float], may_drift: bool) -> _Level:
    best = week = _forecast(levels, LEVEL_DAYS[0])
    for days in LEVEL_DAYS[1:]:
        if len(levels) < 2 * days:
            break
        longer = _forecast(levels, days)
        if may_drift and abs(longer.present - week.present) > DRIFT_MIN * week.spread:
            return replace(week, present=week.present + _fall(levels) * 4)
        if longer.spread < LONGER_IF_BETTER * best.spread:
            best = longer
    return best


def _fall(levels: Sequence[float]) -> float:
    """The daily fall of the level, at most 0.

    It is the smaller of the fall between the last two weeks and the fall within the last week, so
    that a single step down is not extrapolated. A rise is not extrapolated at all, because the end
    of a rise is not a loss. The median of a range of days estimates the level at its middle.
    """
    between = (median(levels[-7:]) - median(levels[-14:-7])) / 7
    within = (median(levels[-4:]) - median(levels[-7:-4])) / 3.5
    return min(max(between, within), 0.0)


def _forecast(levels: Sequence[float], days: int) -> _Level:
    """Forecast each day after the first week by the median of up to ``days`` days before it."""
    window = sorted(levels[: LEVEL_DAYS[0]])
    errors = []
    for index in range(LEVEL_DAYS[0], len(levels)):
        errors.append(levels[index] - _middle(window))
        insort(window, levels[index])
        if len(window) > days:
            del window[bisect_left(window, levels[index - days])]
    errors.sort(key=abs)
    usual = SIGMA_PER_ERROR * abs(errors[round(WITHIN * (len(errors) - 1))])
    worst = -sum(sorted(errors)[:2]) / 2
    widened = min(worst / WORST_PER_SIGMA, WORST_WIDENS_MAX * usual)
    return _Level(_middle(window), max(usual, widened))


def _middle(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _overfit(days: int) -> float:
    """The ratio of true forecast errors to the errors of the fit.

    With seven effects fitted to n days, the errors of the fit are too small by √((n-7)/n), and
    forecasts err by √((n+7)/n). The quantile of the n - 7 errors is itself uncertain; the term
    3/(n-7), found by simulation, compensates for its effect on the tails.
    """
    return math.sqrt((days + 7) / (days - 7)) * (1 + 3 / (days - 7))


def _weekday_effects(points: Sequence[Point]) -> dict[int, float]:
    """The effect of each weekday, with Monday = 0. Weekdays with too few days are left out."""
    by_day = {p.day.toordinal(): p.log_value for p in points}
    distances: dict[int, list[float]] = {}
    for point in points:
        day = point.day.toordinal()
        around = sorted([by_day[near] for near in range(day - 3, day + 4) if near in by_day])
        distance = point.log_value - _middle(around)
        distances.setdefault(point.day.weekday(), []).append(distance)
    return {
        weekday: median(of_weekday)
        for weekday, of_weekday in distances.items()
        if len(of_weekday) >= SAME_WEEKDAYS_MIN
    }
