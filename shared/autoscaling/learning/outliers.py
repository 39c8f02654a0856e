"""Finds outliers among observations, so that they do not spoil what was learned. Pure.

An observation is an outlier if its ratio part / whole exceeds a limit: the median of the last
ratios plus nine median absolute deviations, but at least twice and at most ten times the median.
There is no lower limit, because a count of zero is valid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

Pair = tuple[float, float]
"""An observation: the items finished in an interval, and the instance-minutes (not 0)."""
RECENT_MAX = 120
"""The number of observations that are kept."""
JUDGED_MIN, JUDGED_MAX = 3, 15
"""The limit needs at least so many observations, and uses the last ones, so that a new rate is
believed soon."""
DEVIATIONS_MAX = 9
TIMES_MIN, TIMES_MAX = 2, 10
PART_MAX, WHOLE_MIN = 1e18, 1e-6
"""An observation with a larger part or a smaller whole is an outlier: squares could be infinite."""


def believable(recent: Sequence[Pair]) -> Sequence[Pair]:
    """The observations that are not outliers."""
    limit = _limit(recent[-JUDGED_MAX:])
    return [
        (part, whole)
        for part, whole in recent
        if whole >= WHOLE_MIN and abs(part) <= min(limit * whole, PART_MAX)
    ]


def _limit(pairs: Sequence[Pair]) -> float:
    # Zeros do not show how large other ratios may be.
    ratios = [abs(part / whole) for part, whole in pairs if part and whole >= WHOLE_MIN]
    if len(ratios) < JUDGED_MIN:
        return math.inf
    usual = median(ratios)
    deviation = median([abs(ratio - usual) for ratio in ratios])
    return min(max(usual + DEVIATIONS_MAX * deviation, TIMES_MIN * usual), TIMES_MAX * usual)
