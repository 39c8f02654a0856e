"""A replay decides today what it decided before it was made fast.

The digests were taken from the slower code. A change that is meant to decide otherwise takes new
ones (the failing test shows them) and says why in its commit.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from backtest.app import App
from backtest.arena import Arena, Plan, usual_rate
from backtest.faults import StormyApp, Weather
from backtest.progress import ignore
from backtest.replay import in_arena, run
from backtest.rules_file import Rules, load_rules
from backtest.workload import load_workload
from shared.autoscaling import (
    BacklogTarget,
    Cooldown,
    Guards,
    Missing,
    Policy,
    RateLimit,
    ServiceBusQueue,
    SlackAwareDrain,
    StablePanic,
    Threshold,
    ValuePerInstance,
    any_of,
    every,
    highest,
    scale_in_only_if,
)
from shared.autoscaling.model import Decision
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
        self.digest.update(_told(decision))


class WatchedInStorm(StormyApp):
    digest: Any

    def decided(self, decision: Decision) -> None:
        super().decided(decision)
        self.digest.update(_told(decision))


def _told(decision: Decision) -> bytes:
    outcome = (decision.current, decision.desired, decision.applies, decision.limited_by)
    return repr((decision.time.isoformat(), *outcome)).encode()


@pytest.mark.parametrize(
    ("case", "stormy", "digest"),
    [
        ("shipped", False, "8ea58cda8c5745b6"),
        ("shipped", True, "0a60ac4f05081620"),
        ("thresholds", False, "b9fcb333fc43a418"),
        ("calm", False, "6da6dd6a0f217d91"),
        ("calm", True, "c910e458e0157af8"),
        ("any_of", False, "ac5c7671f048ddfc"),
        ("any_of", True, "d57c6ce971cc02b2"),
        ("two_metrics", False, "1ec0e81527cffd1f"),
        ("two_metrics", True, "6215b36e71a41f94"),
    ],
)
def test_a_replay_decides_as_before(case: str, stormy: bool, digest: str) -> None:
    workload = load_workload(NASA).part(0, MINUTES)
    arena, tried = Arena(instance_rate=usual_rate(workload.arrivals)), CASES[case]
    app: Any = (
        WatchedInStorm(tried, arena, 7, Weather())
        if stormy
        else Watched(in_arena(tried.resource, arena), Plan(arena))
    )
    app.digest = hashlib.sha256()
    run(app, arena, workload, ignore)
    assert app.digest.hexdigest()[:16] == digest
