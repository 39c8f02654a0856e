"""The arena: a fluid queue in whole minutes, and the cost by which everybody in it is judged.

Minute ``t`` goes like this, in this order:

1. What was ordered for minute ``t`` is there: ``n_t`` instances, which stay the whole minute.
2. ``a_t`` items come; ``min(backlog, μ·n_t)`` are served, the oldest first; ``q_t`` are left.
3. The samples ``q_t`` and ``n_t`` are taken, and whoever scales may give an order.

More instances come ``D`` minutes after the minute whose samples led to the order: for ``t + D``,
and never before ``t + 1``. Fewer instances are fewer from ``t + 1`` on. Orders are absolute, and
the last one counts: it takes back what it does not want, and instances that are on their way and
that it still wants come when they were due (as Azure finishes an operation before it begins the
next): these rules are those of ``local.demo.fluid_queue``. Its queue is exact at any time, for it
remembers when what waits came; here one number a minute is enough, and many times as fast. With
``superseding="restart"`` a new order for more instances makes all that are on their way start
again.

    J = Σ n_t + κ·Σ |n_t - n_{t-1}| + P·Σ late_t          in instance-minutes

``late_t`` is the work (items / μ) that at the end of minute ``t`` has waited for more than ``L``
minutes: ``max(0, q_t - (a_{t-L+1} + … + a_t)) / μ``.
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
    """The rules of the game. Everything but the arrivals."""

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
    """True where the rules are told neither the instance rate nor the dead time."""
    finished_counted: bool = False
    """True where finished items are counted even if the rules declare no metric for that."""
    backlog_metric: str | None = None
    """The only metric that sees the backlog; None: each that counts waiting items does."""

    def __post_init__(self) -> None:
        _at_least("instance rate", self.instance_rate, 1e-9)
        _at_least("dead time", self.dead_time_minutes, 0)
        _at_least("age limit", self.age_limit_minutes, 1)
        _at_least("switch cost", self.switch_cost, 0)
        _at_least("late penalty", self.late_penalty, 0)
        _at_least("minimum of instances", self.min_instances, 1)
        _at_least("maximum of instances", self.max_instances, self.min_instances)


def _at_least(name: str, value: float, bound: float) -> None:
    if not (math.isfinite(value) and value >= bound):
        raise BadArena(f"the {name} is {value:g}: it must be at least {bound:g}")


def usual_rate(arrivals: Floats) -> float:
    """μ such that the 99.9th percentile minute needs 14 instances. Raises BadArena."""
    busy = float(np.percentile(arrivals, 99.9)) if len(arrivals) else 0.0
    if busy <= 0:
        raise BadArena(
            "the 99.9th percentile minute of the trace has no arrivals, so no rate can be told "
            "from it; give --instance-rate, the items that one instance serves a minute"
        )
    return busy / BUSY_MINUTE_INSTANCES


class Plan:
    """The instances there are, and those that were ordered and are on their way."""

    __slots__ = ("_arena", "_ordered", "capacity")

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.capacity = arena.min_instances
        self._ordered = Capacity(arena.min_instances)

    @property
    def ordered(self) -> int:
        return self._ordered.ordered

    def order(self, wanted: int, minute: int) -> None:
        """At the end of ``minute``. Absolute: the same order again changes nothing."""
        if wanted == self.ordered:
            return
        restart, ordered = self._arena.superseding == "restart", self._ordered
        if restart or wanted <= self.capacity:  # what this minute gave back is still there
            ordered = Capacity(self.capacity, () if restart else ordered.pending)
        self._ordered = ordered.order(wanted, minute, max(1, self._arena.dead_time_minutes))

    def set_by_hand(self, capacity: int) -> None:
        """A person's change is there at once; what was on its way before does not come any more."""
        self.capacity, self._ordered = capacity, Capacity(capacity)

    def begin(self, minute: int) -> bool:
        """What is due for ``minute`` is there; True where that changed the capacity."""
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
        """Pass one minute; answers the backlog that is left."""
        waiting, served = self.backlog + arrivals, self._rate * capacity
        self.backlog = waiting - served if waiting > served else 0.0
        self.finished = waiting - self.backlog
        return self.backlog


def as_schedule(capacities: Sequence[int]) -> Schedule:
    return np.asarray(capacities, dtype=np.int64)
