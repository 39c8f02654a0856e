"""What a day's figure should be, from the same weekdays before and the present level.

Medians and median absolute deviations throughout, so that a bad day or week in the history moves
nothing. Figures are logarithms: weekdays, growth and loss multiply.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from statistics import median

MEMORY_DAYS = 70
LEVEL_DAYS = 7
DAYS_MIN = 21
SAME_WEEKDAYS_MIN = 3
SPREAD_MIN = 0.015
"""No series is steadier than that from day to day; it guards against a history that looks so."""
SIGMA_PER_MAD = 1.4826


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


def expect(history: Sequence[Point], day: date) -> Expectation | None:
    """None where there is too little history. Points may come in any order and have gaps.

    1. The effect of each weekday: median distance from the median of the week around.
    2. The level: median of the last seven days, freed of their effects.
    3. The spread: median absolute error of having forecast the history the same way, which knew
       the effects beforehand and so looks too good in a short history.
    """
    since = day - timedelta(days=MEMORY_DAYS)
    points = sorted([p for p in history if since <= p.day < day], key=lambda p: p.day)
    effects = _weekday_effects(points)
    freed = [p.log_value - effects[p.day.weekday()] for p in points if p.day.weekday() in effects]
    if len(freed) < DAYS_MIN or day.weekday() not in effects:
        return None
    errors = [
        abs(freed[i] - median(freed[i - LEVEL_DAYS : i])) for i in range(LEVEL_DAYS, len(freed))
    ]
    usual_variance = median([p.variance for p in points[-LEVEL_DAYS:]])
    fitted = SIGMA_PER_MAD * median(errors) * _overfit(len(freed))
    spread = max(fitted, SPREAD_MIN, math.sqrt(usual_variance))
    level = median(freed[-LEVEL_DAYS:])
    return Expectation(level + effects[day.weekday()], spread, usual_variance)


def _overfit(days: int) -> float:
    """How much further forecasts err than the errors of the fit let think.

    Seven effects fitted to n days: errors look √((n-7)/n) as large, forecasts err √((n+7)/n). The
    median of the n - 7 errors is itself unsure; 3/(n-7) makes up for what that costs in tails,
    found by simulation.
    """
    return math.sqrt((days + 7) / (days - 7)) * (1 + 3 / (days - 7))


def _weekday_effects(points: Sequence[Point]) -> dict[int, float]:
    """By Monday = 0; a weekday that was seen too seldom has none."""
    by_day = {p.day: p.log_value for p in points}
    week = [timedelta(days=offset) for offset in range(-3, 4)]
    distances: dict[int, list[float]] = {}
    for point in points:
        around = [by_day[point.day + offset] for offset in week if point.day + offset in by_day]
        distance = point.log_value - median(around)
        distances.setdefault(point.day.weekday(), []).append(distance)
    return {
        weekday: median(found)
        for weekday, found in distances.items()
        if len(found) >= SAME_WEEKDAYS_MIN
    }
