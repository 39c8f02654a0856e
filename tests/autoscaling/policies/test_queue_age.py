"""The policy that comes with the app: it holds, and moves only where holding costs more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
from shared.autoscaling.policies.outlook import Arrivals, Memory, Outlook, infer
from shared.autoscaling.policies.queue_age import _Choice
from shared.autoscaling.policy import RateEstimate, RateSource
from shared.values.measurements import Window
from tests.builders import NOW, ago, desired, history, sample

RATE = 100.0
POLICY = QueueAge("backlog", lambda seen: Recommendation(seen.capacity, "not known yet"))
DEAR = Goal(5, 10, 10)
SLOW = Throughput(4, 3)
QUICK = replace(POLICY, step_seconds=6)
"""All is ten times faster than a minute a step."""
QUICKLY: dict[str, Any] = {
    "every_seconds": 6,
    "goal": Goal(age_limit_minutes=0.5, switch_cost=2, late_penalty=10),
    "throughput": Throughput(10 * RATE, 0.3),
}
LULL = [*[600.0] * 22, 450.0, 300.0, 150.0, 0.0]
"""Work waited for long, and all of it was done in the last four minutes."""
BURST = [*[0.0] * 22, 800.0, 600.0, 300.0, *[0.0] * 3]


def seen(
    backlog: Sequence[float], capacity: int = 4, every_seconds: float = 60, **changes: Any
) -> Observation:
    """The backlog read at a steady pace up to now, with that many instances all the time."""
    samples = history(backlog, every_seconds)
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


def order(target: int, waited_seconds: float, previous: int = 4) -> Any:
    return desired(target=target, previous=previous, requested_at=ago(waited_seconds))


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
        Memory(POLICY.return_cost(found)),
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
    assert inferred(replace(found, histories={"backlog": Window(kept)})).rate == pytest.approx(6.0)


def test_an_empty_queue_lets_the_estimate_sink_minute_by_minute() -> None:
    busy, idle = inferred(seen(growing(0, 50))), inferred(seen([50.0] * 5 + [0.0] * 5))
    assert busy.rate == pytest.approx(4.0)
    assert 2.0 < idle.rate < 3.8


def test_the_more_expensive_a_change_the_slower_the_estimate_sinks() -> None:
    drained = seen([50.0] * 5 + [0.0] * 5)
    rates = [
        inferred(replace(drained, goal=replace(drained.goal, switch_cost=cost))).rate
        for cost in (0, 1, 2, 10, 50)
    ]
    assert rates[0] == rates[1] == pytest.approx(4.0 * 0.94**5)
    assert rates == sorted(rates)
    assert rates[2] < rates[3] - 0.2 < rates[4] - 0.2


@pytest.mark.parametrize(
    ("age_limit", "start_up", "cost"),
    [(5, 3, 2), (60, None, 2), (5, None, 2), (4, 3, 12), (1, None, 30), (5, 10, 30), (0.5, 0, 17)],
)
def test_work_that_becomes_late_until_another_instance_works_adds_to_the_return_cost(
    age_limit: float, start_up: float | None, cost: float
) -> None:
    found = seen([0.0] * 3, goal=Goal(age_limit, 2, 10), throughput=Throughput(RATE, start_up))
    assert POLICY.return_cost(found) == cost
    rate = inferred(replace(found, histories={"backlog": history([50.0] * 5 + [0.0] * 5)})).rate
    assert (rate > 3.4) is (cost > 2)


def test_instances_that_changed_meanwhile_are_counted_as_they_were() -> None:
    """Two instances until five minutes ago, four since then; 300 arrive all the time."""
    backlog = [*(100.0 + 100 * i for i in range(6)), *(500.0 - 100 * i for i in range(5))]
    capacities = Window((sample(2, 7200), sample(2, 300), sample(4, 240), sample(4)))
    found = seen(backlog, capacities=capacities)
    assert inferred(found).rate == pytest.approx(3.0)
    assert POLICY(found).evidence["arrivals_per_minute"] == pytest.approx(300)
    unknown = POLICY(seen([300.0] * 10, capacities=Window(())))
    assert unknown.evidence["arrivals_per_minute"] == pytest.approx(400)


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

HOLDING = "holding: oldest about "
BUSY = "holding: the last instance has enough to do"
RUNS_EMPTY = "the queue runs empty"
TRIES = "the queue was empty for 29 min at 2 instances: trying 1"
EMPTY_FOR_LONG = [0.0] * 31


STATES: dict[str, tuple[Observation, int, str]] = {
    "late work is expected": (
        seen(growing(400, 100)),
        15,
        "with a backlog of 3700 and 800 arrivals/min, 4 instances would let work become "
        "7.12 min old within the next 5 min; the policy plans for at most 4.75 min; "
        "new instances take 3 min to start, so more are needed now",
    ),
    "one instance is not said to be several": (
        seen(growing(400, 100), 1),
        20,
        "with a backlog of 3700 and 500 arrivals/min, 1 instance would let work ",
    ),
    "instances start at once, so there is time": (
        seen(growing(60, 1100), throughput=Throughput(RATE, 0)),
        4,
        HOLDING,
    ),
    "instances take long, so it orders early": (
        seen(growing(60, 1100), throughput=Throughput(RATE, 8)),
        5,
        "with a backlog of 1640 and 460 arrivals/min",
    ),
    "an unknown start-up time is taken for three minutes": (
        seen(growing(400, 100), throughput=Throughput(RATE)),
        15,
        "with a backlog of 3700",
    ),
    "a sure rate": (seen([1830.0] * 10), 4, HOLDING),
    "the maximum": (
        seen(growing(4000, 100), 20),
        20,
        "work will be 9.35 min old, but 20 is the maximum",
    ),
    "the minimum": (seen([0.0] * 10, 1), 1, "the queue runs empty, but 1 is the minimum"),
    "limits hold in the last step too": (seen([0.0] * 15, 6, limits=Limits(5, 20)), 5, RUNS_EMPTY),
    "neither late nor empty": (
        seen([300.0] * 10),
        4,
        "holding: oldest about 0.75 min of 5 min, 4 instances at work",
    ),
    "the queue runs empty": (
        seen([*[50.0] * 5, *[0.0] * 10]),
        3,
        "the queue runs empty at 259.3 arrivals/min; 3 instances will be enough for the next "
        "8 min, and another one would be idle for at least 55% of the time",
    ),
    "served to the last item in a step by those of this moment": (
        seen([300.0] * 10, 7, capacities=Window((sample(4, 7200), sample(4)))),
        4,
        RUNS_EMPTY,
    ),
    "the last instance has enough to do": (seen([150.0, 0.0] * 8, 2), 2, BUSY),
    "idle instances go": (seen([0.0] * 15, 6), 3, RUNS_EMPTY),
    "what instances have in hand does not wait": (seen([3.0, 1.0, 4.0] * 10), 2, RUNS_EMPTY),
    "nor does it in the hands of slow ones": (
        seen([3.0, 1.0, 2.0] * 10, throughput=SLOW),
        2,
        RUNS_EMPTY,
    ),
    "more than slow ones have in hand waits": (
        seen([30.0, 31.0, 30.0] * 10, throughput=SLOW),
        4,
        HOLDING,
    ),
    "changes cost little, so it remembers little": (seen(LULL), 3, RUNS_EMPTY),
    "the dearer a change, the longer it remembers": (seen(LULL, goal=DEAR), 4, BUSY),
    "one at most is kept for what came long ago": (
        seen([*[1200.0] * 20, *[0.0] * 10], 12, goal=Goal(5, 20, 10)),
        8 + 1,
        RUNS_EMPTY,
    ),
    "work waited in a third of half an hour": (
        seen([*[0.0] * 19, *[300.0] * 10, 0.0, 0.0], 6, goal=Goal(5, 20, 10)),
        6,
        "",
    ),
    "in less than a third, nothing is remembered": (
        seen([*[0.0] * 20, *[300.0] * 9, 0.0, 0.0], 6, goal=Goal(5, 20, 10)),
        5,
        RUNS_EMPTY,
    ),
    "of a burst, nothing is remembered": (
        seen(BURST, goal=Goal(5, 40, 10)),
        3,
        "the queue runs empty at 282.3 arrivals/min; 3 instances will be enough for the "
        "next 160 min",
    ),
    "half an hour without work": (seen(EMPTY_FOR_LONG, 2, goal=DEAR), 1, TRIES),
    "half an hour at the same capacity": (
        seen([0.0] * 40, 2, goal=DEAR, changed_at=ago(1740)),
        1,
        TRIES,
    ),
    "a second less at the same capacity": (
        seen([0.0] * 40, 2, goal=DEAR, changed_at=ago(1739)),
        2,
        "",
    ),
    "samples that reach back far enough": (seen([0.0] * 30, 2, goal=DEAR), 1, TRIES),
    "samples that do not": (seen([0.0] * 29, 2, goal=DEAR), 2, ""),
    "work within the half hour": (seen([*[0.0] * 10, 30.0, *[0.0] * 20], 2, goal=DEAR), 2, ""),
    "fewer are not allowed": (
        seen(EMPTY_FOR_LONG, 2, goal=DEAR, limits=Limits(2, 9)),
        2,
        "the queue runs empty, but 2 is the minimum",
    ),
    "what two slow instances have in hand is idleness": (
        seen([*[0.0] * 20, 2.0, *[0.0] * 20], 2, goal=DEAR, throughput=SLOW),
        1,
        TRIES,
    ),
    "what waits for two slow instances is not": (
        seen([*[0.0] * 20, 40.0, *[0.0] * 20], 2, goal=DEAR, throughput=SLOW),
        2,
        "",
    ),
    "an order under way counts as coming": (
        seen(growing(200, 600), pending=order(9, 60)),
        9,
        HOLDING,
    ),
    "instances that only are read do not finish work yet": (
        seen(growing(200, 600), 9, working=Window((sample(4, 7200), sample(9, -120)))),
        9,
        HOLDING,
    ),
    "nothing is removed while instances start": (
        seen([0.0] * 15, 6, working=Window((sample(2, 7200), sample(6, -120)))),
        6,
        "the queue runs empty, but instances are still starting",
    ),
    "an order that comes sooner than a new one is waited for": (
        seen(growing(200, 600), pending=order(5, 120)),
        5,
        "5 instances will be running within 1 min, and a new request would not reduce late work",
    ),
    "an order that should have come long ago is not": (
        seen(growing(300, 600), pending=order(5, 420)),
        11,
        "with a backlog of 3300",
    ),
    "an order under way stands while the queue runs empty": (
        seen([0.0] * 15, pending=order(6, 60)),
        6,
        "the queue runs empty, but the change to 6 instances is still pending",
    ),
    "without a second sample": (seen([500.0]), 4, "no second sample of backlog yet"),
    "without a sample": (seen([]), 4, "no second sample of backlog yet"),
    "without a second sample what is ordered stands": (
        seen([500.0], pending=desired(target=7)),
        7,
        "no second sample of backlog yet",
    ),
    "without a rate the other rule decides": (
        seen([800.0] * 10, throughput=Throughput()),
        4,
        "not known yet; the rate per instance is not known yet",
    ),
}


@pytest.mark.parametrize(("found", "capacity", "reason"), STATES.values(), ids=STATES)
def test_a_state_of_the_queue_leads_to_a_capacity_and_its_reason(
    found: Observation, capacity: int, reason: str
) -> None:
    wish = POLICY(found)
    assert (wish.capacity, wish.reason[: len(reason)]) == (capacity, reason), wish.reason
    knows = found.throughput.rate_per_instance_minute and len(found.history("backlog").samples) > 1
    assert wish.paced is bool(knows)


@pytest.mark.parametrize(("policy", "changes", "scale"), [(POLICY, {}, 1), (QUICK, QUICKLY, 10)])
@pytest.mark.parametrize(("backlog", "arrivals"), [(growing(400, 100), 800), ([300.0] * 10, 400)])
def test_a_recommendation_carries_what_it_was_made_from(
    policy: QueueAge, changes: dict[str, Any], scale: float, backlog: list[float], arrivals: float
) -> None:
    wish = policy(seen(backlog, **changes))
    assert wish.rule == "queue_age"
    assert wish.evidence == pytest.approx(
        {
            "backlog": backlog[-1],
            "arrivals_per_minute": arrivals * scale,
            "rate_per_instance_minute": RATE * scale,
            "dead_time_minutes": 3 / scale,
            "ordered": 4,
        }
    )


@pytest.mark.parametrize(
    ("backlog", "said"),
    [
        (
            growing(400, 100),
            "and 133.3 arrivals/s, 4 instances would let work become 42.8 s old within the next "
            "30 s; the policy plans for at most 28.5 s; new instances take 18 s to start,",
        ),
        (
            [*[50.0] * 5, *[0.0] * 10],
            "empty at 43.21 arrivals/s; 3 instances will be enough for the next 48 s",
        ),
    ],
)
def test_where_steps_are_seconds_all_is_told_in_seconds_and_planned_alike(
    backlog: list[float], said: str
) -> None:
    wish = QUICK(seen(backlog, **QUICKLY))
    assert said in wish.reason
    assert wish.capacity == POLICY(seen(backlog)).capacity


def test_samples_that_are_sparse_for_its_steps_do_no_harm() -> None:
    quick, throughput = replace(POLICY, step_seconds=1), Throughput(RATE, 0.05)
    assert quick(seen([14_000.0] * 6, 1, 15, throughput=throughput)).capacity == 20


@pytest.mark.parametrize("ahead_seconds", [1, 12, 60])
@pytest.mark.parametrize("step_seconds", [0.1, 7, 60, 480])
@pytest.mark.parametrize("rate", [None, RATE])
def test_a_clock_of_a_source_that_is_ahead_changes_no_decision(
    ahead_seconds: float, step_seconds: float, rate: float | None
) -> None:
    """Samples up to a minute ahead are accepted."""
    policy = replace(POLICY, step_seconds=step_seconds)
    on_time = seen(growing(50), every_seconds=5, throughput=Throughput(rate, 3))
    ahead = replace(on_time, now=ago(ahead_seconds))
    wish = policy(ahead)
    assert (wish.capacity, wish.rule) == (policy(on_time).capacity, policy(on_time).rule)
    for steps in (1, 5):
        known = inferred(on_time, step_seconds, steps)
        assert inferred(ahead, step_seconds, steps).recent == known.recent


# --- its outlook ---


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
        (180, 3, 1, False),
        (181, 3, 1, True),
        (60, 0, 1, False),  # with a start-up time below a step, a step after it
        (61, 0, 1, True),
    ],
)
def test_an_order_arrives_after_the_start_up_time_and_is_overdue_after_it(
    waited_seconds: float, dead: float, arrival: int, overdue: bool
) -> None:
    found = outlook(pending=order(6, waited_seconds), throughput=Throughput(RATE, dead))
    assert (found.ordered, found.arrival, found.overdue) == (6, arrival, overdue)
    assert found.dead == max(1, dead)
    moved = replace(order(6, 900), reached=5, progressed_at=ago(waited_seconds))
    found = outlook(pending=moved, throughput=Throughput(RATE, dead))
    assert (found.arrival, found.overdue) == (arrival, overdue), "progress renews the wait"


def test_a_start_up_time_of_whole_steps_is_not_rounded_up() -> None:
    """In steps of 9 s, 2.1 minutes are 14 steps, as a floating-point number slightly more."""
    found = outlook(steps=60 / 9, pending=order(6, 0), throughput=Throughput(RATE, 2.1))
    assert (found.dead, found.arrival) == (14, 14)


@pytest.mark.parametrize("pending", [None, order(4, 900)])
def test_nothing_is_awaited_where_nothing_is_ordered_or_the_order_changes_nothing(
    pending: Any,
) -> None:
    found = outlook(pending=pending)
    assert (found.ordered, found.arrival, found.overdue) == (4, 1, False)


@pytest.mark.parametrize(
    ("minutes", "steps", "length"), [(5, 1, 5), (5, 2, 10), (0.5, 1, 1), (0, 1, 1), (1.999, 1, 1)]
)
def test_the_age_limit_is_at_least_a_step_long(minutes: float, steps: float, length: int) -> None:
    assert len(outlook(steps=steps, goal=Goal(minutes, 2, 10)).arrivals.recent) == length


def test_work_that_waits_while_nothing_arrives_becomes_older_than_the_age_limit() -> None:
    waiting = Outlook(50, Arrivals(0, (0.0,) * 5, 0), [4], 4, 3, 1, 0.95)
    projected = waiting.project([4] * 5)
    assert projected.late > 0
    assert projected.worst_age == 6
    assert replace(waiting, backlog=0).project([4] * 5).worst_age == 0


def test_instances_that_are_only_read_do_not_raise_the_inferred_arrivals() -> None:
    """Four instances work, and five more are read since a minute; 600 a minute arrive."""
    starting = Window((sample(4, 7200), sample(9, -120)))
    found = POLICY(seen(growing(200), 9, working=starting))
    assert found.evidence["arrivals_per_minute"] == pytest.approx(600)


def test_an_uncertain_rate_grows_from_the_instances_that_work() -> None:
    uncertain: dict[str, Any] = {
        "throughput": Throughput(None, 3),
        "estimate": RateEstimate(RateSource.BACKLOG, 40, 10, 0.9),
    }
    starting = Window((sample(1, 7200), sample(4, -120)))
    assert POLICY(seen(growing(900), 4, **uncertain)).capacity == 16
    held = POLICY(seen(growing(900), 4, working=starting, **uncertain))
    assert held.capacity == 4
    assert "no more instances are requested until 4 are at work" in held.reason


def test_a_reason_names_the_time_that_the_policy_looked_ahead() -> None:
    starting = Window((sample(3, 7200), sample(4, -120)))
    for working, minutes in ((Window(()), 5), (starting, 4)):
        reason = POLICY(seen(growing(600), 4, working=working)).reason
        assert f"old within the next {minutes} min;" in reason


def test_the_reasons_of_an_estimated_rate_state_bounds_and_no_age_by_its_high_end() -> None:
    """An instance finishes 80 to 180 a minute, most likely 120."""
    unsure: dict[str, Any] = {
        "throughput": Throughput(None, 3),
        "estimate": RateEstimate(RateSource.BACKLOG, 120, 80, 0.2),
    }
    out = POLICY(seen(growing(200), **unsure))
    assert "and at least 520 arrivals/min" in out.reason
    assert "empty at up to " in POLICY(seen(LULL, 9, **unsure)).reason
    held = POLICY(seen(growing(10, 600), **unsure))
    assert held.evidence["arrivals_per_minute"] == pytest.approx(330)
    assert "holding: oldest about 2.09 min of 5 min, 4 instances at work" in held.reason


def test_while_the_rate_is_uncertain_new_instances_work_for_a_step_before_more_are_ordered() -> (
    None
):
    uncertain: dict[str, Any] = {
        "throughput": Throughput(None, 3),
        "estimate": RateEstimate(RateSource.BACKLOG, 40, 10, 0.9),
    }
    for since, wanted in ((15, 4), (60, 16)):
        started = Window((sample(1, 7200), sample(4, since)))
        assert POLICY(seen(growing(900), 4, working=started, **uncertain)).capacity == wanted


def test_a_queue_that_drains_is_not_taken_for_one_without_arrivals() -> None:
    """Each of 20 instances finishes 40 a minute, and 500 arrive. A rate of 10 would mean that none
    arrive."""
    estimate = RateEstimate(RateSource.BACKLOG, 20, 10, 0.55)
    draining = seen(growing(-300, 2700), 20, throughput=Throughput(None, 3), estimate=estimate)
    assert POLICY(draining).capacity >= 12
    sure = replace(draining, throughput=Throughput(10, 3), estimate=None)
    assert POLICY(sure).capacity == 1


@pytest.mark.parametrize("every_seconds", [15, 30, 60])
def test_the_estimate_sinks_alike_in_an_empty_queue_however_often_it_is_read(
    every_seconds: float,
) -> None:
    samples = [0.0] * int(900 / every_seconds + 1)
    found = inferred(seen(samples, 10, every_seconds=every_seconds))
    assert found.rate == pytest.approx(4.4, abs=0.3)


# --- the last instance ---


def choice(policy: QueueAge = POLICY, backlog: Sequence[float] = (0.0,) * 10, **more: Any) -> Any:
    found = seen(backlog, **more)
    expected = policy._outlook(found, RATE, 1)
    assert expected is not None
    return _Choice(policy, found, expected, RATE, 1)


def test_a_jump_half_an_hour_ago_is_not_most_of_what_is_remembered() -> None:
    dear = choice(backlog=[0.0] + [900.0] * 30, goal=Goal(5, 1000, 10))
    assert dear._remembered_rate() == pytest.approx(4 + 9 * 0.9**29)


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
    made = choice(replace(POLICY, busy_share=busy_share))
    assert made._busy_share(rate) == pytest.approx(share)
    assert made._needed(rate) == max(0, -int(-(rate - share - 1e-9) // 1))


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
    made = choice(backlog=LULL, goal=DEAR, capacities=capacities)
    assert made._remembered_rate() == pytest.approx(rate)


# --- its parameters ---


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"metric": ""}, "metric = '': must be a name"),
        ({"step_seconds": "x"}, "step_seconds = 'x': must be a number"),
        ({"step_seconds": 0.09}, "step_seconds = 0.09: must be 0.1 to 480"),
        ({"step_seconds": 480.5}, "step_seconds = 480.5: must be 0.1 to 480"),
        ({"age_share": 1.5}, "age_share = 1.5: must be above 0 and at most 1"),
        ({"caution": -0.5}, "caution = -0.5: must be 0 to 1000"),
        ({"caution": 1000.5}, "caution = 1000.5: must be 0 to 1000"),
        ({"busy_share": -0.5}, "busy_share = -0.5: must be 0 to 1"),
        ({"busy_share": 1.5}, "busy_share = 1.5: must be 0 to 1"),
        ({"until_known": 3}, "until_known = 3: must be callable with an Observation"),
        ({"until_known": Threshold("", 9, 1)}, "until_known.metric = '': must be a name"),
        ({"step_seconds": 0.1, "caution": 0, "busy_share": 0}, None),
        ({"step_seconds": 480, "caution": 1000, "busy_share": 1}, None),
        ({"step_seconds": 1, "caution": 0.5}, None),
    ],
)
def test_each_parameter_is_named_with_its_value_and_bound(
    changes: dict[str, Any], problem: str | None
) -> None:
    assert replace(POLICY, **changes).problems() == ([problem] if problem else [])


def test_the_metrics_of_the_rule_before_are_checked_too() -> None:
    both = QueueAge("backlog", Threshold("typo", 100, 10))
    assert both.metric_names == ("backlog", "typo")


# --- what always holds ---


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
    backlog: list[float], capacity: int, every_seconds: float, rate: float, dead: float, **more: Any
) -> None:
    wish = POLICY(seen(backlog, capacity, every_seconds, throughput=Throughput(rate, dead), **more))
    assert 1 <= wish.capacity <= 20
    assert wish.reason
