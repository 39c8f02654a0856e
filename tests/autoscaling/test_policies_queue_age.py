"""The policy that comes with the app: hold, and move only where holding costs more."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.autoscaling import (
    Goal,
    Limits,
    Observation,
    QueueAge,
    Recommendation,
    Threshold,
    Throughput,
)
from shared.autoscaling.policies.outlook import Arrivals, infer
from shared.values.measurements import MetricValue, Window
from tests.builders import NOW, ago, desired, sample

RATE = 100.0
POLICY = QueueAge("backlog", lambda seen: Recommendation(seen.capacity, "not known yet"))


def seen(
    backlog: Sequence[float], capacity: int = 4, every_seconds: float = 60, **changes: Any
) -> Observation:
    """The backlog read at a steady pace up to now, with that many instances all the time."""
    last = len(backlog) - 1
    samples = Window(
        tuple(sample(value, (last - i) * every_seconds) for i, value in enumerate(backlog))
    )
    fields: dict[str, Any] = {
        "resource_name": "plan-1",
        "now": NOW,
        "capacity": capacity,
        "limits": Limits(1, 20),
        "metrics": {"backlog": samples},
        "histories": {"backlog": samples},
        "capacities": Window((sample(capacity, 7200), sample(capacity))),
        "goal": Goal(age_limit_minutes=5, switch_cost=2, late_penalty=10),
        "throughput": Throughput(RATE, 3),
    }
    return Observation(**{**fields, **changes})


def growing(per_minute: float, start: float = 0, minutes: int = 10) -> list[float]:
    return [start + per_minute * minute for minute in range(minutes)]


# --- arrivals, inferred ---


def inferred(found: Observation, step_seconds: float = 60, steps: int = 5) -> Arrivals:
    arrivals = infer(
        found.history("backlog"),
        found.capacities.samples,
        found.capacity,
        RATE * step_seconds / 60,
        steps,
        step_seconds,
        found.now,
    )
    assert arrivals is not None
    return arrivals


@pytest.mark.parametrize("every_seconds", [15, 60, 90])
def test_while_work_waits_arrivals_are_growth_plus_throughput(every_seconds: float) -> None:
    """400 a minute are served, and the backlog grows by 200 a minute: 600 arrive."""
    steps = int(900 / every_seconds)
    backlog = [50 + 200 * i * every_seconds / 60 for i in range(steps)]
    found = inferred(seen(backlog, every_seconds=every_seconds))
    assert found.rate == pytest.approx(6.0)
    assert sum(found.recent) == pytest.approx(30.0)


def test_a_missing_sample_is_bridged_not_taken_for_zero() -> None:
    found = seen(growing(200, 50, 12))
    kept = tuple(s for i, s in enumerate(found.history("backlog").samples) if i not in (5, 6, 9))
    gappy = replace(found, histories={"backlog": Window(kept)})
    assert inferred(gappy).rate == pytest.approx(6.0)


def test_an_empty_queue_lets_the_estimate_sink_minute_by_minute() -> None:
    busy, idle = inferred(seen(growing(0, 50))), inferred(seen([50.0] * 5 + [0.0] * 5))
    assert busy.rate == pytest.approx(4.0)
    assert 2.0 < idle.rate < 3.8


def test_instances_that_changed_meanwhile_are_counted_as_they_were() -> None:
    """Two instances until five minutes ago, four since then; 300 arrive all the time."""
    backlog = [*(100.0 + 100 * i for i in range(6)), *(500.0 - 100 * i for i in range(5))]
    capacities = Window((sample(2, 7200), sample(2, 300), sample(4, 240), sample(4)))
    found = inferred(seen(backlog, capacity=4, capacities=capacities))
    assert found.rate == pytest.approx(3.0)


@pytest.mark.parametrize("load", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("sample_seconds", [15, 30, 60, 75])
def test_items_that_are_finished_in_chunks_do_not_overrate_the_arrivals(
    load: float, sample_seconds: float
) -> None:
    """Two instances finish what they do in a minute all at once, seen at every phase of it."""
    rates, recent = [], []
    for phase in range(0, 60, 5):
        times = [i * sample_seconds + phase for i in range(int(1500 / sample_seconds))]
        backlog = [5000 + RATE * (load * t / 60 - 2 * (t // 60)) for t in times]
        found = inferred(seen(backlog, capacity=2, every_seconds=sample_seconds))
        rates.append(found.rate)
        recent.append(sum(found.recent))
        assert min(found.recent) >= 0
    assert sum(rates) / len(rates) == pytest.approx(load, rel=0.08)
    assert sum(recent) / len(recent) == pytest.approx(5 * load, rel=0.08)


# --- out, in, hold ---


def test_it_holds_while_the_backlog_is_neither_late_nor_empty() -> None:
    wish = POLICY(seen([800.0] * 10))
    assert (wish.capacity, wish.paced) == (4, True)
    assert wish.reason.startswith("holding")


def test_it_scales_out_before_work_is_late_and_says_by_how_much() -> None:
    wish = POLICY(seen(growing(200, 300)))
    assert wish.capacity >= 6
    assert re.search(r"backlog of 2100 and 600 arrivals/min, .* [\d.]+ min old", wish.reason)
    assert wish.evidence["arrivals_per_minute"] == pytest.approx(600)


@pytest.mark.parametrize(
    ("backlog", "capacity", "said"),
    [
        ([0.0] * 10, 1, "the queue runs empty, but 1 is the minimum"),
        (growing(900, 9000), 20, "but 20 is the maximum"),
    ],
)
def test_at_its_limits_it_says_so(backlog: list[float], capacity: int, said: str) -> None:
    wish = POLICY(seen(backlog, capacity))
    assert wish.capacity == capacity
    assert said in wish.reason


def test_the_longer_instances_take_the_earlier_it_orders() -> None:
    backlog = growing(60, 1100)
    assert POLICY(seen(backlog, throughput=Throughput(RATE, 0))).capacity == 4
    assert POLICY(seen(backlog, throughput=Throughput(RATE, 8))).capacity > 4


def test_it_lets_idle_instances_go_and_keeps_those_that_are_busy_half_the_time() -> None:
    empty = seen([0.0] * 15, capacity=6)
    assert POLICY(empty).capacity < 6
    busy = seen([30.0, 10.0, 30.0, 10.0, 30.0, 0.0], capacity=2)
    assert POLICY(busy).capacity == 2


def test_dear_changes_make_it_slower_to_let_go() -> None:
    falling = [*growing(-100, 900, 9), 50.0]
    cheap = POLICY(seen(falling, capacity=5, goal=Goal(5, 0, 10)))
    dear = POLICY(seen(falling, capacity=5, goal=Goal(5, 50, 10)))
    assert cheap.capacity <= dear.capacity


def test_the_dearer_a_change_the_longer_it_remembers_what_came() -> None:
    """400 a minute came for long, and 250 in the last four minutes."""
    lull = [*[600.0] * 22, 450.0, 300.0, 150.0, 0.0]
    assert POLICY(seen(lull, goal=Goal(5, 2, 10))).capacity == 3
    assert POLICY(seen(lull, goal=Goal(5, 10, 10))).capacity == 4


def test_it_keeps_one_at_most_for_what_came_long_ago() -> None:
    """1200 a minute came until ten minutes ago, and since then who knows: some 730 at most."""
    over = [*[1200.0] * 20, *[0.0] * 10]
    assert POLICY(seen(over, capacity=12, goal=Goal(5, 20, 10))).capacity == 8 + 1


def test_of_a_queue_that_was_mostly_empty_nothing_is_remembered() -> None:
    burst = [*[0.0] * 22, 800.0, 600.0, 300.0, *[0.0] * 3]
    dear, cheap = Goal(5, 40, 10), Goal(5, 0, 10)
    assert POLICY(seen(burst, goal=dear)).capacity == POLICY(seen(burst, goal=cheap)).capacity


def test_after_half_an_hour_without_work_it_tries_with_one_fewer() -> None:
    """The estimate alone would keep the second instance for ever: nothing tells what comes."""
    dear = Goal(5, 10, 10)
    wish = POLICY(seen([0.0] * 31, capacity=2, goal=dear))
    assert (wish.capacity, wish.reason) == (
        1,
        "the queue was empty for 29 min at 2 instances: trying 1",
    )
    for other in (
        seen([0.0] * 25, capacity=2, goal=dear),  # was not looked at for long enough
        seen([*[0.0] * 10, 30.0, *[0.0] * 20], capacity=2, goal=dear),
        seen([0.0] * 31, capacity=2, goal=dear, changed_at=ago(600)),
        seen([0.0] * 31, capacity=2, goal=dear, limits=Limits(2, 9)),
    ):
        assert POLICY(other).capacity == 2, POLICY(other).reason


def test_what_instances_have_in_hand_does_not_wait() -> None:
    """Brokers count an item until it is finished: busy instances alone make no backlog."""
    assert POLICY(seen([3.0, 1.0, 4.0] * 10, capacity=4)).capacity < 4
    slow = Throughput(4, 3)
    assert POLICY(seen([3.0, 1.0, 2.0] * 10, capacity=4, throughput=slow)).capacity < 4
    assert POLICY(seen([30.0, 31.0, 30.0] * 10, capacity=4, throughput=slow)).capacity >= 4


def test_an_order_under_way_counts_as_coming() -> None:
    pending = desired(target=9, previous=4, requested_at=ago(120))
    wish = POLICY(seen(growing(200, 300), pending=pending))
    assert wish.capacity >= 9
    assert "will be running within" in wish.reason or wish.capacity > 9 or "holding" in wish.reason


def test_an_order_that_should_have_come_long_ago_is_not_waited_for() -> None:
    late = desired(target=5, previous=4, requested_at=ago(420))
    wish = POLICY(seen(growing(300, 600), pending=late))
    assert wish.capacity > 5


def test_samples_of_a_clock_that_is_ahead_and_sparse_ones_do_no_harm() -> None:
    quick = replace(POLICY, step_seconds=1)
    ahead = seen(growing(50), every_seconds=5, throughput=Throughput(RATE * 60, 0.05))
    assert quick(replace(ahead, now=ago(30))).reason
    sparse = seen([14_000.0] * 6, capacity=1, every_seconds=15, throughput=Throughput(RATE, 0.05))
    assert quick(sparse).capacity > 1


@pytest.mark.parametrize("ahead_seconds", [0, 1, 12, 60])
@pytest.mark.parametrize("step_seconds", [0.1, 1, 7, 60, 480])
@pytest.mark.parametrize("rate", [None, RATE])
def test_a_clock_of_a_source_that_is_ahead_changes_no_decision(
    ahead_seconds: float, step_seconds: float, rate: float | None
) -> None:
    """Samples up to a minute ahead are accepted."""
    policy = replace(POLICY, step_seconds=step_seconds)
    throughput = Throughput(rate, 3)
    on_time = seen(growing(50), every_seconds=5, throughput=throughput)
    ahead = replace(on_time, now=ago(ahead_seconds))
    wish = policy(ahead)
    assert (wish.capacity, wish.rule) == (policy(on_time).capacity, policy(on_time).rule)
    for steps in (1, 5):
        known = inferred(on_time, step_seconds, steps)
        assert inferred(ahead, step_seconds, steps).recent == known.recent


def test_the_metrics_of_the_rule_before_are_checked_too() -> None:
    both = QueueAge("backlog", Threshold("typo", 100, 10))
    assert both.metric_names == ("backlog", "typo")


def test_a_rate_that_is_not_sure_leaves_more_of_the_age_limit_unused() -> None:
    backlog = [1830.0] * 10
    assert POLICY(seen(backlog)).capacity == 4
    assert POLICY(seen(backlog, throughput=Throughput(RATE, 3, relative_error=0.15))).capacity > 4


def test_until_the_rate_is_known_the_other_rule_decides() -> None:
    wish = POLICY(seen([800.0] * 10, throughput=Throughput()))
    assert wish.reason == "not known yet; the rate per instance is not known yet"
    assert not wish.paced


def test_without_two_samples_it_stays() -> None:
    assert POLICY(seen([500.0])).capacity == 4
    assert "no second sample" in POLICY(seen([])).reason


def test_it_plans_alike_where_a_minute_lasts_a_second() -> None:
    fast = replace(POLICY, step_seconds=1)
    slow = POLICY(seen(growing(200, 300)))
    quick = fast(
        seen(
            growing(200, 300),
            every_seconds=1,
            throughput=Throughput(RATE * 60, 3 / 60),
            goal=Goal(5 / 60, 2, 10),
        )
    )
    assert quick.capacity == slow.capacity


def test_wrong_parameters_are_named() -> None:
    assert POLICY.problems() == []
    wrong = QueueAge("backlog", None, step_seconds="x")  # type: ignore[arg-type]
    assert len(wrong.problems()) == 2


@given(
    backlog=st.lists(st.floats(0, 1e7), max_size=20),
    capacity=st.integers(1, 20),
    every_seconds=st.sampled_from([1.0, 15.0, 60.0, 400.0]),
    rate=st.floats(0.01, 1e5),
    dead=st.floats(0, 30),
    goal=st.builds(Goal, st.floats(0, 60), st.floats(0, 100), st.floats(0, 100)),
    pending=st.none() | st.builds(lambda t: desired(target=t, previous=2), st.integers(1, 20)),
)
def test_it_never_raises_and_never_leaves_its_limits(
    backlog: list[float],
    capacity: int,
    every_seconds: float,
    rate: float,
    dead: float,
    goal: Goal,
    pending: Any,
) -> None:
    found = seen(
        backlog,
        capacity,
        every_seconds,
        throughput=Throughput(rate, dead),
        goal=goal,
        pending=pending,
    )
    wish = POLICY(found)
    assert 1 <= wish.capacity <= 20
    assert wish.reason


def test_a_step_in_load_is_served_within_the_age_limit() -> None:
    """Minute by minute: 300 a minute become 1500; three minutes pass until instances work."""
    backlog, capacity, coming = 0.0, 3, None
    history: list[MetricValue] = []
    capacities: list[MetricValue] = []
    arrived: list[float] = []
    for minute in range(60):
        now = NOW + timedelta(minutes=minute)
        if coming and coming[0] <= minute:
            capacity, coming = coming[1], None
        arrivals = 300.0 if minute < 30 else 1500.0
        arrived.append(arrivals)
        backlog = max(backlog + arrivals - RATE * capacity, 0.0)
        assert backlog <= sum(arrived[-5:]), f"late work in minute {minute}"
        history.append(MetricValue(now, backlog))
        capacities.append(MetricValue(now, float(capacity)))
        pending = (
            desired(target=coming[1], requested_at=now - timedelta(minutes=3 + minute - coming[0]))
            if coming
            else None
        )
        found = replace(
            seen([], capacity, pending=pending),
            now=now,
            histories={"backlog": Window(tuple(history))},
            capacities=Window(tuple(capacities)),
        )
        wanted = POLICY(found).capacity
        if wanted > capacity and (coming is None or wanted != coming[1]):
            coming = (minute + 3, wanted)
        elif wanted < capacity and coming is None:
            capacity = wanted
    assert capacity >= 15
