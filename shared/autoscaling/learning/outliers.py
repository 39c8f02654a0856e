"""Which of the observations that something is learned from can be believed.

An observation is a pair: a ``part`` and the ``whole`` that it grows with, such as items and the
busy minutes that they took. One that is far off must not count, for a sum never gets rid of it
again. Whether it is far off shows by the median of the last few ratios, which half of them may
miss: so the last few are kept one by one, and become part of sums as they are replaced by newer
ones. The limit is nine times the median absolute deviation above the median, but at least twice
and at most ten times the median. Nothing is too small: a count of zero is as good as any.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

Pair = tuple[float, float]
"""Part and whole; the whole is not zero."""

RECENT_MAX = 15
JUDGED_MIN = 3
"""Of so few observations that are not zero nobody can say which one is wrong."""
DEVIATIONS_MAX = 9
TIMES_MIN, TIMES_MAX = 2, 10
PART_MAX = 1e18
"""Squares of larger ones make sums infinite."""


def with_recent(recent: Sequence[Pair], pair: Pair) -> tuple[tuple[Pair, ...], Sequence[Pair]]:
    """The observations that are kept one by one now, and those that become part of sums."""
    seen = (*recent, pair)
    return seen[-RECENT_MAX:], _within(seen[:-RECENT_MAX], _limit(seen))


def believable(recent: Sequence[Pair]) -> Sequence[Pair]:
    return _within(recent, _limit(recent))


def contradicted(part: float, whole: float, recent: Sequence[Pair]) -> bool:
    """Whether sums over earlier observations cannot be right by what was observed of late."""
    if not abs(part) <= PART_MAX or not abs(whole) <= PART_MAX:  # NaN among them
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
    """Zeros say nothing of how large others may be."""
    return [abs(part / whole) for part, whole in pairs if part]
