"""The arena: a fluid queue in whole minutes, and the cost function that judges every schedule.

Minute ``t`` has these steps:

1. Instances that are due for minute ``t`` start: ``n_t`` instances work for the whole minute.
2. ``a_t`` items arrive. ``min(backlog, μ·n_t)`` items are served, the oldest first. ``q_t`` remain.
3. The samples ``q_t`` and ``n_t`` are taken, and the scaler may order a capacity.

Additional instances start ``D`` minutes after the minute whose samples led to the order: in ``t +
D``, and never before ``t + 1``. Scale-in takes effect in ``t + 1``. An order is an absolute number,
and the last one wins. It cancels pending instances above its number; the others start when they
were due, because Azure finishes an operation before it begins the next. These rules are those of
``local.demo.fluid_queue``. That queue is exact at any time, because it records when items arrived;
here, one number a minute is enough, and many times faster. With ``superseding="restart"``, an order
for more instances restarts the start-up time of all pending ones.

    J = Σ n_t + κ·Σ |n_t - n_{t-1}| + P·Σ late_t          in instance-minutes

``late_t`` is the work (items / μ) that has waited for more than ``L`` minutes at the end of minute
``t``: ``max(0, q_t - (a_{t-L+1} + … + a_t)) / μ``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from backtest.errors import BadArena
from local.demo.fluid_queue import Capacity
from local.demo.workload import BUSY_MINUTE_INSTANCES

Floats = NDArray[np.float64]
Schedule = NDArray[np.int64]

Superseding = Literal["keep", "restart"]


@dataclass(frozen=True, slots=True)
class Arena:
    """All parameters of a replay except the arrivals. Times are in minutes."""

    instance_rate: float
    """μ: items that one instance serves in a minute."""
    dead_time_minutes: int = 3
    age_limit_minutes: int = 5
    switch_cost: float = 2
    late_penalty: float = 10
    min_instances: int = 1
    max_instances: int = 20
    superseding: Superseding = "keep"
    service_learned: bool = False
    """True if the rules are told neither the instance rate nor the start-up time."""
    finished_counted: bool = False
    """True if finished items are counted even when the rules declare no metric for them."""
    backlog_metric: str | None = None
    """The only metric that sees the backlog. None: every metric that counts waiting items."""
    cpu: bool = False
    """True if the work is CPU time in instance-minutes, not items."""
    start_instances: int | None = None
    """The instances at the beginning. None: the minimum."""

    def __post_init__(self) -> None:
        _at_least("instance rate", self.instance_rate, 1e-9)
        _at_least("start-up time", self.dead_time_minutes, 0)
        _at_least("age limit", self.age_limit_minutes, 1)
        _at_least("switch cost", self.switch_cost, 0)
        _at_least("late penalty", self.late_penalty, 0)
        _at_least("minimum of instances", self.min_instances, 1)
        _at_least("maximum of instances", self.max_instances, self.min_instances)


def _at_least(name: str, value: float, bound: float) -> None:
    if not (math.isfinite(value) and value >= bound):
        raise BadArena(f"the {name} is {value:g}; it must be at least {bound:g}")


def usual_rate(arrivals: Floats) -> float:
    """μ for which the 99.9th-percentile minute needs 14 instances. Raises BadArena."""
    busy = float(np.percentile(arrivals, 99.9)) if len(arrivals) else 0.0
    if busy <= 0:
        raise BadArena(
            "the 99.9th-percentile minute of the trace has no arrivals, so the instance rate "
            "cannot be derived. Give --instance-rate, the items that one instance serves a minute."
        )
    return busy / BUSY_MINUTE_INSTANCES


class Plan:
    """The instances that work, and those that were ordered and are still starting."""

    __slots__ = ("_ordered", "arena", "capacity")

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.capacity = arena.start_instances or arena.min_instances
        self._ordered = Capacity(self.capacity)

    @property
    def ordered(self) -> int:
        return self._ordered.ordered

    def order(self, capacity: int, minute: int) -> None:
        """Order a capacity at the end of ``minute``. Repeating an order changes nothing."""
        if capacity == self.ordered:
            return
        restart, ordered = self.arena.superseding == "restart", self._ordered
        if restart or capacity <= self.capacity:  # Scale-in takes effect next minute.
            ordered = Capacity(self.capacity, () if restart else ordered.pending)
        self._ordered = ordered.order(capacity, minute, max(1, self.arena.dead_time_minutes))

    def set_by_hand(self, capacity: int) -> None:
        """Apply a manual change at once. Pending instances are canceled."""
        self.capacity, self._ordered = capacity, Capacity(capacity)

    def begin(self, minute: int) -> bool:
        """Start what is due for ``minute``. Return whether that changed the capacity."""
        before = self.capacity
        if self._ordered.pending:
            self._ordered = self._ordered.at(minute)
        self.capacity = self._ordered.effective
        return self.capacity != before


class Queue:
    """The backlog, minute by minute."""

    __slots__ = ("_rate", "backlog", "finished")

    def __init__(self, arena: Arena) -> None:
        self._rate = arena.instance_rate
        self.backlog = 0.0
        self.finished = 0.0

    def serve(self, arrivals: float, capacity: int) -> float:
        """Serve one minute and return the remaining backlog."""
        waiting, served = self.backlog + arrivals, self._rate * capacity
        self.backlog = waiting - served if waiting > served else 0.0
        self.finished = waiting - self.backlog
        return self.backlog


def as_schedule(capacities: Sequence[int]) -> Schedule:
    return np.asarray(capacities, dtype=np.int64)
