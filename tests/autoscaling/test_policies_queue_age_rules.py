"""What the shipped policy says, to the word and the unit, and where its rules begin and end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shared.autoscaling import Goal, Limits, QueueAge, Recommendation, Threshold, Throughput
from shared.autoscaling.policies.outlook import Arrivals, Outlook
from shared.autoscaling.policies.queue_age import _Choice
from shared.values.measurements import Window
from tests.autoscaling.test_policies_queue_age import POLICY, RATE, growing, seen
from tests.builders import ago, desired, sample

QUICK = replace(POLICY, step_seconds=6)
"""All is ten times faster than a minute a step."""
QUICKLY: dict[str, Any] = {
    "every_seconds": 6,
    "goal": Goal(age_limit_minutes=0.5, switch_cost=2, late_penalty=10),
    "throughput": Throughput(10 * RATE, 0.3),
}


def told(wish: Recommendation) -> tuple[int, str, dict[str, float]]:
    assert (wish.rule, wish.paced) == ("queue_age", True)
    evidence = {name: round(float(str(value)), 6) for name, value in wish.evidence.items()}
    return wish.capacity, wish.reason, evidence


def evidence(
    backlog: float, arrivals: float, ordered: int = 4, scale: float = 1
) -> dict[str, float]:
    return {
        "backlog": backlog,
        "arrivals_per_minute": arrivals * scale,
        "rate_per_instance_minute": RATE * scale,
        "dead_time_minutes": 3 / scale,
        "ordered": ordered,
    }


# --- words and units ---


def test_a_scale_out_tells_backlog_arrivals_age_and_what_new_instances_need() -> None:
    assert told(POLICY(seen(growing(400, 100)))) == (
        15,
        "with a backlog of 3700 and 800 arrivals/min, 4 instances would let work become "
        "7.12 min old within the next 5 min; the policy plans for at most 4.75 min; "
        "new instances take 3 min to start, so more are needed now",
        evidence(3700, 800),
    )


def test_where_steps_are_seconds_all_is_told_in_seconds() -> None:
    assert told(QUICK(seen(growing(400, 100), **QUICKLY))) == (
        15,
        "with a backlog of 3700 and 133.3 arrivals/s, 4 instances would let work become "
        "42.8 s old within the next 30 s; the policy plans for at most 28.5 s; "
        "new instances take 18 s to start, so more are needed now",
        evidence(3700, 800, scale=10),
    )


@pytest.mark.parametrize(("step_seconds", "unit"), [(29.9, " s "), (30, " min ")])
def test_steps_of_half_a_minute_are_told_in_minutes(step_seconds: float, unit: str) -> None:
    policy = replace(POLICY, step_seconds=step_seconds)
    backlog = growing(400, 100, 20)
    assert unit in policy(seen(backlog, every_seconds=step_seconds)).reason


def test_a_hold_says_why_and_carries_the_same_evidence() -> None:
    assert told(POLICY(seen([300.0] * 10))) == (
        4,
        "holding: the backlog is neither late nor empty",
        evidence(300, 400),
    )


def test_a_scale_in_tells_for_how_long_fewer_will_do() -> None:
    backlog = [*[50.0] * 5, *[0.0] * 10]
    capacity, reason, found = told(POLICY(seen(backlog)))
    assert (capacity, reason) == (
        3,
        "the queue runs empty at 336 arrivals/min; 3 instances will be enough for the next 8 min, "
        "and another one would be idle for at least 50% of the time",
    )
    assert found["backlog"] == 0
    _, in_seconds, _ = told(QUICK(seen(backlog, **QUICKLY)))
    assert "empty at 56.01 arrivals/s; 3 instances will be enough for the next 48 s" in in_seconds
    assert ", 1 instance would let work " in POLICY(seen(growing(400, 100), capacity=1)).reason


def test_an_instance_that_has_enough_to_do_stays() -> None:
    _, reason, _ = told(POLICY(seen([150.0, 0.0] * 8, capacity=2)))
    assert reason == "holding: the last instance has enough to do"


def test_at_the_maximum_it_says_how_old_work_will_be() -> None:
    capacity, reason, _ = told(POLICY(seen(growing(4000, 100), capacity=20)))
    assert (capacity, reason) == (20, "work will be 9.35 min old, but 20 is the maximum")


# --- before it can know ---


@pytest.mark.parametrize(("pending", "ordered"), [(None, 4), (desired(target=7), 7)])
def test_without_a_second_sample_what_is_ordered_stands(pending: Any, ordered: int) -> None:
    found = POLICY(seen([500.0], pending=pending))
    assert found == Recommendation(ordered, "no second sample of backlog yet", "queue_age")


def test_an_unknown_start_up_time_is_taken_for_three_minutes() -> None:
    backlog = growing(60, 1100)
    assert POLICY(seen(backlog, throughput=Throughput(RATE))) == POLICY(seen(backlog))


# --- an order under way ---


def outlook(policy: QueueAge = POLICY, steps: float = 1, **changes: Any) -> Outlook:
    found = policy._outlook(seen([800.0] * 10, **changes), RATE, steps)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("waited_seconds", "dead", "arrival", "overdue"),
    [
        (0, 3, 3, False),
        (60, 3, 2, False),
        (90, 3, 2, False),
        (120, 3, 1, False),
        (180, 3, 1, False),
        (181, 3, 1, True),
        (60, 0, 1, False),
        (61, 0, 1, True),
    ],
)
def test_an_order_arrives_after_the_start_up_time_and_is_overdue_after_it(
    waited_seconds: float, dead: float, arrival: int, overdue: bool
) -> None:
    """With a start-up time below a step, a step after it."""
    order = desired(target=6, previous=4, requested_at=ago(waited_seconds))
    found = outlook(pending=order, throughput=Throughput(RATE, dead))
    assert (found.ordered, found.arrival, found.overdue) == (6, arrival, overdue)
    assert found.dead == max(1, dead)


def test_a_start_up_time_of_whole_steps_is_not_rounded_up() -> None:
    """In steps of 9 s, 2.1 minutes are 14 steps, as a floating-point number slightly more."""
    order = desired(target=6, previous=4, requested_at=ago(0))
    found = outlook(steps=60 / 9, pending=order, throughput=Throughput(RATE, 2.1))
    assert (found.dead, found.arrival) == (14, 14)


def test_nothing_is_awaited_where_nothing_is_ordered_or_the_order_changes_nothing() -> None:
    for pending in (None, desired(target=4, previous=4, requested_at=ago(900))):
        found = outlook(pending=pending)
        assert (found.ordered, found.arrival, found.overdue) == (4, 1, False)


def test_an_order_that_comes_sooner_than_a_new_one_is_waited_for_and_named() -> None:
    order = desired(target=9, previous=4, requested_at=ago(60))
    capacity, reason, _ = told(POLICY(seen(growing(200, 600), pending=order)))
    assert capacity == 9
    assert reason in (
        "9 instances will be running within 2 min, and a new request would not reduce late work",
        "holding: the backlog is neither late nor empty",
    )


def test_while_the_queue_runs_empty_an_order_under_way_stands() -> None:
    order = desired(target=6, previous=4, requested_at=ago(60))
    capacity, reason, _ = told(POLICY(seen([0.0] * 15, pending=order)))
    change = "the change to 6 instances is still pending"
    assert (capacity, reason) == (6, f"the queue runs empty, but {change}")


# --- the age limit ---


@pytest.mark.parametrize(
    ("minutes", "steps", "length"), [(5, 1, 5), (5, 2, 10), (0.5, 1, 1), (0, 1, 1), (1.999, 1, 1)]
)
def test_the_age_limit_is_at_least_a_step_long(minutes: float, steps: float, length: int) -> None:
    found = outlook(steps=steps, goal=Goal(minutes, 2, 10))
    assert len(found.arrivals.recent) == length


@pytest.mark.parametrize(("error", "share"), [(0, 0.95), (0.05, 0.9), (0.15, 0.8), (10, 0.8)])
def test_an_uncertain_rate_leaves_part_of_the_age_limit_unused_but_a_fifth_at_most(
    error: float, share: float
) -> None:
    found = outlook(throughput=Throughput(RATE, 3, relative_error=error))
    assert found.share == pytest.approx(share)


@pytest.mark.parametrize(
    ("age_share", "error", "share"),
    [(0.5, 0, 0.5), (0.5, 0.2, 0.5), (0.79, 0, 0.79), (0.8, 0.1, 0.8), (1, 0.1, 0.9), (1, 1, 0.8)],
)
def test_an_age_share_below_four_fifths_is_planned_with_as_it_is(
    age_share: float, error: float, share: float
) -> None:
    policy = replace(POLICY, age_share=age_share)
    found = policy._outlook(
        seen(growing(200, 300), throughput=Throughput(RATE, 3, relative_error=error)), RATE, 1
    )
    assert found is not None
    assert found.share == pytest.approx(share)


def test_work_that_waits_while_nothing_arrives_becomes_older_than_the_age_limit() -> None:
    waiting = Outlook(50, Arrivals(0, (0.0,) * 5), 4, 4, 3, 1, 0.95)
    projected = waiting.project([4] * 5)
    assert projected.late > 0
    assert projected.worst_age == 6
    assert Outlook(0, Arrivals(0, (0.0,) * 5), 4, 4, 3, 1, 0.95).project([4] * 5).worst_age == 0


def test_arrivals_are_told_from_the_capacity_that_there_was() -> None:
    """Two instances until five minutes ago: with four all the time, more would have come."""
    backlog = [*(100.0 + 100 * i for i in range(6)), *(500.0 - 100 * i for i in range(5))]
    capacities = Window((sample(2, 7200), sample(2, 300), sample(4, 240), sample(4)))
    found = POLICY(seen(backlog, capacity=4, capacities=capacities))
    assert found.evidence["arrivals_per_minute"] == pytest.approx(300)
    unknown = POLICY(seen([300.0] * 10, capacity=4, capacities=Window(())))
    assert unknown.evidence["arrivals_per_minute"] == pytest.approx(400)


# --- idle for long ---


@pytest.mark.parametrize(
    ("changes", "tries"),
    [
        ({"changed_at": ago(1740)}, True),
        ({"changed_at": ago(1739)}, False),
        ({"changed_at": None}, True),
    ],
)
def test_fewer_are_tried_only_after_half_an_hour_at_the_same_capacity(
    changes: dict[str, Any], tries: bool
) -> None:
    dear = Goal(5, 10, 10)
    wish = POLICY(seen([0.0] * 40, capacity=2, goal=dear, **changes))
    assert (wish.capacity == 1) is tries


@pytest.mark.parametrize(("samples", "tries"), [(29, False), (30, True)])
def test_fewer_are_tried_only_where_samples_reach_back_as_far(samples: int, tries: bool) -> None:
    wish = POLICY(seen([0.0] * samples, capacity=2, goal=Goal(5, 10, 10)))
    assert (wish.capacity == 1) is tries


def test_work_that_waits_for_slow_instances_is_no_idleness() -> None:
    """Four items in hand of each of two instances do not wait; forty do."""
    dear, slow = Goal(5, 10, 10), Throughput(4, 3)
    in_hand = [*[0.0] * 20, 2.0, *[0.0] * 20]
    waits = [*[0.0] * 20, 40.0, *[0.0] * 20]
    assert POLICY(seen(in_hand, capacity=2, goal=dear, throughput=slow)).capacity == 1
    held = POLICY(seen(waits, capacity=2, goal=dear, throughput=slow))
    assert held.capacity == 2, held.reason


# --- what is wrong with it ---


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"metric": ""}, "metric = '': must be a name"),
        ({"step_seconds": 0.09}, "step_seconds = 0.09: must be 0.1 to 480"),
        ({"step_seconds": 480.5}, "step_seconds = 480.5: must be 0.1 to 480"),
        ({"age_share": 1.5}, "age_share = 1.5: must be above 0 and at most 1"),
        ({"caution": -0.5}, "caution = -0.5: must be 0 to 1000"),
        ({"caution": 1000.5}, "caution = 1000.5: must be 0 to 1000"),
        ({"busy_share": -0.5}, "busy_share = -0.5: must be 0 to 1"),
        ({"busy_share": 1.5}, "busy_share = 1.5: must be 0 to 1"),
        ({"until_known": 3}, "until_known = 3: must be callable with an Observation"),
    ],
)
def test_each_parameter_is_named_with_its_value_and_bound(
    changes: dict[str, Any], problem: str
) -> None:
    assert replace(POLICY, **changes).problems() == [problem]


@pytest.mark.parametrize(
    "changes",
    [
        {"step_seconds": 0.1, "caution": 0, "busy_share": 0},
        {"step_seconds": 480, "caution": 1000, "busy_share": 1},
        {"step_seconds": 1, "caution": 0.5},
    ],
)
def test_bounds_of_parameters_are_allowed(changes: dict[str, Any]) -> None:
    assert replace(POLICY, **changes).problems() == []


def test_what_is_wrong_with_the_rule_before_is_named_too() -> None:
    wrong = replace(POLICY, until_known=Threshold("", 100, 10))
    assert wrong.problems() == ["until_known.metric = '': must be a name"]


# --- the last instance ---


@pytest.mark.parametrize(
    ("rate", "busy_share", "share"),
    [
        (0.0, 0.5, 0.0),
        (0.1, 0.5, 0.5 / 16.5),
        (1.0, 0.5, 5 / 21),
        (10.0, 0.5, 0.5),
        (10.0, 0.6, 0.6),
        (1.0, 0.1, 0.1),
    ],
)
def test_an_instance_stays_that_is_busy_for_more_than_four_return_trips_are_worth(
    rate: float, busy_share: float, share: float
) -> None:
    """f = min(busy share, L·λ / (L·λ + 8κ)), with L = 5 and κ = 2."""
    policy = replace(POLICY, busy_share=busy_share)
    found = policy._outlook(seen([0.0] * 10), RATE, 1)
    assert found is not None

    choice = _Choice(policy, seen([0.0] * 10), found, RATE, 1)
    assert choice._busy_share(rate) == pytest.approx(share)
    assert choice._needed(rate) == max(0, -int(-(rate - share - 1e-9) // 1))


def test_limits_hold_in_the_last_step_too() -> None:
    wish = POLICY(seen([0.0] * 15, capacity=6, limits=Limits(5, 20)))
    assert wish.capacity == 5


# --- its thresholds, to the instance ---


def test_a_queue_that_is_served_to_the_last_item_in_a_step_runs_empty() -> None:
    """400 arrive and 300 wait: seven instances, since this moment, finish just that."""
    until_now = Window((sample(4, 7200), sample(4)))
    capacity, reason, _ = told(POLICY(seen([300.0] * 10, capacity=7, capacities=until_now)))
    assert capacity == 4
    assert reason.startswith("the queue runs empty")


def test_an_order_that_comes_in_a_minute_is_not_replaced_by_one_that_takes_three() -> None:
    order = desired(target=5, previous=4, requested_at=ago(120))
    capacity, reason, _ = told(POLICY(seen(growing(200, 600), pending=order)))
    expected = (
        "5 instances will be running within 1 min, and a new request would not reduce late work"
    )
    assert (capacity, reason) == (5, expected)


@pytest.mark.parametrize(("waited", "capacity"), [(10, 6), (9, 5)])
def test_what_came_is_remembered_where_work_waited_in_a_third_of_half_an_hour(
    waited: int, capacity: int
) -> None:
    backlog = [*[0.0] * (29 - waited), *[300.0] * waited, 0.0, 0.0]
    assert POLICY(seen(backlog, capacity=6, goal=Goal(5, 20, 10))).capacity == capacity


LULL = [*[600.0] * 22, 450.0, 300.0, 150.0, 0.0]
"""Work waited for long, and all of it was done in the last four minutes."""


@pytest.mark.parametrize(
    ("capacities", "rate"),
    [
        (Window((sample(8, 7200), sample(8, 600), sample(4, 540), sample(4))), 4.8788637604),
        (Window((sample(2, 7200), sample(2, 900), sample(4, 840), sample(4))), 3.0723677358),
        (Window(()), 3.48415),
    ],
)
def test_what_is_remembered_to_have_come_depends_on_the_instances_there_were(
    capacities: Window, rate: float
) -> None:
    found = seen(LULL, goal=Goal(5, 10, 10), capacities=capacities)
    outlook = POLICY._outlook(found, RATE, 1)
    assert outlook is not None
    assert _Choice(POLICY, found, outlook, RATE, 1)._remembered_rate() == pytest.approx(rate)


def test_what_waits_is_to_be_done_within_the_patience_of_the_policy() -> None:
    """Eight instance-minutes within eight minutes take one instance more."""
    found = seen([800.0] * 10)
    outlook = POLICY._outlook(found, RATE, 1)
    assert outlook is not None
    choice = _Choice(POLICY, found, outlook, RATE, 1)
    assert choice._needed(3.0) == 4
    assert choice._needed(0.0) == 1


def test_where_changes_cost_nothing_an_idle_instance_has_no_share_of_work() -> None:
    free = seen([0.0] * 10, goal=Goal(5, 0, 10))
    outlook = POLICY._outlook(free, RATE, 1)
    assert outlook is not None
    assert _Choice(POLICY, free, outlook, RATE, 1)._busy_share(0.0) == 0.0
