"""Simulates a metric of Azure Monitor that is late, incomplete and throttled.

Under these faults the rules of every world hold (see ``test_autoscaling``), and besides:

- a sample in the state has the value that was true in its minute;
- once faults have ended, the capacity follows the load out and back in, whatever the lag.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from local.twins.platform_metrics import MemoryPlatformMetrics
from shared.autoscaling import AzureMonitorMetric
from shared.autoscaling.azure_monitor.source import PlatformReading
from shared.autoscaling.errors import ReadFailed
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.messages import decode_samples
from shared.autoscaling.state import ScaleAction
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.values.samples import encode_metrics
from tests.simulation.seeds import seeds
from tests.simulation.test_autoscaling import calm, check_always, state
from tests.simulation.world import KINDS, LIMITS, World

MINUTE = timedelta(minutes=1)
LAG_MINUTES_MAX = 10
MISSING_RATE, THROTTLED_RATE, RESTART_RATE = 0.1, 0.05, 0.02
THROTTLED_MINUTES_MAX = 5
LOAD = AzureMonitorMetric(
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/group-1/providers"
    "/Microsoft.ServiceBus/namespaces/bus-1",
    "ActiveMessages",
)
SEEDS = 10
HOSTILE_SECONDS, SETTLED_SECONDS = 2400, 7200


class PlatformWorld(World):
    """The load is known as a platform metric only. Points are late, missing or late and then there,
    queries are throttled, and the process that queries is replaced."""

    def __init__(self, seed: int, fault_rate: float) -> None:
        super().__init__(seed, fault_rate)
        self.resources = {
            name: replace(each, metrics={"backlog": LOAD}) for name, each in self.resources.items()
        }
        self.platform = MemoryPlatformMetrics(self.server_now)
        self.platform.points[LOAD] = {}
        self.throttled_until = self.now
        self.disturbed_at = self.now
        self.late = self.missing = self.throttled = self.restarts = 0

    @property
    def lag(self) -> timedelta:
        """How late the newest minute is."""
        return self.platform.lag - MINUTE

    def _collect(self) -> None:
        self._publish()
        skew = timedelta(seconds=self.random.uniform(-3, 3))
        capacity = MetricValue(self.server_now() + skew, self.control.capacities["plan-1"])
        metrics = [Metric("plan-1", CAPACITY_METRIC, capacity)]
        reading = _finished(self._read()).get(LOAD, ())
        if isinstance(reading, ReadFailed):
            self.throttled += 1
            reading = ()
        known = max((sample.time for sample in reading), default=None)
        self.late += any(sample.time < known for sample in reading if known)
        metrics += [Metric("plan-1", "backlog", sample) for sample in reading]
        for message in encode_metrics(metrics):
            self._send("metrics", message)

    async def _read(self) -> Mapping[AzureMonitorMetric, PlatformReading]:
        return await self.platform.read([LOAD])

    def _publish(self) -> None:
        """The value of this minute, and once a minute the faults of the next one."""
        minute = self.server_now().replace(second=0, microsecond=0)
        points = self.platform.points[LOAD]
        points[minute] = self.load
        for old in [time for time in points if time < minute - timedelta(hours=1)]:
            del points[old]
        if self.now - self.disturbed_at >= MINUTE:
            self.disturbed_at = self.now
            self._disturb(minute)

    def _disturb(self, minute: datetime) -> None:
        chance, hostile = self.random.random, bool(self.scheduler.fault_rate)
        if chance() < 0.1:
            self.platform.lag = self.random.randint(1, LAG_MINUTES_MAX + 1) * MINUTE
        if hostile and chance() < MISSING_RATE:
            self.platform.unpublished.add(minute)
            self.missing += 1
        if self.platform.unpublished and chance() < MISSING_RATE:  # it turns up after all
            self.platform.unpublished.discard(min(self.platform.unpublished))
        if hostile and chance() < THROTTLED_RATE:
            minutes = self.random.randint(1, THROTTLED_MINUTES_MAX)
            self.throttled_until = self.now + minutes * MINUTE
        is_throttled = self.now < self.throttled_until
        self.platform.failing = {LOAD: "429: throttled"} if is_throttled else {}
        if chance() < RESTART_RATE:
            self.platform.restart()
            self.restarts += 1

    async def _decide(self, body: str) -> list[ScaleAction]:
        samples = decode_samples(body)
        action = await scaling_logic.process_samples(samples, self.resources, self.store)
        return [action] if action else []


def _finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the coroutine waits")


def hostile(seed: int) -> PlatformWorld:
    world = PlatformWorld(seed, 0.02)
    world.kind = world.slow = KINDS[0]
    for _ in range(8):
        world.load = world.random.choice([0.0, 5.0, 50.0, 500.0])
        world.run(HOSTILE_SECONDS / 8)
        check_values(world)
    return world


def check_values(world: PlatformWorld) -> None:
    """No missing minute became zero, and none has the value of another minute."""
    points = world.platform.points[LOAD]
    history = state(world).histories.get("backlog")
    for sample in history.samples if history else ():
        true = points.get(sample.time - MINUTE)
        assert true is None or sample.value == true, sample


@pytest.mark.parametrize("seed", seeds(SEEDS))
def test_the_capacity_follows_a_metric_that_is_late_incomplete_and_throttled(seed: int) -> None:
    world = hostile(seed)
    check_always(world, by_hand=False)
    calm(world, load=1000.0, seconds=SETTLED_SECONDS)
    assert world.control.capacities["plan-1"] == LIMITS.maximum, f"seed {seed}"
    calm(world, load=0.0, seconds=SETTLED_SECONDS)
    assert world.control.capacities["plan-1"] == LIMITS.minimum, f"seed {seed}"
    check_values(world)
