"""Well-known autoscalers in the same arena, each with settings that do it justice.

They see, once a minute: the backlog, what came in the minute (nobody else is told that), and the
instances that work and are ordered. Their orders are those of the rules: they take as long, and are
refused as often. None of them goes through the app's guards
but ``original``, which is the rule this project began with.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from backtest.arena import Arena, Plan, Schedule, as_schedule
from backtest.replay import replay
from backtest.workload import Workload
from backtest.world import Queue, world_of
from shared.autoscaling import AppServicePlan, Cooldown, Resource, StorageQueue, Threshold
from shared.autoscaling.errors import CapacityDelayed

DRAIN_SHARE = 0.8
"""Rivals that aim at a backlog aim at one that is drained within 0.8·L: L is the limit itself."""

ROUNDING = 1e-9
"""A ratio this little above a whole number is that number."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a rival is told at the end of a minute."""

    backlog: float
    arrivals: float
    capacity: int
    ordered: int


class Rival(Protocol):
    """Answers the instances it wants; whole, and bounded by the arena afterwards."""

    def __call__(self, seen: Seen) -> int: ...


def race(arena: Arena, workload: Workload, rival: Rival) -> Schedule:
    """From the minimum of instances on, under the same start-up time as everybody."""
    steps = arena.steps_per_minute
    plan, queue = Plan(arena), Queue(world_of(arena, workload.arrivals, steps))
    capacity: list[int] = []
    for minute, arrivals in enumerate(workload.listed):
        for step in range(minute * steps, (minute + 1) * steps):
            plan.begin(step)
            capacity.append(plan.capacity)
            queue.serve(step, plan.capacity)
        wanted = rival(Seen(queue.backlog, arrivals, plan.capacity, plan.ordered))
        with suppress(CapacityDelayed):
            plan.order(min(max(wanted, arena.min_instances), arena.max_instances), step)
    return as_schedule(capacity)


def original(arena: Arena, workload: Workload) -> Schedule:
    """The rule of the original, in the app's own code: ±1 by thresholds, 10 minutes of cooldown.

    Its thresholds were backlogs of 100 and 10. Here the upper one is what one instance serves in
    the age limit (from there on one instance alone would be late), the lower one a tenth of it.
    """
    upper = arena.instance_rate * arena.age_limit_minutes
    resource = Resource(
        name="original",
        target=AppServicePlan("00000000-0000-0000-0000-000000000000", "original", "original"),
        metrics={"backlog": StorageQueue("original")},
        policy=Threshold("backlog", upper=upper, lower=upper / 10),
        cooldown=Cooldown(600, 600),
    )
    return replay(replace(arena, cpu=False, backlog_metric=None), workload, resource).capacity


class AzureMonitor:
    """Azure Monitor autoscale on the backlog per instance.

    Out if any rule says so, in if all do; one cooldown after either; and no scale-in that would
    call for a scale-out at once: the value is projected, value·n/m, and must stay below the
    scale-out threshold. Source: "Understand autoscale settings" and "Autoscale flapping",
    learn.microsoft.com/azure/azure-monitor/autoscale. Averages over 10 minutes and a cooldown of
    5 minutes are the portal's defaults. Steps and thresholds are the cheapest of a grid of 144 on
    three real traces (NASA July 1995, tweets on AMZN, Azure LLM): out by three above half of what
    an instance drains in the age limit, in by two below a tenth of that.
    """

    WINDOW_MINUTES = 10
    COOLDOWN_MINUTES = 5
    STEP_OUT, STEP_IN = 3, 2

    def __init__(self, arena: Arena) -> None:
        self._out_above = 0.5 * arena.instance_rate * arena.age_limit_minutes
        self._in_below = self._out_above / 10
        self._values: deque[float] = deque(maxlen=self.WINDOW_MINUTES)
        self._wait_minutes = 0

    def __call__(self, seen: Seen) -> int:
        self._values.append(seen.backlog / seen.capacity)
        self._wait_minutes = max(0, self._wait_minutes - 1)
        if self._wait_minutes or seen.ordered != seen.capacity:
            return seen.ordered
        change = self._change(sum(self._values) / len(self._values), seen.capacity)
        self._wait_minutes = self.COOLDOWN_MINUTES if change else 0
        return seen.capacity + change

    def _change(self, value: float, capacity: int) -> int:
        if value > self._out_above:
            return self.STEP_OUT
        fewer = capacity - self.STEP_IN
        if value < self._in_below and fewer > 0 and value * capacity / fewer < self._out_above:
            return -self.STEP_IN
        return 0


