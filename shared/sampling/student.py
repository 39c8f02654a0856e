"""Quantiles of Student's t at 97.5 %, for 95 % intervals of few shares."""

from __future__ import annotations

NORMAL_975 = 1.959963984540054
SMALL = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706)
"""Of 1 to 5 degrees of freedom, where the expansion is not close enough."""
ROUNDING = 1e-9
"""Whole degrees may come out of sums a little below, depending on the order of these."""


def t_975(degrees_of_freedom: float) -> float:
    """To within 0.1 % for whole degrees; between whole ones, of the next lower below 6.

    Expansion in 1/degrees around the normal quantile: Abramowitz and Stegun, 26.7.5.
    """
    if degrees_of_freedom < len(SMALL) + 1:
        return SMALL[min(max(int(degrees_of_freedom + ROUNDING), 1), len(SMALL)) - 1]
    z, v = NORMAL_975, degrees_of_freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3
