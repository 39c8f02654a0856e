"""A replay makes the decisions, with the reasons, that it made before it was optimized.

The digests were taken from the slower code. If a change alters decisions on purpose, replace the
digests (the failing test shows the new ones) and give the reason in the commit.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from backtest.arena import Arena, Plan, usual_rate
from backtest.faults import FaultRates, FaultyApp
from backtest.progress import ignore
from backtest.replay import App, in_arena, replay_workload
from backtest.rules_file import Rules, load_rules
from backtest.slack_aware_drain import SlackAwareDrain
from backtest.stable_panic import StablePanic
from backtest.workload import load_workload
from shared.autoscaling import (
    BacklogTarget,
    Cooldown,
    Guards,
    Missing,
    Policy,
    RateLimit,
    ServiceBusQueue,
    Threshold,
    ValuePerInstance,
    any_of,
    every,
    highest,
    scale_in_only_if,
)
from shared.autoscaling.deciding.decide import Decision
from tests.backtest.arenas import NASA, SHIPPED_RULES

MINUTES = 1000
SHIPPED = load_rules(SHIPPED_RULES)
BACKLOG = next(iter(SHIPPED.resource.metrics))
CALM = Guards(
    missing=Missing(60, "hold"),
    stabilisation_in_seconds=300,
    stabilisation_out_seconds=60,
    rate_limits=(RateLimit("out", 300, instances=4), RateLimit("in", 600, percent=30)),
)
BROKEN = Guards(breaker_metric="dead", missing_by_metric={"dead": Missing(100, "hold")})
QUIET_ONLY = scale_in_only_if(BacklogTarget(BACKLOG), every(BACKLOG, below=5))


def rules(policy: Policy | None = None, **changes: Any) -> Rules:
    resource = SHIPPED.resource
    return replace(SHIPPED, resource=replace(resource, policy=policy or resource.policy, **changes))


CASES = {
    "shipped": rules(),
    "thresholds": rules(Threshold(BACKLOG, 100, 10), cooldown=Cooldown(120, 300)),
    "calm": rules(SlackAwareDrain(BACKLOG), guards=CALM),
    "any_of": rules(
        any_of(BacklogTarget(BACKLOG), ValuePerInstance(BACKLOG, 50)),
        cooldown=Cooldown(0, 120),
        guards=Guards(missing=Missing(120, 3)),
    ),
    "two_metrics": rules(
        highest(StablePanic(BACKLOG, 80), QUIET_ONLY),
        metrics={**SHIPPED.resource.metrics, "dead": ServiceBusQueue("x", "dead_letter")},
        guards=BROKEN,
        cooldown=Cooldown(60, 60),
    ),
}


class Watched(App):
    digest: Any

    def decided(self, decision: Decision) -> None:
        super().decided(decision)
        self.digest.update(_recorded(decision))


class WatchedUnderFaults(FaultyApp):
    digest: Any

    def decided(self, decision: Decision) -> None:
        super().decided(decision)
        self.digest.update(_recorded(decision))


def _recorded(decision: Decision) -> bytes:
    outcome = (decision.current, decision.desired, decision.applies, decision.limited_by)
    rules = [(each.rule, each.capacity, each.reason) for each in decision.candidates]
    evidence = [(name, _shown(value)) for name, value in decision.evidence.items()]
    return repr((decision.time.isoformat(), *outcome, decision.reason, rules, evidence)).encode()


def _shown(value: object) -> object:
    """Without the last digits, in which mathematical libraries differ."""
    return f"{value:.9g}" if isinstance(value, float) else value


@pytest.mark.parametrize(
    ("case", "with_faults", "digest"),
    [
        ("shipped", False, "ed86b5eb3f1e5790"),
        ("shipped", True, "953a6793dac7ccc2"),
        ("thresholds", False, "ccdb9a3b3f7bf79d"),
        ("calm", False, "e8139ae0a64a23b7"),
        ("calm", True, "f2eea640b860651e"),
        ("any_of", False, "877e1c26bab840d7"),
        ("any_of", True, "24b80e27ee462ddd"),
        ("two_metrics", False, "c7177f7250f42d9b"),
        ("two_metrics", True, "087d6413b40ba661"),
    ],
)
def test_a_replay_makes_the_recorded_decisions(case: str, with_faults: bool, digest: str) -> None:
    workload = load_workload(NASA).part(0, MINUTES)
    arena, tried = Arena(instance_rate=usual_rate(workload.arrivals)), CASES[case]
    app: Any = (
        WatchedUnderFaults(tried, arena, 7, FaultRates())
        if with_faults
        else Watched(in_arena(tried.resource, arena), Plan(arena))
    )
    app.digest = hashlib.sha256()
    replay_workload(app, arena, workload, ignore)
    assert app.digest.hexdigest()[:16] == digest
