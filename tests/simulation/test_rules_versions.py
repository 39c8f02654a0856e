"""Simulates deployments: copies of the app with different rules share queues, store and plan.

In each world there are faults and slow calls. Copies with old rules restart in the middle of the
deployment, a developer runs the app against the same storage account, and the deployment is rolled
back. These rules must hold:

- no version decides again before the version that replaced it has been silent for two minutes;
- the version of the developer never decides;
- each capacity that is requested is within the limits of a copy that runs;
- once only one version is left, its target is reached.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from shared.autoscaling import Limits, ManualChange
from shared.autoscaling.acting.activation import SILENCE
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.policy import Observation, Recommendation
from tests.builders import resource
from tests.simulation.seeds import seeds
from tests.simulation.world import ARM, NONE, STORAGE, USUAL, Copy, World

WANTED = MAXIMUM = {"old": 6, "new": 4, "local-1": 2}


def copy(version: str) -> Copy:
    def policy(_seen: Observation) -> Recommendation:
        return Recommendation(WANTED[version], version, version, paced=True)

    options: dict[str, Any] = {"policy": policy, "on_manual_change": ManualChange.ENFORCE}
    return version, {"plan-1": resource(limits=Limits(1, MAXIMUM[version]), **options)}


OLD, NEW, LAPTOP = copy("old"), copy("new"), copy("local-1")


def decisions(world: World) -> list[LogEntry]:
    lines = world.store._log["plan-1"].values()
    decided = [line for line in lines if line.kind is EntryKind.DECISION and line.candidates]
    return sorted(decided, key=lambda line: line.time)


def changes_of_the_decider(world: World) -> Iterator[tuple[str, str, timedelta]]:
    """The old and the new decider, and the time between their decisions."""
    for last, line in pairwise(decisions(world)):
        before, after = last.candidates[0].reason, line.candidates[0].reason
        if before != after:
            yield before, after, line.time - last.time


def run(world: World, copies: list[Copy], seconds: float) -> None:
    world.copies = copies
    world.run(seconds)


def settled(world: World, copies: list[Copy]) -> int:
    """The capacity after these copies have run without faults, until what began before has ended.

    What is requested after that is within the limits of the copies.
    """
    world.calm_down()
    run(world, copies, 900)
    world.scheduler.run_until_idle()
    before = len(world.control.changes)
    world.run(300)
    highest = max(MAXIMUM[str(version)] for version, _ in copies)
    assert all(capacity <= highest for _, capacity in world.control.changes[before:])
    return world.control.capacities["plan-1"]


@pytest.mark.parametrize("seed", seeds(12))
def test_a_deployment_and_its_rollback_change_the_decider_once_each(seed: int) -> None:
    world = World(seed, 0.02, (NONE, USUAL, ARM, STORAGE)[seed % 4])
    run(world, [OLD], 300)
    for copies in ([OLD, LAPTOP], [OLD, NEW], [NEW, NEW], [OLD, NEW, LAPTOP], [OLD, OLD, NEW]):
        run(world, copies, 90)  # old copies stop and start again
    assert settled(world, [NEW, LAPTOP]) == WANTED["new"]
    assert settled(world, [OLD]) == WANTED["old"]  # the rollback
    activation, *later = changes_of_the_decider(world)
    assert activation[:2] == ("old", "new")
    assert later[-1][:2] == ("new", "old")
    assert all(waited >= SILENCE for *_, waited in later), later
    assert "local-1" not in {line.candidates[0].reason for line in decisions(world)}
