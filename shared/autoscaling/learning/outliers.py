"""Finds outliers among observations, so that they do not spoil what was learned. Pure.

An observation is a pair of numbers, ``part`` and ``whole``, whose ratio varies little. For the
throughput, ``part`` is the number of items finished in an interval, and ``whole`` is the number of
instance-minutes. The last ``RECENT_MAX`` observations are kept.

An observation is an outlier if its ratio part / whole is too far above the median of the last
ratios. The median stays usable even if almost half of these ratios are wrong. The limit is nine
median absolute deviations above the median, but at least twice and at most ten times the median.
There is no lower limit, because a count of zero is valid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

Pair = tuple[float, float]
"""An observation: its part and its whole. The whole is not zero."""
RECENT_MAX = 120
"""The number of observations that are kept."""
JUDGED_MIN, JUDGED_MAX = 3, 15
"""Outliers can be recognized only among at least this many observations whose part is not zero. Of
more, the last ones decide, so that a new rate is believed soon.
"""
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
    ratios = _ratios(pairs)
    if len(ratios) < JUDGED_MIN:
        return math.inf
    usual = median(ratios)
    deviation = median([abs(ratio - usual) for ratio in ratios])
    return min(max(usual + DEVIATIONS_MAX * deviation, TIMES_MIN * usual), TIMES_MAX * usual)


def _ratios(pairs: Sequence[Pair]) -> list[float]:
    """The ratios of the observations. Zeros are left out, because they do not show how large other
    ratios may be.
    """
    return [abs(part / whole) for part, whole in pairs if part and whole >= WHOLE_MIN]
