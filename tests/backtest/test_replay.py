"""The replay: the app's own code, with the samples that production would supply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

import pytest

from backtest.arena import Plan, usual_rate
from backtest.faults import FaultRates, replay_with_faults
from backtest.progress import Progress, ignore
from backtest.replay import TIMING, App, Seen, in_arena, replay, replay_workload
from backtest.rules_file import Rules, load_rules
from backtest.slack_aware_drain import SlackAwareDrain
from backtest.stable_panic import StablePanic
from backtest.workload import load_workload
from shared.autoscaling import (
    BacklogTarget,
    Cooldown,
    Guards,
    Missing,
    Observation,
    Policy,
    RateLimit,
    Recommendation,
    Resource,
    ServiceBusQueue,
    ServiceBusSubscription,
    StorageQueue,
    Threshold,
    every,
    highest,
    scale_in_only_if,
)
from shared.autoscaling.deciding.decide import Decision
from shared.autoscaling.deciding.guards import GUARDS
from shared.autoscaling.state import changed_rows
from shared.autoscaling.store.rows import state_of, state_row
from shared.values.measurements import Metric
from tests.backtest.arenas import (
    BACKLOG_RULES,
    NASA,
    SHIPPED_RULES,
    START,
    arena,
    bursty,
    workload,
)
from tests.builders import resource

PolicyFunction = Callable[[Observation], Recommendation]


def ruled_by(policy: PolicyFunction, **changes: object) -> Resource:
    sources = {"backlog": StorageQueue("jobs")}
    fields: dict[str, Any] = {"metrics": sources, "policy": policy, "cooldown": Cooldown(0, 0)}
    return resource(**{**fields, **changes})


def watching(seen: list[Observation]) -> PolicyFunction:
    def policy(observation: Observation) -> Recommendation:
        if not seen or seen[-1].now != observation.now:  # a second call serves the explanation
            seen.append(observation)
        return Recommendation(observation.capacity, "look")

    return policy


def scripted(capacities: dict[int, int]) -> PolicyFunction:
    """A policy that recommends these capacities, each from its minute on."""

    def policy(seen: Observation) -> Recommendation:
        minute = (seen.now - START) // timedelta(minutes=1) - 1
        past = [capacity for start, capacity in capacities.items() if start <= minute]
        return Recommendation(past[-1] if past else seen.capacity, "as scripted")

    return policy


def test_rules_see_the_backlog_at_the_end_of_each_minute() -> None:
    seen: list[Observation] = []
    replay(arena(), workload([30, 5, 0]), ruled_by(watching(seen)))
    newest = [observation.window("backlog").samples[-1] for observation in seen]
    assert [sample.value for sample in newest] == [20, 15, 5]
    assert [sample.time for sample in newest] == [START + timedelta(minutes=m) for m in (1, 2, 3)]


def test_only_counts_of_waiting_messages_receive_the_backlog() -> None:
    seen: list[Observation] = []
    sources = {
        "dead": ServiceBusSubscription("t", "s", count="dead_letter"),
        "waiting": ServiceBusSubscription("t", "s"),
    }
    replay(arena(), workload([30, 0]), ruled_by(watching(seen), metrics=sources))
    values = {n: [s.value for s in w.samples] for n, w in seen[-1].metrics.items()}
    assert values == {"dead": [0, 0], "waiting": [20, 10]}


def test_the_cooldown_starts_when_the_new_capacity_takes_effect() -> None:
    policy = scripted({0: 2, 4: 3})
    resting = ruled_by(policy, cooldown=Cooldown(300, 300))
    orders = replay(arena(), workload([0] * 20), resting).orders
    assert [order.minute for order in orders] == [
        0,
        8,
    ]  # takes effect in minute 3; the cooldown ends at 3 + 5


def test_a_policy_that_raises_holds_and_its_error_is_reported() -> None:
    def policy(seen: Observation) -> Recommendation:
        raise ValueError("no idea")

    replayed = replay(arena(), workload([10, 10]), ruled_by(policy))
    assert replayed.capacity.tolist() == [1, 1]
    assert "no idea" in replayed.rule_error


def test_finished_items_are_counted_one_to_four_minutes_late_and_none_is_lost() -> None:
    counted = replace(arena(), service_learned=True, finished_counted=True)
    app = App(in_arena(load_rules(SHIPPED_RULES).resource, counted), Plan(counted))
    late = list[float]()
    for minute in range(200):
        now = START + timedelta(minutes=minute)
        passed = Seen(5.0, minute)
        found = [m.value for m in app.samples(now, passed, passed) if m.name == "finished"]
        late += [(now - value.time) / timedelta(minutes=1) for value in found]
        assert all(value.time == START + timedelta(minutes=value.value) for value in found)
    assert 196 <= len(late) < 200
    assert set(late) == {1, 2, 3, 4}


def test_the_app_does_not_mistake_its_own_changes_for_manual_changes() -> None:
    policy = scripted({0: 2, 1: 3, 2: 4})
    assert replay(arena(), workload([0] * 12), ruled_by(policy)).false_alarms == 0


# --- faults -----------------------------------------------------------------------------------


declared: dict[str, Any] = {}
exec(BACKLOG_RULES, declared)
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


RULES = {
    "shipped": SHIPPED,
    "largest of five minutes": Rules(declared["resources"]({})[0], TIMING),
    "thresholds": rules(Threshold(BACKLOG, 100, 10), cooldown=Cooldown(120, 300)),
    "guarded": rules(SlackAwareDrain(BACKLOG), guards=CALM),
    "two metrics": rules(
        highest(StablePanic(BACKLOG, 80), QUIET_ONLY),
        metrics={**SHIPPED.resource.metrics, "dead": ServiceBusQueue("x", "dead_letter")},
        guards=BROKEN,
        cooldown=Cooldown(60, 60),
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_a_state_that_is_stored_after_each_message_leads_to_the_same_decisions(name: str) -> None:
    """The app reads its state from rows before each message; a replay keeps it in memory."""

    class Kept(App):
        decisions: ClassVar[list[Decision]] = []

        def decided(self, decision: Decision) -> None:
            self.decisions.append(decision)

    class Stored(Kept):
        decisions: ClassVar[list[Decision]] = []
        rows: ClassVar[dict[str, Any]] = {}

        def receive(self, metrics: Sequence[Metric], minute: int, now: datetime) -> None:
            before, lost = state_of(self.rows.values())
            assert lost == ()
            for key, value in changed_rows(before, self.state):
                self.rows[key] = state_row("plan", key, value)
            self.state, _ = state_of(self.rows.values())
            super().receive(metrics, minute, now)

    load = load_workload(NASA).part(900, 1050)
    spec = arena(instance_rate=usual_rate(load.arrivals), max_instances=20)
    for kind in (Kept, Stored):
        replay_workload(kind(in_arena(RULES[name].resource, spec), Plan(spec)), spec, load, ignore)
    assert Kept.decisions == Stored.decisions
    assert {each.applies for each in Kept.decisions} == {True, False}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("seed", range(2))
def test_safety_rules_hold_under_faults(seed: int, name: str) -> None:
    load, spec = workload(bursty(seed, 1500, mean=400)), arena(instance_rate=100)
    _, faults = replay_with_faults(spec, load, RULES[name], seed, Progress())
    assert faults["first_violations"] == []


def test_a_scale_in_on_stale_data_is_reported_as_a_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unguarded(*_: object) -> None:
        return None

    unguarded.__name__ = "missing_data"
    guards = [unguarded if guard.__name__ == "missing_data" else guard for guard in GUARDS]
    monkeypatch.setattr("shared.autoscaling.deciding.decide.GUARDS", tuple(guards))
    shy = scripted({m: 2 + m // 3 % 2 for m in range(0, 600, 3)})
    rules = Rules(ruled_by(shy), TIMING)
    dark = FaultRates(sample_dropped=0.6)
    _, faults = replay_with_faults(arena(), workload([0] * 600), rules, 1, Progress(), dark)
    assert "but the newest sample of backlog dates from" in faults["first_violations"][0]


@pytest.mark.parametrize(("load", "switch_cost"), [(17.5, 2), (35, 10), (17.5, 30), (67.5, 30)])
def test_the_default_policy_eventually_removes_every_idle_instance(
    load: float, switch_cost: float
) -> None:
    """Whatever a change costs, a queue that stays empty needs only the minimum."""
    ended = workload([load] * 40 + [0.0] * 150)
    here = arena(switch_cost=switch_cost, max_instances=20)
    capacity = replay(here, ended, SHIPPED.resource).capacity
    assert capacity.max() > 1
    assert capacity[-1] == 1
