"""Finds outliers among observations, so that they do not spoil what was learned. Pure.

An observation is a pair of numbers, ``part`` and ``whole``, whose ratio varies little. For the
throughput, ``part`` is the number of items finished in an interval, and ``whole`` is the number of
instance-minutes. An outlier must not be added to the sums, because the effect of each addition
fades only slowly (see ``INTERVALS_WEIGHT`` in throughput.py). Therefore the most recent
observations are kept one by one. When a new observation replaces the oldest of them, the replaced
one is added to the sums, unless it is an outlier.

An observation is an outlier if its ratio part / whole is too far above the median of the recent
ratios. The median stays usable even if almost half of these ratios are wrong. The limit is nine
median absolute deviations above the median, but at least twice and at most ten times the median.
There is no lower limit, because a count of zero is valid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

Pair = tuple[float, float]
"""An observation: its part and its whole. The whole is not zero."""
RECENT_MAX = 15
"""The number of observations that are kept one by one."""
JUDGED_MIN = 3
"""Outliers can be recognized only among at least this many observations whose part is not zero."""
DEVIATIONS_MAX = 9
TIMES_MIN, TIMES_MAX = 2, 10
PART_MAX = 1e18
"""An observation with a larger part is an outlier, because the square of this part could make a sum
infinite.
"""


def with_recent(recent: Sequence[Pair], pair: Pair) -> tuple[tuple[Pair, ...], Sequence[Pair]]:
    """Add an observation. Returns the observations to keep one by one, and those for the sums."""
    seen = (*recent, pair)
    return seen[-RECENT_MAX:], _within(seen[:-RECENT_MAX], _limit(seen))


def believable(recent: Sequence[Pair]) -> Sequence[Pair]:
    """The observations that are not outliers."""
    return _within(recent, _limit(recent))


def contradicted(part: float, whole: float, recent: Sequence[Pair]) -> bool:
    """True if the recent observations show that the sums of earlier observations must be wrong.

    ``part`` and ``whole`` are these sums.
    """
    if not abs(part) <= PART_MAX or not abs(whole) <= PART_MAX:  # also true for NaN
        return True
    ratios = _ratios(recent)
    return len(ratios) >= JUDGED_MIN and abs(part) > TIMES_MAX * median(ratios) * abs(whole)


def _within(pairs: Iterable[Pair], limit: float) -> Sequence[Pair]:
    return [
        (part, whole)
        for part, whole in pairs
        if abs(part) <= PART_MAX and abs(part) <= limit * abs(whole)
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
    return [abs(part / whole) for part, whole in pairs if part]
