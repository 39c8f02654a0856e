"""A certified lower bound: no schedule whatsoever costs less on the trace.

The problem with fractions of instances is a linear program. It is cut in time into windows, at
minutes of little load; the backlog and the capacity of one window's end need not fit the next
one's start. Dropping such a constraint only lowers the optimum. So that it lowers it little, work
left at a cut is charged and work not inherited is credited at the cut's price: the terms cancel
for every schedule that does fit, so each price gives a valid bound (Lagrangian relaxation; Fisher
1981, "The Lagrangian relaxation method for solving integer programming problems").

The solver's word is not taken for it. From its dual values y, clipped to the right sign, each
window's bound is computed anew as  b·y + Σ_j min over x_j in [l_j, u_j] of (c - Aᵀy)_j·x_j,  which
holds for whatever y, because every variable has finite bounds (Neumaier and Shcherbina 2004, "Safe
bounds in linear and mixed-integer linear programming"). What is left is the rounding of sums,
for which ``ROUNDING`` is taken off.

Per window, work in instance-minutes, with w_t the work that came from the window's start to the
end of minute t, and s_t the part of it that is done by then:

    minimise    Σ n_t + κ·Σ (up_t + down_t) + P·Σ late_t + (w_end - s_end) + s_start
    subject to  s_t - s_{t-1} ≤ n_t,   n_t - n_{t-1} = up_t - down_t,   late_t ≥ w_{t-L} - s_t
                s_t ≤ w_t,   minimum ≤ n_t ≤ maximum

s_start is the (negative) work that the window inherits; the price is 1, for each piece of work has
to be done by some instance some time. Measured on 28 days (NASA, August 1995): cuts every 4 days
cost 0.003 % of the bound against cuts every 8, cuts every 12 hours 0.05 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from backtest.arena import Arena, Floats
from backtest.progress import ignore

ROUNDING = 1e-9
"""Of the bound, relative: sums of 10⁵ doubles of like size err by less than 10⁻¹¹."""

WINDOW_MINUTES = 5760
CUT_SEARCH_MINUTES = 720
"""A cut goes to the quietest place this near to where the window's length would have it."""


@dataclass(frozen=True, slots=True)
class _Window:
    """Minutes ``start`` to ``end``, the end not included."""

    start: int
    end: int
    minutes: int
    """Of the whole trace."""

    @property
    def length(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class _Program:
    """minimise c·x subject to upper·x ≤ upper_side, equal·x = 0, low ≤ x ≤ high; plus constant.

    x holds, for each minute: n, s, late, up, down; and at the end s_start.
    """

    cost: Floats
    upper: sparse.csr_array
    upper_side: Floats
    equal: sparse.csr_array
    low: Floats
    high: Floats
    constant: float


def lower_bound(arena: Arena, arrivals: Floats, progress: Callable[[int], None] = ignore) -> float:
    """J_lp: at most the cost of every schedule in the arena. ``progress`` hears of minutes done."""
    done = np.concatenate(([0.0], np.cumsum(arrivals / arena.instance_rate)))
    total = 0.0
    for window in _windows(arena, done):
        total += _dual_bound(_program(arena, done, window))
        progress(window.length)
    return total - abs(total) * ROUNDING


def _windows(arena: Arena, done: Floats) -> Iterator[_Window]:
    """Cuts lie where little work came in the last ``L`` minutes: there little can be waiting."""
    minutes, start = len(done) - 1, 0
    while start < minutes:
        end, aim = minutes, start + WINDOW_MINUTES
        if aim + WINDOW_MINUTES / 2 < minutes:
            near = np.arange(aim - CUT_SEARCH_MINUTES, aim + CUT_SEARCH_MINUTES)
            end = int(near[np.argmin(done[near] - done[near - arena.age_limit_minutes])])
        yield _Window(start, end, minutes)
        start = end


def _program(arena: Arena, done: Floats, window: _Window) -> _Program:
    length, before = window.length, done[window.start]
    work = done[window.start + 1 : window.end + 1] - before
    old = done[np.maximum(np.arange(1, length + 1) + window.start - arena.age_limit_minutes, 0)]
    once = sparse.eye_array(length, format="csr")
    change = sparse.diags_array([np.ones(length), -np.ones(length - 1)], offsets=[0, -1])
    none, start = sparse.csr_array((length, length)), sparse.csr_array((length, 1))
    start_once = sparse.csr_array(([-1.0], ([0], [0])), shape=(length, 1))
    served = sparse.hstack([-once, change, none, none, none, start_once])
    in_time = sparse.hstack([none, -once, -once, none, none, start])
    changes = sparse.hstack([change, none, none, -once, once, start]).tocsr()[1:]
    low, high = _bounds(arena, work, before)
    return _Program(
        cost=_cost(arena, window),
        upper=sparse.vstack([served, in_time]).tocsr(),
        upper_side=np.concatenate((np.zeros(length), before - old)),
        equal=changes,
        low=low,
        high=high,
        constant=float(work[-1]) if window.end < window.minutes else 0.0,
    )


def _cost(arena: Arena, window: _Window) -> Floats:
    length = window.length
    kinds = (1.0, 0.0, arena.late_penalty, arena.switch_cost, arena.switch_cost)
    cost = np.append(np.repeat(kinds, length), 1.0)
    cost[2 * length - 1] -= 1.0 if window.end < window.minutes else 0.0
    return cost


def _bounds(arena: Arena, work: Floats, before: float) -> tuple[Floats, Floats]:
    """Wide enough for every schedule: nobody inherits more than all the work there was before."""
    length, few, many = len(work), arena.min_instances, arena.max_instances
    counts = np.full(5, length)
    low = np.append(np.repeat((few, -before, 0.0, 0.0, 0.0), counts), -before)
    high = np.append(np.repeat((many, 0.0, work[-1] + before, many - few, many - few), counts), 0.0)
    high[length : 2 * length] = work
    return low, high


def _dual_bound(program: _Program) -> float:
    """The bound that the solver's dual values prove; with poor ones a poor bound, never a wrong."""
    solution = linprog(
        program.cost,
        A_ub=program.upper,
        b_ub=program.upper_side,
        A_eq=program.equal,
        b_eq=np.zeros(program.equal.shape[0]),
        bounds=np.column_stack((program.low, program.high)),
        method="highs-ds",
    )
    y = np.zeros(program.upper.shape[0])
    z = np.zeros(program.equal.shape[0])
    if solution.ineqlin.marginals is not None:
        y, z = np.minimum(solution.ineqlin.marginals, 0.0), solution.eqlin.marginals
    reduced = program.cost - program.upper.T @ y - program.equal.T @ z
    least = np.minimum(reduced * program.low, reduced * program.high)
    return float(program.upper_side @ y + least.sum()) + program.constant
