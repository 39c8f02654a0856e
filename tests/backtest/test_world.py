"""The arena as harsh as production: samples, the answers of Resource Manager, and variations."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import numpy as np
import pytest

from backtest.arena import ARENAS, Plan, as_schedule, sufficient_rate, usual_rate
from backtest.outcome import course
from backtest.progress import ignore
from backtest.replay import TIMING, App, Seen, in_arena, replay, replay_workload
from backtest.rivals import RIVALS, race
from backtest.rivals import Seen as RivalSees
from backtest.rules_file import load_rules
from backtest.world import Queue, speed, spread, varied, world_of
from shared.autoscaling import Observation
from shared.autoscaling.declaring import Guards
from shared.autoscaling.errors import CapacityDelayed
from shared.values.measurements import Metric
from tests.backtest.arenas import SHIPPED_RULES, START, arena, bursty, workload
from tests.backtest.test_replay import RULES, ruled_by, scripted, watching

PRODUCTION = ARENAS["production"]
HARSH = arena(**PRODUCTION)
QUARTER = timedelta(seconds=15)


# --- samples ---


def test_rules_see_every_15_s_a_backlog_whose_growth_adds_up_to_the_arrivals_of_the_minute() -> (
    None
):
    seen: list[Observation] = []
    idle = replace(HARSH, instance_rate=1e-9)
    replay(idle, workload([400, 100]), ruled_by(watching(seen)))
    newest = [each.window("backlog").samples[-1] for each in seen]
    assert [sample.time for sample in newest] == [START + QUARTER * step for step in range(1, 9)]
    backlogs = [round(sample.value) for sample in newest]
    assert (backlogs[3], backlogs[7]) == (400, 500)
    assert len(set(np.diff([0, *backlogs[:4]]))) > 1  # they do not arrive evenly


def test_arrivals_within_a_minute_vary_as_in_a_poisson_process_and_repeat_with_their_seed() -> None:
    minutes = np.full(4000, 40.0)
    found = spread(minutes, 4, seed=1)
    assert found.reshape(-1, 4).sum(axis=1).tolist() == minutes.tolist()
    assert found.mean() == 10
    assert found.var() == pytest.approx(7.5, rel=0.05)  # of 40 items, a quarter each
    assert found.tolist() == spread(minutes, 4, seed=1).tolist()
    assert found.tolist() != spread(minutes, 4, seed=2).tolist()


def test_arrivals_that_a_trace_has_spread_evenly_stay_even() -> None:
    assert spread(np.array([10.4, 3.0]), 4, seed=1).tolist() == [2.6] * 4 + [0.75] * 4


def test_completed_items_are_counted_by_minute_and_at_least_a_minute_late() -> None:
    counted = replace(HARSH, service_learned=True, finished_counted=True)
    app = App(in_arena(load_rules(SHIPPED_RULES).resource, counted), Plan(counted))
    found: list[tuple[timedelta, Metric]] = []
    for step in range(400):
        now, whole = START + QUARTER * (step + 1), Seen(0.0, 40.0) if step % 4 == 3 else None
        read = app.samples(now, Seen(0.0, 10.0), whole)
        found += [(now - m.value.time, m) for m in read if m.name == "finished"]
    assert {metric.value.value for _, metric in found} == {40.0}
    assert all(
        (metric.value.time - START) % timedelta(minutes=1) == timedelta() for _, metric in found
    )
    assert min(late for late, _ in found) == timedelta(minutes=1)
    assert len(found) >= 96


# --- Resource Manager ---


@pytest.mark.parametrize(
    ("changes", "shown", "working"),
    [
        ({}, {1: 4}, {12: 4}),
        ({"confirm_seconds": 20.0}, {2: 4}, {12: 4}),
        ({"piece_instances": 2}, {1: 3, 3: 4}, {12: 3, 14: 4}),
        ({"sample_seconds": 60, "confirm_seconds": None}, {3: 4}, {3: 4}),
    ],
    ids=["number first", "number late", "in pieces", "kind: number with the work"],
)
def test_an_ordered_number_is_read_before_its_instances_work(
    changes: dict[str, object], shown: dict[int, int], working: dict[int, int]
) -> None:
    plan, seen = Plan(arena(**{**PRODUCTION, **changes})), list[tuple[int, int]]()
    for step in range(20):
        plan.begin(step)
        seen.append((plan.shown, plan.capacity))
        if step == 0:
            plan.order(4, step)
    for at, course_of in enumerate((shown, working)):
        numbers = [1, *[pair[at] for pair in seen]]
        changed = {step: b for step, (a, b) in enumerate(pairwise(numbers)) if a != b}
        assert changed == course_of


def test_an_order_is_confirmed_when_its_number_is_shown() -> None:
    resource = ruled_by(scripted({0: 3}))
    app = App(in_arena(resource, HARSH), Plan(HARSH))
    replay_workload(app, HARSH, workload([0, 0]), ignore)
    desired = app.state.desired
    assert desired is not None
    assert desired.changed_at is not None
    assert desired.changed_at - desired.requested_at == timedelta(seconds=8)
    assert len(desired.changes) == 1
    assert app.plan.capacity == 1  # none of them works yet


def test_more_than_20_changes_an_hour_are_refused_until_the_hour_is_over() -> None:
    plan = Plan(HARSH)
    for step in range(20):
        plan.order(2 + step % 2, step)
    with pytest.raises(CapacityDelayed, match="maximum amount of scale changes") as refused:
        plan.order(5, 20)
    assert refused.value.retry_after_seconds == 300
    with pytest.raises(CapacityDelayed):
        plan.order(5, 239)
    assert plan.ordered == 3
    plan.order(5, 240)
    assert plan.ordered == 5


def test_a_refused_change_is_deferred_and_carried_out_later() -> None:
    spec = replace(HARSH, max_instances=40)
    upwards = scripted({minute: 2 + minute for minute in range(24)})
    for minutes, shown in ((50, 21), (75, 25)):
        unaware = replace(ruled_by(upwards), guards=Guards(scale_changes_per_hour=10_000))
        app = App(in_arena(unaware, spec), Plan(spec))
        replay_workload(app, spec, workload([0] * minutes), ignore)
        assert app.plan.shown == shown
        desired = app.state.desired
        assert desired is not None
        assert desired.pending is (shown == 21)
        if desired.pending:
            assert "maximum amount of scale changes" in desired.last_error
            assert desired.retry_at is not None


def test_a_rival_is_refused_as_often_as_the_rules() -> None:
    def restless(seen: RivalSees) -> int:
        return 1 + seen.ordered % 2

    at_once = replace(HARSH, dead_time_minutes=0)
    schedule = race(at_once, workload([0] * 120), restless)
    score = course(at_once, np.zeros(120), schedule).score(at_once)
    assert (score.actions_an_hour_max, score.actions) == (20, 40)


KIND = {
    "keda": (
        "111111222222222233322222222233333333222222222222333366666655433333333333333333333333333333"
    ),
    "azure_monitor": (
        "111114444466666444442222222222222222222255555555555555555555555533333111111144444666666666"
    ),
    "original": (
        "111111111112222222222222333333333333344444444444444444455555555555555555444444444443333333"
    ),
    "largest of five minutes": (
        "111112222222222233322222222233333332222222222233333366666654432222334444433332222333333333"
    ),
}


@pytest.mark.parametrize("name", KIND)
def test_the_kind_arena_leads_to_the_schedules_that_it_always_led_to(name: str) -> None:
    spec, load = arena(**ARENAS["kind"]), workload(bursty(2, 90))
    if name in RIVALS:
        schedule = RIVALS[name](spec, load)
    else:
        schedule = replay(spec, load, RULES[name].resource, TIMING).capacity
    assert "".join(map(str, schedule.tolist())) == KIND[name]


def test_a_schedule_in_steps_costs_what_it_costs_in_minutes_if_it_is_the_same() -> None:
    spec, load = arena(), np.array([10.4, 80.4, 40.4, 0.4, 30.4])
    each = np.array([1, 4, 4, 2, 1])
    minutes = course(spec, load, as_schedule(each.tolist()))
    steps = course(replace(spec, **PRODUCTION), load, as_schedule(np.repeat(each, 4).tolist()))
    assert steps.backlog == pytest.approx(minutes.backlog)
    assert steps.by_minute.tolist() == each.tolist()
    costs = [each.score(spec).J for each in (steps, minutes)]
    assert costs[0] == pytest.approx(costs[1])


@pytest.mark.parametrize(
    ("at", "most"), [([0, 59], 2), ([0, 60], 1), ([5, 30, 40, 80, 89], 4), ([], 0)]
)
def test_the_most_changes_within_an_hour_are_counted(at: list[int], most: int) -> None:
    changed = np.isin(np.arange(120), [minute + 1 for minute in at])
    schedule = as_schedule((1 + np.cumsum(changed) % 2).tolist())
    assert course(arena(), np.zeros(120), schedule).score(arena()).actions_an_hour_max == most


# --- variations ---


@pytest.mark.parametrize(
    ("variation", "load", "rate", "expected"),
    [
        ("halved", [20.0] * 4, 20.0, {0: 0, 1: 0, 2: 10, 3: 20}),
        ("outage", [10.0] * 130, 20.0, {64: 0, 65: 10, 124: 600, 125: 590, 129: 550}),
        ("poison", [10.0] * 400, 19.0, {0: 0, 199: 0, 200: 0, 300: 0, 399: 0}),
        ("poison", [10.0] * 400, 10.0, {199: 0, 200: 90 / 19, 201: 180 / 19, 379: 16200 / 19}),
    ],
    ids=[
        "half as much is served after half of the trace",
        "nothing is served for an hour",
        "a tenth of ten times is 1.9 deliveries an item for three hours",
        "what waits is counted in items and not in deliveries",
    ],
)
def test_a_variation_changes_the_backlog_as_computed_by_hand(
    variation: str, load: list[float], rate: float, expected: dict[int, float]
) -> None:
    spec = varied(arena(instance_rate=rate), variation)
    queue = Queue(world_of(spec, np.array(load), 1))
    found = [queue.serve(minute, 1) for minute in range(len(load))]
    assert {minute: found[minute] for minute in expected} == pytest.approx(expected, abs=1e-9)


def test_poisoned_messages_are_never_completed() -> None:
    spec = varied(arena(instance_rate=19.0), "poison")
    queue, completed = Queue(world_of(spec, np.full(400, 10.0), 1)), []
    for minute in range(400):
        queue.serve(minute, 1)
        completed.append(queue.finished)
    assert completed[199:201] == pytest.approx([10, 9])
    assert completed[379:381] == pytest.approx([9, 10])


def test_the_rate_varies_by_the_hour_within_30_percent_and_repeats_with_its_seed() -> None:
    spec = varied(arena(), "hourly")
    found = speed(spec, 60_000)
    hours = found.reshape(-1, 60)
    assert (hours == hours[:, :1]).all()
    assert 0.7 <= hours.min() < 0.71
    assert 1.29 < hours.max() <= 1.3
    assert hours.mean() == pytest.approx(1, abs=0.02)
    assert found.tolist() == speed(spec, 60_000).tolist()
    assert found.tolist() != speed(replace(spec, seed=2), 60_000).tolist()


@pytest.mark.parametrize(
    ("variation", "field", "value"),
    [
        ("pieces", "piece_instances", 2),
        ("slow_start", "dead_time_minutes", 10),
        ("tight", "age_limit_minutes", 1),
    ],
)
def test_a_variation_sets_the_parameter_that_its_name_says(
    variation: str, field: str, value: int
) -> None:
    assert getattr(varied(arena(), variation), field) == value


def test_a_replay_repeats_with_its_seed() -> None:
    spec, load = varied(arena(**PRODUCTION, instance_rate=40.0), "hourly"), workload(bursty(3, 240))
    first, again, other = (
        replay(replace(spec, seed=seed), load, RULES["shipped"].resource).capacity.tolist()
        for seed in (5, 5, 6)
    )
    assert first == again != other


def test_the_sufficient_rate_lets_18_instances_serve_the_busiest_five_minutes() -> None:
    calm = np.full(5000, 140.0)
    assert sufficient_rate(calm) == usual_rate(calm) == 10
    burst = calm.copy()
    burst[1000:1005] = [300, 500, 400, 600, 900]
    assert sufficient_rate(burst) == pytest.approx(540 / 18)
