"""The replay: the app's own code, with the samples that production would supply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backtest.arena import Plan
from backtest.faults import FaultRates, replay_with_faults
from backtest.outcome import course
from backtest.progress import Progress
from backtest.replay import TIMING, App, Minute, in_arena, replay
from backtest.rules_file import Rules, load_rules
from shared.autoscaling import (
    Cooldown,
    Limits,
    Mode,
    Observation,
    Recommendation,
    Resource,
    ServiceBusSubscription,
    StorageQueue,
)
from shared.autoscaling.deciding.guards import GUARDS
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
    fields: dict[str, Any] = {
        "metrics": sources,
        "policy": policy,
        "cooldown": Cooldown(0, 0),
        **changes,
    }
    return resource(**fields)


def watching(seen: list[Observation]) -> PolicyFunction:
    def policy(observation: Observation) -> Recommendation:
        if (
            not seen or seen[-1].now != observation.now
        ):  # a second call with the same time serves the explanation
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


def test_rules_see_the_cost_parameters_of_the_arena() -> None:
    seen: list[Observation] = []
    replay(arena(switch_cost=7, max_instances=4), workload([1]), ruled_by(watching(seen)))
    assert seen[0].goal.switch_cost == 7
    assert seen[0].throughput.rate_per_instance_minute == 10
    assert seen[0].limits == Limits(1, 4)


def test_only_counts_of_waiting_messages_receive_the_backlog() -> None:
    seen: list[Observation] = []
    sources = {
        "dead": ServiceBusSubscription("t", "s", count="dead_letter"),
        "waiting": ServiceBusSubscription("t", "s"),
    }
    replay(arena(), workload([30, 0]), ruled_by(watching(seen), metrics=sources))
    values = {n: [s.value for s in w.samples] for n, w in seen[-1].metrics.items()}
    assert values == {"dead": [0, 0], "waiting": [20, 10]}


def test_scale_out_takes_the_start_up_time_and_scale_in_the_next_minute() -> None:
    policy = scripted({1: 3, 6: 2})
    capacity = replay(arena(), workload([0] * 10), ruled_by(policy)).capacity
    assert capacity.tolist() == [1, 1, 1, 1, 3, 3, 3, 2, 2, 2]


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


def test_a_paused_resource_is_replayed_as_active() -> None:
    assert in_arena(ruled_by(scripted({}), mode=Mode.PAUSED), arena()).mode is Mode.ACTIVE


def test_each_action_increases_the_epoch_by_one() -> None:
    app = App(in_arena(ruled_by(scripted({0: 2, 1: 3, 9: 1})), arena()), Plan(arena()))
    for minute in range(12):
        now = START + timedelta(minutes=minute)
        app.begin(minute, now)
        app.end(minute, now + timedelta(minutes=1), Minute(0.0))
    assert app.state.desired is not None
    assert app.state.desired.epoch == len(app.orders)
    assert not app.state.desired.pending


def test_finished_items_are_counted_one_to_four_minutes_late_and_none_is_lost() -> None:
    counted = replace(arena(), service_learned=True, finished_counted=True)
    app = App(in_arena(load_rules(SHIPPED_RULES).resource, counted), Plan(counted))
    late = list[float]()
    for minute in range(200):
        now = START + timedelta(minutes=minute)
        found = [m.value for m in app.samples(now, Minute(5.0, minute)) if m.name == "finished"]
        late += [(now - value.time) / timedelta(minutes=1) for value in found]
        assert all(value.time == START + timedelta(minutes=value.value) for value in found)
    assert 196 <= len(late) < 200
    assert set(late) == {1, 2, 3, 4}


def test_the_app_does_not_mistake_its_own_changes_for_manual_changes() -> None:
    policy = scripted({0: 2, 1: 3, 2: 4})
    assert replay(arena(), workload([0] * 12), ruled_by(policy)).false_alarms == 0


def test_minutes_after_a_gap_keep_their_own_times() -> None:
    seen: list[Observation] = []
    times = [START, START + timedelta(hours=3)]
    jumping = replace(workload([1, 1]), starts=times)
    replay(arena(), jumping, ruled_by(watching(seen)))
    assert [o.now for o in seen] == [t + timedelta(minutes=1) for t in times]


# --- faults -----------------------------------------------------------------------------------


@pytest.fixture(params=["shipped", "backlog"])
def rules_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "shipped":
        return NASA.parents[2] / "scaling_rules.py"
    path = tmp_path / "rules.py"
    path.write_text(BACKLOG_RULES)
    return path


@pytest.mark.parametrize("seed", range(4))
def test_safety_rules_hold_under_faults(seed: int, rules_path: Path) -> None:
    load = workload(bursty(seed, 1500, mean=400))
    rules = load_rules(rules_path)
    spec = arena(instance_rate=100)
    _, faults = replay_with_faults(spec, load, rules, seed, Progress())
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


def test_a_seed_reproduces_its_faults(rules_path: Path) -> None:
    load, rules = workload(bursty(1, 400)), load_rules(rules_path)
    runs = [replay_with_faults(arena(), load, rules, 5, Progress()) for _ in range(2)]
    assert runs[0][1] == runs[1][1]
    assert np.array_equal(runs[0][0].capacity, runs[1][0].capacity)
    other = replay_with_faults(arena(), load, rules, 6, Progress())
    assert other[1] != runs[0][1]


def test_faults_raise_the_cost_but_the_rules_still_work(tmp_path: Path) -> None:
    path = tmp_path / "rules.py"
    path.write_text(BACKLOG_RULES)
    load, rules, spec = workload(bursty(3, 1500)), load_rules(path), arena()
    normal = replay(spec, load, rules.resource).capacity
    faulty = replay_with_faults(spec, load, rules, 3, Progress())[0].capacity
    costs = [course(spec, load.arrivals, s).score(spec).J for s in (normal, faulty)]
    assert costs[0] < costs[1] < 3 * costs[0]


@pytest.mark.parametrize(("load", "switch_cost"), [(17.5, 2), (35, 10), (17.5, 30), (67.5, 30)])
def test_the_default_policy_eventually_removes_every_idle_instance(
    load: float, switch_cost: float
) -> None:
    """Whatever a change costs, a queue that stays empty needs only the minimum."""
    ended = workload([load] * 40 + [0.0] * 150)
    here = arena(switch_cost=switch_cost, max_instances=20)
    capacity = replay(here, ended, load_rules(SHIPPED_RULES).resource).capacity
    assert capacity.max() > 1
    assert capacity[-1] == 1