class Keda:
    """KEDA's queue scalers, which leave the arithmetic to the Horizontal Pod Autoscaler.

    desired = ⌈backlog / target per replica⌉, unless that is within 10 % of what there is; down only
    to the largest desire of the last 5 minutes. Sources: "Horizontal Pod Autoscaling" (algorithm
    details, tolerance, stabilizationWindowSeconds 300), kubernetes.io; "Scaling deployments",
    keda.sh. The target is what a replica drains in 0.8·L.
    """

    TOLERANCE = 0.1
    STABILISATION_MINUTES = 5

    def __init__(self, arena: Arena) -> None:
        self._target = DRAIN_SHARE * arena.instance_rate * arena.age_limit_minutes
        self._desired: deque[int] = deque(maxlen=self.STABILISATION_MINUTES)

    def __call__(self, seen: Seen) -> int:
        ratio = seen.backlog / (self._target * seen.ordered)
        within = abs(ratio - 1) <= self.TOLERANCE
        self._desired.append(seen.ordered if within else _whole(seen.backlog / self._target))
        if self._desired[-1] >= seen.ordered:
            return self._desired[-1]
        return min(seen.ordered, max(self._desired))


class Knative:
    """Knative's pod autoscaler: an average over a stable window, and panic over a short one.

    Panic begins where the panic window wants twice what is ready, and ends a stable window after
    that was last so; while it lasts nothing is scaled down. Never below half of what is ready.
    Sources: knative/serving, pkg/autoscaler/scaling/autoscaler.go; "Configuring autoscaling",
    knative.dev (stable 60 s, panic 10 % of it, threshold 200 %, max-scale-down-rate 2). A pod of
    seconds is an instance of minutes here, so the windows are 6 minutes and 1 minute. The target
    is what a replica drains in 0.8·L.
    """

    STABLE_MINUTES = 6
    PANIC_AT = 2.0
    SCALE_DOWN_RATE = 2.0

    def __init__(self, arena: Arena) -> None:
        self._target = DRAIN_SHARE * arena.instance_rate * arena.age_limit_minutes
        self._backlogs: deque[float] = deque(maxlen=self.STABLE_MINUTES)
        self._panic_minutes = 0
        self._panic_most = 0

    def __call__(self, seen: Seen) -> int:
        self._backlogs.append(seen.backlog)
        stable = self._desired(sum(self._backlogs) / len(self._backlogs), seen.capacity)
        panic = self._desired(seen.backlog, seen.capacity)
        if panic >= self.PANIC_AT * seen.capacity:
            self._panic_minutes = self.STABLE_MINUTES + 1
        self._panic_minutes = max(0, self._panic_minutes - 1)
        if not self._panic_minutes:
            self._panic_most = 0
            return stable
        self._panic_most = max(self._panic_most, panic, stable, seen.ordered)
        return self._panic_most

    def _desired(self, backlog: float, ready: int) -> int:
        return max(_whole(backlog / self._target), math.floor(ready / self.SCALE_DOWN_RATE))


class RateDrain:
    """What comes plus what waits: n = ⌈(arrival rate + backlog / (0.8·L)) / μ⌉.

    The rate is that of the last 3 minutes; fewer instances only as few as the last 5 minutes all
    would do with. The usual textbook controller for queues (feed-forward plus proportional).
    """

    RATE_MINUTES = 3
    SCALE_IN_MINUTES = 5

    def __init__(self, arena: Arena) -> None:
        self._rate = arena.instance_rate
        self._drain_minutes = DRAIN_SHARE * arena.age_limit_minutes
        self._arrivals: deque[float] = deque(maxlen=self.RATE_MINUTES)
        self._desired: deque[int] = deque(maxlen=self.SCALE_IN_MINUTES)

    def __call__(self, seen: Seen) -> int:
        self._arrivals.append(seen.arrivals)
        rate = sum(self._arrivals) / len(self._arrivals) + seen.backlog / self._drain_minutes
        self._desired.append(_whole(rate / self._rate))
        return max(self._desired)


def _whole(instances: float) -> int:
    return math.ceil(instances - ROUNDING)


Contender = Callable[[Arena, Workload], Schedule]

RIVALS: Mapping[str, Contender] = {
    "original": original,
    "azure_monitor": lambda arena, workload: race(arena, workload, AzureMonitor(arena)),
    "keda": lambda arena, workload: race(arena, workload, Keda(arena)),
    "knative": lambda arena, workload: race(arena, workload, Knative(arena)),
    "rate_drain": lambda arena, workload: race(arena, workload, RateDrain(arena)),
}
