from __future__ import annotations

import math
import random
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.autoscaling import (
    Goal,
    Guards,
    HubMetric,
    Limits,
    MetricRule,
    MetricRules,
    Profile,
    QueueAge,
    RateLimit,
    Recommendation,
    Resource,
    Schedule,
    ScheduleEntry,
    SeasonalFloor,
    Threshold,
    Throughput,
    any_of,
    fallback,
    scale_in_only_if,
)
from shared.autoscaling.acting.actions import confirm
from shared.autoscaling.deciding.samples import (
    SAMPLES_KEPT_MAX,
    kept_seconds,
    merge,
)
from shared.autoscaling.deciding.validation import problems
from shared.autoscaling.errors import BadMessage
from shared.autoscaling.operating.conditions import silent_after_seconds
from shared.autoscaling.policy import Observation
from shared.autoscaling.state import ScalingState
from shared.autoscaling.transition import advance
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from tests.builders import NOW, SOURCE, ago, metric, resource, sample

BRIEF, LONG = resource(history_seconds=0), resource(history_seconds=3600)


def merged(*sent: tuple[float, float], name: str = "backlog") -> Any:
    """The state after these samples, each a value and its age, and the outcome of the last."""
    state, outcome = ScalingState(), ""
    for value, age in sent:
        before = state
        state, outcome = after(BRIEF, state, metric(value, age, name), NOW)
        assert (state is before) is (outcome != "accepted"), "what is not kept changes nothing"
    return state, outcome


def after(
    declared: Resource, state: ScalingState, sent: Metric, now: datetime
) -> tuple[ScalingState, str]:
    made = merge(declared, state, [sent], now)
    for _, error in made.refused:
        raise error
    outcome = "accepted" if made.accepted else "stale" if made.stale else "duplicate"
    assert (len(made.accepted) + len(made.stale) + made.duplicates) == 1
    return made.state, outcome


@pytest.mark.parametrize(
    ("sent", "outcome", "kept"),
    [
        ([(5, 30), (6, 30)], "duplicate", [(5, 30)]),
        ([(1, 10), (2, 20)], "accepted", [(2, 20), (1, 10)]),  # a late one, in order of time
        ([(1, 0), (5, 600)], "accepted", [(5, 600), (1, 0)]),
        ([(1, 0), (5, 601)], "stale", [(1, 0)]),
        ([(5, -59)], "accepted", [(5, -59)]),  # clocks differ
    ],
)
def test_what_becomes_of_a_sample(
    sent: list[tuple[float, float]], outcome: str, kept: list[tuple[float, float]]
) -> None:
    state, found = merged(*sent)
    assert found == outcome
    assert state.histories["backlog"].samples == tuple(sample(*each) for each in kept)


@pytest.mark.parametrize(
    ("value", "age", "name", "told"),
    [
        *[
            (value, 0, "backlog", r"not a number from 0 to 1e\+15")
            for value in (math.nan, math.inf, -math.inf, -1.0, 1e200)
        ],
        (5, -61, "backlog", "in the future"),
        *[
            (value, 0, CAPACITY_METRIC, "not a whole number of 1 to 1000 instances")
            for value in (0, 2.5, 1001)
        ],
    ],
)
def test_a_sample_that_cannot_be_a_measurement_is_refused(
    value: float, age: float, name: str, told: str
) -> None:
    with pytest.raises(BadMessage, match=told):
        merged((value, age), name=name)


def test_samples_that_have_left_the_window_are_dropped() -> None:
    state, _ = after(BRIEF, ScalingState(), metric(1, 599), NOW)
    state, _ = after(BRIEF, state, metric(2, 0), ago(-2))
    assert state.histories["backlog"].samples == (sample(2),)


def test_a_history_keeps_a_bounded_number_of_samples() -> None:
    state, _ = merged(*[(i, 500 - i / 10) for i in range(SAMPLES_KEPT_MAX + 5)])
    assert len(state.histories["backlog"].samples) == SAMPLES_KEPT_MAX
    assert state.histories["backlog"].samples[-1].value == SAMPLES_KEPT_MAX + 4


def test_only_changes_of_the_capacity_and_its_newest_sample_are_kept_in_any_arrival_order() -> None:
    state = ScalingState()
    for value, age in ((4, 5), (3, 65), (3, 95), (3, 80), (4, 20), (4, 35)):
        state, _ = after(BRIEF, state, metric(value, age, CAPACITY_METRIC), NOW)
    kept = (sample(3, 95), sample(3, 65), sample(4, 35), sample(4, 5))
    assert state.histories[CAPACITY_METRIC].samples == kept


def test_the_capacity_at_the_start_of_the_history_stays_known() -> None:
    state, _ = merged((3, 500), (4, 400), name=CAPACITY_METRIC)
    state, _ = after(BRIEF, state, metric(5, -550, CAPACITY_METRIC), ago(-550))
    assert [s.value for s in state.histories[CAPACITY_METRIC].samples] == [4, 5]


def test_samples_may_be_kept_for_longer_than_the_window() -> None:
    state, _ = after(LONG, ScalingState(), metric(1, 599), NOW)
    late, outcome = after(LONG, state, metric(2, 0), ago(-900))
    assert outcome == "stale"
    state, _ = after(LONG, late, metric(2, -900), ago(-900))
    assert [s.value for s in state.histories["backlog"].samples] == [1, 2]


@given(st.lists(st.integers(0, 900), max_size=60), st.randoms(use_true_random=False))
def test_any_order_and_repetition_of_samples_gives_the_same_history(
    ages: list[int], shuffler: random.Random
) -> None:
    shuffled = ages + ages
    shuffler.shuffle(shuffled)
    states = []
    for order in (sorted(set(ages), reverse=True), shuffled):
        history = merged(*zip(order, order, strict=True))[0].histories.get("backlog")
        states.append(history.samples if history else ())
    assert states[0] == states[1]


