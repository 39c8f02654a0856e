"""Months of a plan whose capacity is known, as Azure Monitor would show them.

Nothing here is shared with the replay: messages arrive one by one, the rate of an instance varies,
each start-up takes another time, and Azure's autoscale reads metrics that are minutes old.

python -m bench.made_up_months FILE     writes the example of ``python -m backtest audit --example``
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from backtest.arena import Floats
from backtest.audit_month import DAY_MINUTES, Month, save_month

START = datetime(2026, 3, 2, tzinfo=UTC)
GROUP = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/example/providers"
PLAN = f"{GROUP}/Microsoft.Web/serverfarms/workers"
BUS = f"{GROUP}/Microsoft.ServiceBus/namespaces/shop"
QUEUE = "orders"
STEPS = 6
LAG_MINUTES = 2
WINDOW, COOLDOWN = 10, 5


@dataclass(frozen=True, slots=True)
class World:
    """A plan, its load and its autoscale setting: out by a step above one value, in by one below
    the other one."""

    name: str
    rate: float
    start_up_minutes: float
    busiest: float
    """Messages a minute at the busiest time of a usual day."""
    metric: str = "ActiveMessages"
    out_above: float = 150.0
    in_below: float = 20.0
    step_out: int = 2
    minimum: int = 2
    maximum: int = 16
    lost_share: float = 0.0
    """Minutes that Azure Monitor does not have."""
    in_hand_minutes: float = 0.0
    """How long an instance has a message in hand, during which it is active."""
    seed: int = 1


WORLDS = (
    World("queue", rate=60, start_up_minutes=3, busiest=500),
    World("cpu", 40, 4, 300, "CpuPercentage", 70, 35, 1, seed=2),
    World("slow, with gaps", 25, 7, 220, out_above=60, in_below=8, lost_share=0.01, seed=3),
)


def made_up(world: World, days: int) -> Month:
    """The month; the same for the same world."""
    random = np.random.default_rng(world.seed)
    load = _load(random, world.busiest, days)
    state = _State(world, random)
    rows = [state.minute(float(rate)) for rate in load]
    names = ("active", "active_max", "incoming", "completed", "abandoned", "instances", "cpu")
    columns: dict[str, list[float | None]] = {
        name: [round(row[at], 2) for row in rows] for at, name in enumerate(names)
    }
    for minute in np.flatnonzero(random.random(len(rows)) < world.lost_share):
        for column in columns.values():
            column[minute] = None
    return Month(
        source=f"made-up data ({world.name}), under the licence of this project",
        plan=PLAN,
        namespace=BUS,
        entity=QUEUE,
        kind="queue",
        setting=setting_of(world),
        setting_id=str(setting_of(world)["id"]),
        start=START,
        days=days,
        columns=columns,
    )


def _load(random: np.random.Generator, busiest: float, days: int) -> Floats:
    """Days and nights, quieter weekends, a wandering level, and two or three bursts a day."""
    minute = np.arange(days * DAY_MINUTES)
    day = 0.15 + 0.85 * (0.5 + 0.5 * np.cos(2 * np.pi * (minute / DAY_MINUTES - 14 / 24))) ** 1.5
    weekend = np.where(minute // DAY_MINUTES % 7 >= 5, 0.5, 1.0)
    wander, level = np.empty(len(minute)), 0.0
    for at, step in enumerate(random.normal(0, 0.25 * np.sqrt(2 / 90), len(minute))):
        level += step - level / 90
        wander[at] = level
    load = busiest * day * weekend * np.exp(wander)
    for start in np.flatnonzero(random.random(len(minute)) < 2.5 / DAY_MINUTES):
        length = int(random.integers(15, 60))
        load[start : start + length] += busiest * random.uniform(0.4, 1.2)
    return np.asarray(load, dtype=np.float64)


class _State:
    """Messages that wait, instances with the times at which they work, and what Azure has seen."""

    def __init__(self, world: World, random: np.random.Generator) -> None:
        self.world, self.random = world, random
        self.backlog, self.now = 0, 0.0
        self.ready = [0.0] * world.minimum
        self.seen: deque[float] = deque(maxlen=WINDOW + LAG_MINUTES)
        self.waits_until = 0.0
        self.pace = 1.0

    def minute(self, load: float) -> tuple[float, ...]:
        """The minute's ActiveMessages, counts, instances and CPU."""
        world, random = self.world, self.random
        if self.now % 60 == 0:
            self.pace = random.uniform(0.92, 1.08)
        counted = len(self.ready)
        arrived = random.multinomial(random.poisson(load), np.full(STEPS, 1 / STEPS))
        levels, completed, used, held = [], 0, 0.0, world.in_hand_minutes * STEPS
        for items in arrived:
            working = sum(ready <= self.now for ready in self.ready)
            can = random.poisson(world.rate * self.pace * working / STEPS)
            done = min(self.backlog + int(items), can)
            self.backlog += int(items) - done
            completed += done
            used += done / (world.rate * self.pace)
            levels.append(self.backlog + held * done)
            self.now += 1 / STEPS
        self.now = round(self.now)
        cpu = min(8 + 84 * used / counted + random.normal(0, 2), 100.0)
        active = float(np.mean(levels))
        self.seen.append(max(cpu, 0.0) if world.metric == "CpuPercentage" else active)
        self._scale(counted)
        abandoned = float(random.binomial(completed, 0.002))
        counts = float(arrived.sum()), float(completed), abandoned
        return active, float(max(levels)), *counts, float(counted), max(cpu, 0.0)

    def _scale(self, counted: int) -> None:
        """Azure's autoscale: the average of the window, a cooldown, and no flapping."""
        world = self.world
        known = list(self.seen)[:-LAG_MINUTES]
        if self.now < self.waits_until or not known:
            return
        value = sum(known) / len(known)
        if world.metric != "CpuPercentage":
            value /= counted
        wanted = counted
        if value > world.out_above:
            wanted = min(counted + world.step_out, world.maximum)
        elif value < world.in_below and value * counted / max(counted - 1, 1) < world.out_above:
            wanted = max(counted - 1, world.minimum)
        if wanted != counted:
            self.waits_until = self.now + COOLDOWN
        for _ in range(wanted - counted):
            self.ready.append(self.now + world.start_up_minutes + self.random.uniform(-0.7, 0.7))
        del self.ready[wanted:]


