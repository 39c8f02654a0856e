"""The arena: a fluid queue in equal steps, and the cost function that judges every schedule.

A step is the time between two samples, ``sample_seconds``. Step ``t`` has these parts:

1. Instances that are due for step ``t`` start: ``n_t`` instances work for the whole step.
2. ``a_t`` items arrive. What ``n_t`` instances can serve in a step is served, the oldest first.
   ``q_t`` remain.
3. The samples are taken: ``q_t``, and the number of instances that Resource Manager shows. The
   scaler may order a capacity.

Additional instances start ``D`` minutes after the beginning of the step whose samples led to the
order, and never before ``t + 1``. Scale-in takes effect in ``t + 1``. An order is an absolute
number, and the last one wins. It cancels pending instances above its number; the others start when
they were due, because Azure finishes an operation before it begins the next. These rules are those
of ``backtest.fluid_queue``. That queue is exact at any time, because it records when items
arrived; here, one number a step is enough, and many times faster. With ``superseding="restart"``,
an order for more instances restarts the start-up time of all pending ones.

In the arena ``production``, Resource Manager shows an ordered number ``confirm_seconds`` after the
order, long before the instances work, and refuses more than ``changes_per_hour`` orders. In the
arena ``kind``, a step is a minute, and Resource Manager shows an instance when it works.

    J = Σ n_t / (steps a minute) + κ·Σ |n_t - n_{t-1}| + P·Σ late_m          in instance-minutes

``late_m`` is the work (items / μ) that has waited for more than ``L`` minutes at the end of minute
``m``: what waits then, less what arrived in the last ``L`` minutes, if that is more than zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from backtest.errors import BadArena
from backtest.fluid_queue import BUSY_MINUTE_INSTANCES, Capacity
from shared.autoscaling.errors import CapacityDelayed
from shared.autoscaling.plans.answers import refusal

Floats = NDArray[np.float64]
Schedule = NDArray[np.int64]

Superseding = Literal["keep", "restart"]

ARENAS: Mapping[str, Mapping[str, Any]] = {
    "production": {"sample_seconds": 15, "confirm_seconds": 8.0, "changes_per_hour": 20},
    "kind": {"sample_seconds": 60, "confirm_seconds": None, "changes_per_hour": None},
}
PIECE_SECONDS = 30
"""The time between two pieces of a capacity that is reached in pieces."""
HOUR_SECONDS = 3600
TOO_OFTEN = "You have exceeded the maximum amount of scale changes within the past hour"
BUSY_MINUTES_INSTANCES, BUSY_MINUTES = 18, 5


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
    cpu_percent: tuple[float, float] | None = None
    """The CPU of an idle and of a busy instance, if the work is items and their CPU is known."""
    in_hand_minutes: float = 0
    """How long an instance has an item in hand, which the samples of the backlog count, too."""
    start_instances: int | None = None
    """The instances at the beginning. None: the minimum."""
    sample_seconds: int = 60
    """The time between two samples, each of which leads to a decision. A part of a minute."""
    confirm_seconds: float | None = None
    """How long after an order Resource Manager shows its number. None: until the instances work."""
    changes_per_hour: int | None = None
    """Resource Manager refuses more changes than these within an hour. None: it refuses none."""
    piece_instances: int | None = None
    """More instances are shown and start in pieces of this size. None: all of them at once."""
    variation: str = ""
    """In what the world differs from what the rules were told. See ``backtest.world``."""
    seed: int = 1
    """Decides when in its minute an item arrives, and how a variation varies."""

    def __post_init__(self) -> None:
        _at_least("instance rate", self.instance_rate, 1e-9)
        _at_least("start-up time", self.dead_time_minutes, 0)
        _at_least("age limit", self.age_limit_minutes, 1)
        _at_least("switch cost", self.switch_cost, 0)
        _at_least("late penalty", self.late_penalty, 0)
        _at_least("minimum of instances", self.min_instances, 1)
        _at_least("maximum of instances", self.max_instances, self.min_instances)
        _at_least("time between samples", self.sample_seconds, 1)
        _at_least("time until a number is shown", self.confirm_seconds or 0, 0)
        if 60 % self.sample_seconds:
            raise BadArena(
                f"the time between samples is {self.sample_seconds} s; it must divide a minute"
            )

    @property
    def steps_per_minute(self) -> int:
        return 60 // self.sample_seconds

    @property
    def told(self) -> str:
        """How the world answers the rules, for reports."""
        confirm, most = self.confirm_seconds, self.changes_per_hour
        shown = "when instances work" if confirm is None else f"after {confirm:g} s"
        limit = f", at most {most} changes an hour" if most else ""
        changed = f", variation {self.variation}" if self.variation else ""
        return f"a sample every {self.sample_seconds} s, number read {shown}{limit}{changed}"


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


def sufficient_rate(arrivals: Floats) -> float:
    """The usual rate, or a higher one for which the busiest five minutes need 18 instances.

    A plan of 20 instances can then serve the trace.
    """
    minutes = min(BUSY_MINUTES, len(arrivals))
    busiest = np.convolve(arrivals, np.full(minutes, 1 / minutes), "valid").max()
    return max(usual_rate(arrivals), float(busiest) / BUSY_MINUTES_INSTANCES)


class Plan:
    """The instances that work, those that are still starting, and the number that can be read."""

    __slots__ = ("_changed", "_ordered", "_reads", "arena", "capacity", "shown")

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.capacity = self.shown = arena.start_instances or arena.min_instances
        self._ordered = Capacity(self.capacity)
        self._reads: list[tuple[float, int]] = []
        self._changed: list[int] = []

    @property
    def ordered(self) -> int:
        return self._ordered.ordered

    def order(self, capacity: int, step: int) -> None:
        """Order a capacity at the end of ``step``. Repeating an order changes nothing.

        Raises CapacityDelayed if the plan was changed too often within an hour.
        """
        if capacity == self.ordered:
            return
        arena, now = self.arena, (step + 1) * self.arena.sample_seconds
        self._count(now)
        restart, ordered = arena.superseding == "restart", self._ordered
        if restart or capacity <= self.capacity:  # Scale-in takes effect in the next step.
            ordered = Capacity(self.capacity, () if restart else ordered.pending)
        dead = max(1, arena.dead_time_minutes * arena.steps_per_minute)
        for seconds, number in self._pieces(ordered.ordered, capacity):
            ordered = ordered.order(number, step, dead + seconds // arena.sample_seconds)
        self._ordered = ordered
        if arena.confirm_seconds is not None:
            first = now + arena.confirm_seconds
            reads = [read for read in self._reads if read[0] < first]
            start = reads[-1][1] if reads else self.shown
            reads += [(first + after, number) for after, number in self._pieces(start, capacity)]
            self._reads = reads

    def _count(self, now: int) -> None:
        allowed = self.arena.changes_per_hour
        if allowed is None:
            return
        self._changed = [at for at in self._changed if at > now - HOUR_SECONDS]
        if len(self._changed) >= allowed:
            refused = refusal(409, TOO_OFTEN, "")
            raise CapacityDelayed(f"{TOO_OFTEN}. {refused.advice}", refused.wait_seconds)
        self._changed.append(now)

    def _pieces(self, start: int, target: int) -> list[tuple[int, int]]:
        """Seconds after the first piece, and the number with each piece."""
        size = self.arena.piece_instances or max(target - start, 1)
        numbers = [*range(start + size, target, size), target]
        return [(at * PIECE_SECONDS, number) for at, number in enumerate(numbers)]

    def set_by_hand(self, capacity: int) -> None:
        """Apply a manual change at once. Pending instances are canceled."""
        self.capacity = self.shown = capacity
        self._ordered, self._reads = Capacity(capacity), []

    def begin(self, step: int) -> float | None:
        """Start what is due for ``step``, and show what is due by its end.

        Return how many seconds after its beginning the number that is shown changed last.
        """
        if self._ordered.pending:
            self._ordered = self._ordered.at(step)
        self.capacity = self._ordered.effective
        if self.arena.confirm_seconds is None:
            before, self.shown = self.shown, self.capacity
            return None if self.shown == before else 0.0
        changed, begins = None, step * self.arena.sample_seconds
        while self._reads and self._reads[0][0] <= begins + self.arena.sample_seconds:
            due, self.shown = self._reads.pop(0)
            changed = due - begins
        return changed


def as_schedule(capacities: Sequence[int]) -> Schedule:
    return np.asarray(capacities, dtype=np.int64)