# --- the history that a policy needs ---

PLAIN = Threshold("backlog", 100, 10)
HOURLY = MetricRules((MetricRule("backlog", ">", 50, "out", window_seconds=3200),))
LONG_RULES = MetricRules((MetricRule("backlog", ">", 50, "out", window_seconds=7200),))


class OfYourOwn:
    history_seconds = 2400

    def __call__(self, seen: Observation) -> Any:
        return Recommendation(seen.capacity, "holding")


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (PLAIN, 1800),
        (lambda seen: Recommendation(seen.capacity, "holding"), 1800),
        (OfYourOwn(), 2400),
        (QueueAge("backlog", PLAIN, step_seconds=15), 1800),
        (QueueAge("backlog", PLAIN, step_seconds=65), 1950),
        (QueueAge("backlog", HOURLY, step_seconds=65), 3200),
        (LONG_RULES, 7200),
        (fallback(PLAIN, any_of(PLAIN, LONG_RULES)), 7200),
        (scale_in_only_if(PLAIN, OfYourOwn()), 2400),
        (Schedule((ScheduleEntry(Profile("long", policy=HOURLY)),), Profile("rest"), PLAIN), 3200),
        (SeasonalFloor(LONG_RULES), 7200),
    ],
)
def test_samples_are_kept_for_as_long_as_the_policy_looks_back(policy: Any, seconds: float) -> None:
    limits = (RateLimit("in", seconds, 1),)
    declared = resource(
        policy=policy,
        metrics={"backlog": SOURCE, "done": HubMetric()},
        throughput=Throughput(completed_metric="done"),
        guards=Guards(rate_limits=limits),
    )
    assert problems([declared]) == []
    assert kept_seconds(declared, "backlog") == (600, seconds)
    assert kept_seconds(declared, CAPACITY_METRIC) == (600, seconds)
    assert kept_seconds(declared, "done") == (seconds, seconds)
    assert silent_after_seconds(declared, "done") == seconds
    longer = replace(limits[0], period_seconds=seconds + 1)
    (problem,) = problems([replace(declared, guards=Guards(rate_limits=(longer,)))])
    assert f"period_seconds = {seconds + 1}: must be 1 to {seconds}" in problem
    by_hand = replace(declared, history_seconds=9000)
    assert kept_seconds(by_hand, "backlog") == (600, 9000)
    assert kept_seconds(replace(declared, window_seconds=9000), CAPACITY_METRIC)[1] == 9000


@pytest.mark.parametrize(
    ("policy", "needed"),
    [
        (MetricRules((MetricRule("backlog", ">", 1, "in", window_seconds=14_460),)), 14_460),
        (any_of(MetricRules((MetricRule("backlog", ">", 1, "in", window_seconds=43_200),))), 43200),
    ],
)
def test_a_policy_that_looks_back_further_than_samples_can_be_kept_is_refused(
    policy: Any, needed: int
) -> None:
    (problem,) = problems([resource(policy=policy)])
    assert f"looks back over {needed} s, but samples are kept for at most 14400 s" in problem


def last_decisions(
    declared: Resource, backlog: list[float], every_seconds: float, capacity: int
) -> tuple[int, str]:
    """The capacity after these samples, and the reason of the last decision. A decision is made a
    second after its sample, and takes effect at once."""
    held, reason = ScalingState(), ""
    for position, value in enumerate(backlog):
        time = NOW + timedelta(seconds=every_seconds * position)
        read = {CAPACITY_METRIC: float(capacity), "backlog": value}
        samples = [Metric("plan-1", name, MetricValue(time, each)) for name, each in read.items()]
        step = advance(declared, held, samples, time + timedelta(seconds=1))
        held = step.state
        assert step.decision is not None
        reason = step.decision.reason
        if step.decision.applies:
            assert held.desired is not None
            capacity = held.desired.target
            held = held.with_desired(confirm(held.desired, time))
    return capacity, reason


@pytest.mark.parametrize(
    ("step_seconds", "every_seconds"),
    [(60, 30), (65, 30), (120, 60), (480, 240), (60, 75), (60, 120), (65, 300), (480, 900)],
)
def test_an_empty_queue_leads_to_the_minimum_at_every_planning_step(
    step_seconds: float, every_seconds: float
) -> None:
    declared = resource(
        policy=QueueAge("backlog", PLAIN, step_seconds=step_seconds),
        limits=Limits(1, 20),
        goal=Goal(age_limit_minutes=40),
        throughput=Throughput(100, 3),
    )
    backlog = [300.0] * 20 + [0.0] * 400
    assert last_decisions(declared, backlog, every_seconds, 12)[0] == 1


@pytest.mark.parametrize(
    ("backlog", "said"),
    [
        ([100.0] * 100 + [10.0] * 100, "over 120 min is 25 "),  # 20 of 120 samples are 100
        ([40.0] * 119, "over 120 min is 40 "),
        ([40.0] * 26, "over the last 25 min is 40 "),
        ([40.0], "over 120 min is 40 "),
    ],
)
def test_an_average_covers_the_whole_window_or_says_how_much_of_it_has_samples(
    backlog: list[float], said: str
) -> None:
    rule = replace(LONG_RULES.rules[0], threshold=1)
    declared = resource(policy=MetricRules((rule,)), limits=Limits(1, 20))
    assert f"the average of backlog {said}" in last_decisions(declared, backlog, 60, 2)[1]
