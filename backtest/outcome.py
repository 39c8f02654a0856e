"""The exact cost of any schedule of instances on a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from backtest.arena import Arena, Floats, Schedule
from backtest.world import deliveries, world_of

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
    actions_an_hour_max: int


@dataclass(frozen=True, slots=True)
class Course:
    """A schedule, step by step, and its effects at the end of each minute. Work is in items."""

    capacity: Schedule
    backlog: Floats
    age_minutes: Floats
    late_work: Floats

    @property
    def steps_per_minute(self) -> int:
        return len(self.capacity) // len(self.backlog)

    @property
    def by_minute(self) -> Floats:
        """The mean capacity of each minute."""
        return np.asarray(self.capacity.reshape(-1, self.steps_per_minute).mean(axis=1))

    def score(self, arena: Arena) -> Score:
        changes, steps = np.diff(self.capacity), self.steps_per_minute
        instance_minutes = float(self.capacity.sum()) / steps
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
            reversals=_reversals(changes, steps),
            actions_an_hour_max=_most_within(np.flatnonzero(changes), 60 * steps),
        )


def course(arena: Arena, arrivals: Floats, capacity: Schedule) -> Course:
    """Replay a schedule in the arena, in the schedule's own steps."""
    steps = len(capacity) // len(arrivals)
    world = world_of(arena, arrivals, steps)
    backlog = backlogs(world.work, capacity, world.served)[steps - 1 :: steps]
    return course_with(arena, arrivals, capacity, backlog)


def course_with(arena: Arena, arrivals: Floats, capacity: Schedule, backlog: Floats) -> Course:
    """The course of a schedule whose backlog at the end of each minute is known."""
    arrived = np.concatenate(([0.0], np.cumsum(deliveries(arena, arrivals))))
    served = np.maximum(arrived[1:] - backlog, 0.0)
    return Course(
        capacity=capacity,
        backlog=backlog,
        age_minutes=_ages(arrived, served, backlog),
        late_work=_late_work(arena, arrived, backlog),
    )


@njit(cache=True)
def backlogs(arrivals: Floats, capacity: Schedule, rates: Floats) -> Floats:
    """The backlog at the end of each step."""
    left = np.empty(len(arrivals))
    backlog = 0.0
    for t in range(len(arrivals)):
        waiting, served = backlog + arrivals[t], rates[t] * capacity[t]
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


def _most_within(times: Schedule, span: int) -> int:
    """The most of these times within a span. The times are sorted."""
    ends = np.searchsorted(times, times + span)
    return int((ends - np.arange(len(times))).max(initial=0))


def _reversals(changes: Schedule, steps: int) -> int:
    at = np.flatnonzero(changes)
    turned = np.sign(changes[at[1:]]) != np.sign(changes[at[:-1]])
    return int((turned & (np.diff(at) <= REVERSAL_MINUTES * steps)).sum())
