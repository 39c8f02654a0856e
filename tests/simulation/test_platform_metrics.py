"""Simulates a metric of Azure Monitor that is late, incomplete and throttled.

Under these faults the rules of every world hold (see ``test_autoscaling``), and besides:

- a sample in the state has the value that was true in its minute;
- once faults have ended, the capacity follows the load out and back in, whatever the lag.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.simulation.platform_world import LOAD, MINUTE, PlatformWorld
from tests.simulation.seeds import seeds
from tests.simulation.test_autoscaling import calm, check_always, state
from tests.simulation.world import KINDS, LIMITS

SEEDS = 12
HOSTILE_SECONDS, SETTLED_SECONDS = 2400, 7200


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


def test_each_fault_of_azure_monitor_has_its_effect() -> None:
    """The simulation proves nothing if its faults never have any effect."""
    worlds = [hostile(seed) for seed in range(4, 10)]
    assert all(world.platform.lag > timedelta(0) for world in worlds)
    assert sum(world.late for world in worlds) > 5
    assert sum(world.missing for world in worlds) > 5
    assert sum(world.throttled for world in worlds) > 5
    assert sum(world.restarts for world in worlds) > 1
