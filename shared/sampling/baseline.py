"""What a day's figure should be, from the same weekdays before and the present level.

Medians and other quantiles throughout, so that a bad day or week in the history moves little.
Figures are logarithms: weekdays, growth and loss multiply.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from statistics import median

MEMORY_DAYS = 70
LEVEL_DAYS = (7, 14, 28)
DAYS_MIN = 14
SAME_WEEKDAYS_MIN = 2
SPREAD_MIN = 0.015
"""No series is steadier than that from day to day; it guards against a history that looks so."""
WITHIN = 0.8
"""Errors within this share of days tell the spread: more of them than the usual half, for a surer
figure that knows of tails, and few enough that bad days remain outside."""
SIGMA_PER_ERROR = 1 / 1.2816
"""Of normal errors, 80 % are within 1.2816 standard errors."""
WORST_PER_SIGMA = 2.5
"""A series that has fallen so far by itself may do so again: of the mean of the two worst days."""
WORST_WIDENS_MAX = 1.5
"""Beyond it those were no ordinary days, and hide no others."""
LONGER_IF_BETTER = 0.98
DRIFT_MIN = 0.75
"""Of the spread: the median of a week is as good as never off by more, if nothing has moved."""


@dataclass(frozen=True, slots=True)
class Point:
    """The logarithm of one day's figure, and its variance as far as sampling explains it."""

    day: date
    log_value: float
    variance: float = 0


@dataclass(frozen=True, slots=True)
class Expectation:
    """Of a logarithm: where it should be, and the standard error of one day around it."""

    log_value: float
    spread: float
    usual_variance: float
    """The median of what sampling explains; the spread holds it already."""

    def spread_with(self, variance: float) -> float:
        """For a day whose sampling error is larger than usual."""
        return math.sqrt(self.spread**2 + max(variance - self.usual_variance, 0.0))


@dataclass(frozen=True, slots=True)
class _Level:
    """Forecasting each day by the median of the days before it: what it says, how it erred."""

    present: float
    spread: float


def expect(history: Sequence[Point], day: date, *, may_drift: bool = False) -> Expectation | None:
    """None where there is too little history. Points may come in any order and have gaps.

    ``may_drift`` of a series whose slow fall is nothing to be told of, such as traffic itself.

    1. The effect of each weekday: median distance from the median of the week around.
    2. The level: median of the last 7, 14 or 28 days, freed of their effects; as many as would
       have forecast the history best. A steady series is known better by more days, one that
       drifts by few; and where it may drift, the last week has the say if it is elsewhere.
    3. The spread: how that forecast erred, which knew the effects beforehand and so looks too
       good in a short history.
    """
    since = day - timedelta(days=MEMORY_DAYS)
    points = sorted([p for p in history if since <= p.day < day], key=lambda p: p.day)
    effects = _weekday_effects(points)
    freed = [p.log_value - effects[p.day.weekday()] for p in points if p.day.weekday() in effects]
    if len(freed) < DAYS_MIN or day.weekday() not in effects:
        return None
    level = _level(freed, may_drift)
    usual_variance = median([p.variance for p in points[-LEVEL_DAYS[0] :]])
    spread = max(level.spread * _overfit(len(freed)), SPREAD_MIN, math.sqrt(usual_variance))
    return Expectation(level.present + effects[day.weekday()], spread, usual_variance)


def _level(freed: Sequence[float], may_drift: bool) -> _Level:
    best = week = _forecast(freed, LEVEL_DAYS[0])
    for days in LEVEL_DAYS[1:]:
        if len(freed) < 2 * days:
            break
        longer = _forecast(freed, days)
        if may_drift and abs(longer.present - week.present) > DRIFT_MIN * week.spread:
            return replace(week, present=week.present + _fall(freed) * 4)
        if longer.spread < LONGER_IF_BETTER * best.spread:
            best = longer
    return best


def _fall(freed: Sequence[float]) -> float:
    """A day's, at most 0: the lesser of that between the last two weeks and that within the last.

    So a step down is not taken to go on, nor is a rise: when it stops, that is no loss. The median
    of a stretch of days is that of its middle.
    """
    between = (median(freed[-7:]) - median(freed[-14:-7])) / 7
    within = (median(freed[-4:]) - median(freed[-7:-4])) / 3.5
    return min(max(between, within), 0.0)


def _forecast(freed: Sequence[float], days: int) -> _Level:
    """The first week is forecast by nothing, days soon after it by those there are."""
    window = sorted(freed[: LEVEL_DAYS[0]])
    errors = []
    for index in range(LEVEL_DAYS[0], len(freed)):
        errors.append(freed[index] - _middle(window))
        insort(window, freed[index])
        if len(window) > days:
            del window[bisect_left(window, freed[index - days])]
    errors.sort(key=abs)
    usual = SIGMA_PER_ERROR * abs(errors[round(WITHIN * (len(errors) - 1))])
    worst = -sum(sorted(errors)[:2]) / 2
    widened = min(worst / WORST_PER_SIGMA, WORST_WIDENS_MAX * usual)
    return _Level(_middle(window), max(usual, widened))


def _middle(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _overfit(days: int) -> float:
    """How much further forecasts err than the errors of the fit let think.

    Seven effects fitted to n days: errors look √((n-7)/n) as large, forecasts err √((n+7)/n). The
    quantile of the n - 7 errors is itself unsure; 3/(n-7) makes up for what that costs in tails,
    found by simulation.
    """
    return math.sqrt((days + 7) / (days - 7)) * (1 + 3 / (days - 7))


def _weekday_effects(points: Sequence[Point]) -> dict[int, float]:
    """By Monday = 0; a weekday that was seen too seldom has none."""
    by_day = {p.day.toordinal(): p.log_value for p in points}
    distances: dict[int, list[float]] = {}
    for point in points:
        day = point.day.toordinal()
        around = sorted([by_day[near] for near in range(day - 3, day + 4) if near in by_day])
        distance = point.log_value - _middle(around)
        distances.setdefault(point.day.weekday(), []).append(distance)
    return {
        weekday: median(found)
        for weekday, found in distances.items()
        if len(found) >= SAME_WEEKDAYS_MIN
    }
