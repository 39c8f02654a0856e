"""Finds the levels of a metric at which a decision would change. ``outcome`` is the decision at a
level, or None if it is the actual one."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import floor

Outcome = Callable[[float], int | None]

STRIDES_MAX = 10
STRIDE = 4.0
"""The search multiplies and divides the present level by 4, 16, 64 and so on, and then tries 0."""
HALVINGS = 8
"""How many times a stride is bisected. Eight bisections find the level to about half a percent."""
BEYOND = 1e-6
"""A level is named only if the decision is another one just beyond it, by this share of it."""


@dataclass(frozen=True, slots=True)
class TurningLevel:
    """The level, the side of it on which the decision is another one, and that decision.
    ``distance`` is that from the present level, as a share of it."""

    sign: str
    level: float
    decided: int
    distance: float = 0.0

    def __str__(self) -> str:
        return f"{self.sign} {self.level:.15g}"


def turning_levels(
    outcome: Outcome, level: float, highest: float, *, whole: bool
) -> Iterator[TurningLevel]:
    """The nearest turning levels below and above ``level`` that can occur: from 0, below
    ``highest``, and whole numbers if the metric has no others."""
    directions = [] if level == 0 or outcome(0.0) is None else [_downwards(level, whole=whole)]
    for strides in (*directions, [max(level, 1.0) * each for each in FACTORS]):
        near = level
        for far in strides:
            if outcome(far) is not None:
                closest = _bisected(outcome, near, far, whole=whole)
                if found := _named(outcome, *closest, highest, whole=whole):
                    yield replace(found, distance=abs(found.level - level) / (level or 1.0))
                break
            near = far


FACTORS = [STRIDE**stride for stride in range(1, STRIDES_MAX + 1)]


def _downwards(level: float, *, whole: bool) -> list[float]:
    levels = [level / factor for factor in FACTORS]
    return [*(map(float, map(floor, levels)) if whole else levels), 0.0]


def _bisected(outcome: Outcome, near: float, far: float, *, whole: bool) -> tuple[float, float]:
    """Two levels closer together. At the first one, the decision is still the actual one."""
    for _ in range(HALVINGS):
        middle = (near * far) ** 0.5 if near > 0 and far > 0 else (near + far) / 2
        middle = float(round(middle)) if whole else middle
        if middle in (near, far):
            break
        near, far = (middle, far) if outcome(middle) is None else (near, middle)
    return near, far


def _named(
    outcome: Outcome, near: float, far: float, highest: float, *, whole: bool
) -> TurningLevel | None:
    """The roundest level beyond which the decision is another one; None if there is none."""
    below = far < near
    for level in _round_levels(near, far):
        if level >= highest and not below:
            continue
        if below and level <= (1 if whole else 0):
            decided = outcome(0.0)
            return None if decided is None else TurningLevel("=", 0.0, decided)
        decided = outcome(level * (1 - BEYOND) if below else level + (level or 1.0) * BEYOND)
        if decided is not None:
            return TurningLevel("<" if below else ">", level, decided)
    decided = outcome(highest) if whole and near == highest - 1 else None
    return None if decided is None else TurningLevel(">", near, decided)


def _round_levels(near: float, far: float) -> Iterator[float]:
    """Levels between the two with one to three digits, and then levels a little beyond ``far``."""
    onwards, back = decimal.ROUND_CEILING, decimal.ROUND_FLOOR
    if far < near:
        onwards, back = back, onwards
    for digits in (1, 2, 3):
        for level in (_rounded(near, digits, onwards), _rounded(far, digits, back)):
            if min(near, far) <= level <= max(near, far):
                yield level
    yield from (_rounded(far, digits, onwards) for digits in (3, 6, 15))


def _rounded(value: float, digits: int, rounding: str) -> float:
    context = decimal.Context(prec=digits, rounding=rounding)
    return float(context.create_decimal(repr(value)))
