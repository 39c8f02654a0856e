"""The exact cost of any schedule of instances on a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from backtest.arena import Arena, Floats, Schedule

NEGLIGIBLE_WORK = 1e-6
"""Instance-minutes. Less late work than this is a rounding error of long sums."""

REVERSAL_MINUTES = 30
"""A change in the opposite direction within this time counts as a reversal."""


@dataclass(frozen=True, slots=True)
class Score:
    """The cost of a schedule and its parts. Ages are in minutes, work in instance-minutes."""

    J: float
    violation_minutes: int
    late_work: float
    age_p50: float
    age_p99: float
    age_max: float
    instance_hours: float
    actions: int
    reversals: int


@dataclass(frozen=True, slots=True)
class Course:
    """A schedule and its effects, minute by minute."""

    capacity: Schedule
    backlog: Floats
    age_minutes: Floats
    late_work: Floats

    def score(self, arena: Arena) -> Score:
        changes = np.diff(self.capacity)
        instance_minutes = float(self.capacity.sum())
        switching = arena.switch_cost * float(np.abs(changes).sum())
        late = float(self.late_work.sum())
        p50, p99 = np.percentile(self.age_minutes, (50, 99))
        return Score(
            J=instance_minutes + switching + arena.late_penalty * late,
            violation_minutes=int((self.late_work > 0).sum()),
            late_work=late,
            age_p50=float(p50),
            age_p99=float(p99),
            age_max=float(self.age_minutes.max()),
            instance_hours=instance_minutes / 60,
            actions=int((changes != 0).sum()),
            reversals=_reversals(changes),
        )


def course(arena: Arena, arrivals: Floats, capacity: Schedule) -> Course:
    """Replay a schedule in the arena."""
    backlog = backlogs(arrivals, capacity, arena.instance_rate)
    arrived = np.concatenate(([0.0], np.cumsum(arrivals)))
    served = np.maximum(arrived[1:] - backlog, 0.0)
    return Course(
        capacity=capacity,
        backlog=backlog,
        age_minutes=_ages(arrived, served, backlog),
        late_work=_late_work(arena, arrived, backlog),
    )


@njit(cache=True)
def backlogs(arrivals: Floats, capacity: Schedule, rate: float) -> Floats:
    """The backlog at the end of each minute."""
    left = np.empty(len(arrivals))
    backlog = 0.0
    for t in range(len(arrivals)):
        waiting, served = backlog + arrivals[t], rate * capacity[t]
        backlog = waiting - served if waiting > served else 0.0
        left[t] = backlog
    return left


def _late_work(arena: Arena, arrived: Floats, backlog: Floats) -> Floats:
    before = np.maximum(np.arange(1, len(arrived)) - arena.age_limit_minutes, 0)
    recent = arrived[1:] - arrived[before]
    late = np.maximum(backlog - recent, 0.0) / arena.instance_rate
    return np.where(late > NEGLIGIBLE_WORK, late, 0.0)


def _ages(arrived: Floats, served: Floats, backlog: Floats) -> Floats:
    """Minutes that the oldest item has waited at the end of each minute; 0 if none waits.

    Items arrive evenly within their minute, so an item arrives when the cumulative arrivals pass
    its number. With this definition, age > L exactly when work is late.
    """
    minutes = len(backlog)
    index = np.clip(np.searchsorted(arrived, served, side="right") - 1, 0, minutes - 1)
    within = arrived[index + 1] - arrived[index]
    share = np.divide(served - arrived[index], within, out=np.zeros(minutes), where=within > 0)
    age = np.arange(1, minutes + 1) - (index + share)
    return np.where(backlog > 0, np.maximum(age, 0.0), 0.0)


def _reversals(changes: Schedule) -> int:
    at = np.flatnonzero(changes)
    turned = np.sign(changes[at[1:]]) != np.sign(changes[at[:-1]])
    return int((turned & (np.diff(at) <= REVERSAL_MINUTES)).sum())
