"""The best schedule for a planner that knows the whole trace: a dynamic program, then a replay.

The planner orders ahead, so the start-up time does not affect it, and it chooses the capacity of
the first minute freely. Within its table, the program is exact. Its schedule is then replayed in
the same arena as every other schedule, so J_dp is the cost of a schedule that really exists.

The program runs backwards, compiled by numba. Time is in minutes. Work is in whole cells of
``1/cells`` instance-minutes, so that transitions are exact integers:

    backlog' = max(0, backlog + work[t] - served[t, n])

served[t, n] is cells·n, unless the rate of an instance varies: then it is rounded so that the sum
over the minutes in which n does not change errs by less than a cell.

The state is the backlog above the minimum that any schedule could have (``floor[t]``, with all
instances at all times), so that overload does not need a larger table.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from backtest.arena import Arena, Floats, Schedule
from backtest.world import deliveries, speed

CELLS_PER_INSTANCE_MAX = 16
"""Finer cells change the cost of the schedule by less than its gap to the lower bound."""

STATES_MAX = 400_000_000
"""Table entries over all minutes: about two seconds for 100 million. Limits the cells."""

LATE_MINUTES_MAX = 50


def clairvoyant(arena: Arena, arrivals: Floats) -> Schedule:
    """The best number of instances for each minute. It knows how the rate varies."""
    arrivals = deliveries(arena, arrivals)
    if arena.late_penalty == 0:
        return np.full(len(arrivals), arena.min_instances)
    for cells in range(CELLS_PER_INSTANCE_MAX, 1, -1):
        problem = _problem(arena, arrivals, cells)
        if int((problem.width + 1).sum()) * problem.options <= STATES_MAX:
            return optimum(problem)
    return optimum(_problem(arena, arrivals, 1))


def _problem(arena: Arena, arrivals: Floats, cells: int) -> Problem:
    """Round work so that its sum is never more than a cell behind; rounding does not accumulate.

    Late work is computed from the true arrivals. A backlog of zero is never late: if less than a
    cell arrives in ``L`` minutes, rounding alone would make it late.
    """
    arrived = np.cumsum(arrivals) * (cells / arena.instance_rate)
    whole = np.floor(arrived + 1e-9).astype(np.int64)
    age_limit = min(arena.age_limit_minutes, len(arrived))
    old = np.concatenate((np.zeros(age_limit), arrived[:-age_limit]))
    fresh = np.maximum(whole - old, 0.0)
    work = np.diff(whole, prepend=0)
    pace = speed(arena, len(arrivals))
    options = np.arange(arena.min_instances, arena.max_instances + 1)
    could = np.floor(np.outer(np.cumsum(pace), cells * options) + 1e-9).astype(np.int64)
    served = np.diff(could, axis=0, prepend=0)
    floor = _floor(work, served[:, -1])
    margin = cells * _late_instances(arena, float(pace[pace > 0].min(initial=1)))
    return Problem(
        work=work,
        fresh=fresh,
        floor=floor,
        width=np.maximum(np.ceil(fresh).astype(np.int64) - floor, 0) + margin,
        served=served,
        late_cost=arena.late_penalty / cells,
        switch_cost=arena.switch_cost,
        min_instances=arena.min_instances,
        options=len(options),
        stride=max(16, math.isqrt(len(work))),
    )


def _floor(work: Schedule, served: Schedule) -> Schedule:
    """The backlog with all instances at all times: max(0, backlog + work - served), unrolled."""
    balance = np.cumsum(work - served)
    return balance - np.minimum(np.minimum.accumulate(balance), 0)


def _late_instances(arena: Arena, pace: float) -> int:
    """How much avoidable late work (instance-minutes) the table has room for.

    One more instance for one minute costs at most 1 + 2κ, and saves P for each minute that an
    instance-minute of work would remain late; at a lower pace, it saves less. While an instance is
    available, such work is therefore late for at most (1 + 2κ)/P minutes, rounded up, and in each
    of them up to the full size of the plan may be missing. With a very small penalty, this margin
    is cut short, and the schedule may cost more.
    """
    late_minutes = (1 + 2 * arena.switch_cost) / (arena.late_penalty * pace)
    return arena.max_instances * math.ceil(min(late_minutes, LATE_MINUTES_MAX))


class Problem(NamedTuple):
    """The input of ``optimum``. A named tuple, because numba does not support dataclasses."""

    work: Schedule
    """Cells that arrive in each minute."""
    fresh: Floats
    """The backlog, in cells, that is not late at the end of each minute."""
    floor: Schedule
    """The lowest possible backlog at the end of each minute, in cells."""
    width: Schedule
    """How far the backlog may be above the floor, in cells."""
    served: Schedule
    """Cells that are served in each minute, by number of instances."""
    late_cost: float
    """The cost of one late cell for a minute."""
    switch_cost: float
    min_instances: int
    options: int
    """The number of capacities to choose from, starting with min_instances."""
    stride: int
    """Minutes between two checkpoints."""


@njit(cache=True)
def _sweep(
    wish: Floats, switch_cost: float, value: Floats, choice: NDArray[np.uint8]
) -> None:  # numba writes results in place
    """For each n: the minimum of wish[m] + switch_cost·|m - n|, and its m, in two passes."""
    count = len(wish)
    best, at = wish[0], 0
    for n in range(count):
        best += switch_cost
        if wish[n] <= best:
            best, at = wish[n], n
        value[n], choice[n] = best, at
    best, at = wish[count - 1], count - 1
    for n in range(count - 1, -1, -1):
        best += switch_cost
        if wish[n] <= best:
            best, at = wish[n], n
        if best < value[n]:
            value[n], choice[n] = best, at


@njit(cache=True)
def _wishes(
    backlog: int,
    t: int,
    later: Floats,
    problem: Problem,
    wish: Floats,
) -> None:
    """The cost from minute ``t`` to the end, for each number of instances in minute ``t``."""
    least, width = problem.floor[t], problem.width[t]
    fresh, late_cost = problem.fresh[t], problem.late_cost
    left = backlog + problem.work[t]
    for k in range(len(wish)):
        now = max(left - problem.served[t, k], 0)
        above = now - least
        if above > width:
            wish[k] = np.inf
        else:
            cost = problem.min_instances + k + late_cost * max(now - fresh, 0.0)
            wish[k] = cost + later[above, k]


@njit(cache=True)
def _step_back(
    t: int, later: Floats, problem: Problem, value: Floats, choice: NDArray[np.uint8]
) -> None:
    """Compute values and choices at the start of minute ``t`` from the values at its end."""
    wish = np.empty(value.shape[1])
    least = problem.floor[t - 1] if t else 0
    for above in range(problem.width[t - 1] + 1 if t else 1):
        _wishes(least + above, t, later, problem, wish)
        _sweep(wish, problem.switch_cost, value[above], choice[above])


@njit(cache=True)
def optimum(problem: Problem) -> Schedule:
    """The cheapest schedule in cells. Values are kept only at every ``stride``-th minute.

    1. Go backwards over all minutes and keep checkpoints. 2. Go forwards, one stretch after the
    other: go backwards over the stretch again, now keeping the choices, and then follow them.
    """
    minutes, stride = len(problem.work), problem.stride
    states = int(problem.width.max()) + 1
    stretches = (minutes + stride - 1) // stride
    kept = np.zeros((stretches + 1, states, problem.options))
    spare = np.zeros((2, states, problem.options))
    choice = np.zeros((stride, states, problem.options), dtype=np.uint8)
    for stretch in range(stretches - 1, 0, -1):
        end = min((stretch + 1) * stride, minutes)
        _stretch_back(stretch * stride, end, kept[stretch + 1], problem, spare, choice)
        kept[stretch] = spare[0]
    schedule = np.empty(minutes, dtype=np.int64)
    backlog, k = 0, -1
    for stretch in range(stretches):
        start, end = stretch * stride, min((stretch + 1) * stride, minutes)
        _stretch_back(start, end, kept[stretch + 1], problem, spare, choice)
        if stretch == 0:
            k = int(np.argmin(spare[0, 0]))
        for t in range(start, end):
            above = backlog - (problem.floor[t - 1] if t else 0)
            k = choice[t - start, above, k]
            schedule[t] = problem.min_instances + k
            backlog = max(backlog + problem.work[t] - problem.served[t, k], 0)
    return schedule


@njit(cache=True)
def _stretch_back(
    start: int,
    end: int,
    later: Floats,
    problem: Problem,
    spare: Floats,
    choice: NDArray[np.uint8],
) -> None:
    """Leave the values at the start of the stretch in ``spare[0]``, and choices in ``choice``."""
    from_row = 1
    spare[1] = later
    for t in range(end - 1, start - 1, -1):
        _step_back(t, spare[from_row], problem, spare[1 - from_row], choice[t - start])
        from_row = 1 - from_row
    if from_row != 0:
        spare[0] = spare[1]
