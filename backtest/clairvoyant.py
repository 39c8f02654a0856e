"""The best schedule for somebody who knows the whole trace: a dynamic program, then a replay.

The clairvoyant orders ahead, so the dead time does not exist for it, and it chooses the capacity
of the first minute freely. Within its table the program is exact; what it costs is then played in
the same arena as everybody's schedule, so J_dp is the cost of a schedule that really exists.
"""

from __future__ import annotations

import math

import numpy as np

from backtest.arena import Arena, Floats, Schedule
from backtest.kernels import Problem, optimum

CELLS_PER_INSTANCE_MAX = 16
"""Finer cells than this change the schedule's cost by less than the gap to the bound shows."""

STATES_MAX = 400_000_000
"""Table entries over all minutes, about two seconds for every hundred million; sets the cells."""

LATE_MINUTES_MAX = 50


def clairvoyant(arena: Arena, arrivals: Floats) -> Schedule:
    """The number of instances for each minute."""
    if arena.late_penalty == 0:
        return np.full(len(arrivals), arena.min_instances)
    for cells in range(CELLS_PER_INSTANCE_MAX, 1, -1):
        problem = _problem(arena, arrivals, cells)
        if int((problem.width + 1).sum()) * problem.options <= STATES_MAX:
            return optimum(problem)
    return optimum(_problem(arena, arrivals, 1))


def _problem(arena: Arena, arrivals: Floats, cells: int) -> Problem:
    """Work rounded so that its sum is never more than a cell behind: nothing drifts.

    The late work is that of the true arrivals. A backlog of zero is never late: where less than a
    cell comes in ``L`` minutes, rounding alone would call it so.
    """
    arrived = np.cumsum(arrivals) * (cells / arena.instance_rate)
    whole = np.floor(arrived + 1e-9).astype(np.int64)
    age_limit = min(arena.age_limit_minutes, len(arrived))
    old = np.concatenate((np.zeros(age_limit), arrived[:-age_limit]))
    fresh = np.maximum(whole - old, 0.0)
    work = np.diff(whole, prepend=0)
    floor = _floor(work, cells * arena.max_instances)
    margin = cells * _late_instances(arena)
    return Problem(
        work=work,
        fresh=fresh,
        floor=floor,
        width=np.maximum(np.ceil(fresh).astype(np.int64) - floor, 0) + margin,
        cells=cells,
        late_cost=arena.late_penalty / cells,
        switch_cost=arena.switch_cost,
        min_instances=arena.min_instances,
        options=arena.max_instances - arena.min_instances + 1,
        stride=max(16, math.isqrt(len(work))),
    )


def _floor(work: Schedule, served: int) -> Schedule:
    """The backlog with all instances at all times: max(0, backlog + work - served), unrolled."""
    balance = np.cumsum(work - served)
    return balance - np.minimum(np.minimum.accumulate(balance), 0)


def _late_instances(arena: Arena) -> int:
    """How much avoidable late work (instance-minutes) the table has room for.

    One more instance for one minute costs at most 1 + 2κ and saves P for each minute that an
    instance-minute of work would go on being late. So where an instance can still be had, such
    work is late for at most (1 + 2κ)/P minutes, rounded up; in each of them the plan's full size
    may be missing. With next to no penalty that is cut short, and the schedule may cost more.
    """
    late_minutes = (1 + 2 * arena.switch_cost) / arena.late_penalty
    return arena.max_instances * math.ceil(min(late_minutes, LATE_MINUTES_MAX))