def setting_of(world: World) -> dict[str, Any]:
    """The autoscale setting, as Resource Manager shows it."""
    cpu = world.metric == "CpuPercentage"
    trigger = {
        "metricName": world.metric,
        "metricResourceUri": PLAN if cpu else BUS,
        "timeGrain": "PT1M", "statistic": "Average", "timeAggregation": "Average",
        "timeWindow": f"PT{WINDOW}M",
        "dimensions": [] if cpu else [
            {"DimensionName": "EntityName", "Operator": "Equals", "Values": [QUEUE]}
        ],
        "dividePerInstance": not cpu,
    }  # fmt: skip
    out = {"direction": "Increase", "type": "ChangeCount", "value": str(world.step_out)}
    back = {"direction": "Decrease", "type": "ChangeCount", "value": "1"}
    limits = {"minimum": str(world.minimum), "maximum": str(world.maximum)}
    rules = [
        {
            "metricTrigger": {**trigger, "operator": comparison, "threshold": threshold},
            "scaleAction": {**action, "cooldown": f"PT{COOLDOWN}M"},
        }
        for comparison, threshold, action in (
            ("GreaterThan", world.out_above, out),
            ("LessThan", world.in_below, back),
        )
    ]
    profile = {
        "name": "default", "rules": rules,
        "capacity": {**limits, "default": limits["minimum"]},
    }  # fmt: skip
    return {
        "id": f"{GROUP}/Microsoft.Insights/autoscalesettings/workers-autoscale",
        "name": "workers-autoscale",
        "properties": {"enabled": True, "targetResourceUri": PLAN, "profiles": [profile]},
    }


if __name__ == "__main__":
    save_month(made_up(replace(WORLDS[0], name="a shop"), 7), Path(sys.argv[1]))
