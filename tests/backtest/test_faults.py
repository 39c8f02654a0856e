"""With faults in a replay, the safety rules hold. `make mutants` breaks them one at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backtest.arena import ARENAS
from backtest.faults import FaultRates, replay_with_faults
from backtest.progress import Progress
from backtest.rules_file import Rules, load_rules
from backtest.world import VARIATIONS, varied
from shared.autoscaling import Cooldown, Guards, Observation, RateLimit, Recommendation
from shared.autoscaling.sources import StorageQueue
from shared.values.urgency import urgent_seconds
from tests.backtest.arenas import SHIPPED_RULES, arena, bursty, workload
from tests.simulation.seeds import seeds

MINUTES, SHORT_MINUTES = 1500, 600
OFTEN = FaultRates(
    sample_dropped=0.2,
    action_slow=0.15,
    action_doubled=0.3,
    action_refused=0.1,
    blackout=0.003,
    outage=0.001,
    changed_by_hand=0.005,
    paused_by_hand=0.01,
)
"""Higher rates than usual, so that a few seeds are enough."""


def impatient(seen: Observation) -> Recommendation:
    """A policy that follows every sample at once, as far as the guards allow."""
    newest = [sample.value for sample in seen.history("jobs").samples[-1:]]
    return Recommendation(1 + int(sum(newest) // 400), "one for 400")


SHIPPED = load_rules(SHIPPED_RULES)
GUARDED = Rules(
    replace(
        SHIPPED.resource,
        metrics={"jobs": StorageQueue("jobs")},
        policy=impatient,
        cooldown=Cooldown(120, 300),
        guards=Guards(
            rate_limits=(RateLimit("out", 600, instances=2), RateLimit("in", 600, instances=2)),
            flap_projection=False,
        ),
    ),
    SHIPPED.timing,
)
BROKEN = Rules(
    replace(
        GUARDED.resource,
        metrics={**GUARDED.resource.metrics, "breaker": StorageQueue("breaker")},
        guards=replace(GUARDED.resource.guards, breaker_metric="breaker"),
    ),
    SHIPPED.timing,
)
"""The breaker is open while jobs wait, so that the app never scales out."""
ALL_RULES = (SHIPPED, GUARDED, BROKEN)
"""They use every guard that a safety rule checks."""


def check_seed(seed: int) -> None:
    load = workload(bursty(seed, MINUTES, mean=400))
    for rules in ALL_RULES:
        plan = arena(instance_rate=100)
        _, faults = replay_with_faults(plan, load, rules, seed, Progress(), OFTEN)
        assert faults["first_violations"] == []


@pytest.mark.parametrize("seed", seeds(4))
def test_the_correct_code_violates_no_rule_of_safety(seed: int) -> None:
    check_seed(seed)


@pytest.mark.parametrize("how", ["told", "counted", "backlog alone"])
@pytest.mark.parametrize("variation", VARIATIONS)
def test_the_rules_of_safety_hold_in_a_world_that_changes(variation: str, how: str) -> None:
    seed = [*VARIATIONS].index(variation)
    load = workload(bursty(seed, SHORT_MINUTES, mean=400))
    plan = arena(
        instance_rate=100,
        service_learned=how != "told",
        finished_counted=how == "counted",
        seed=seed,
        **ARENAS["production"],
    )
    world = varied(plan, variation)
    _, faults = replay_with_faults(world, load, SHIPPED, seed, Progress())
    assert faults["first_violations"] == []


def test_orders_under_way_make_no_other_request_urgent() -> None:
    """In the app each runs in a task of its own; a replay continues them by hand."""
    check_seed(0)
    assert urgent_seconds.get() == 0
