"""Workers that stop: what is known of the waiting items, what is learned, and what is held."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from shared.autoscaling import (
    Cooldown,
    Goal,
    Guards,
    Limits,
    Mode,
    QueueAge,
    Recommendation,
    Resource,
    StorageQueue,
    Throughput,
)
from shared.autoscaling.acting.actions import confirm
from shared.autoscaling.deciding.decide import Decision
from shared.autoscaling.deciding.guards import Context, nothing_finished
from shared.autoscaling.deciding.samples import observe
from shared.autoscaling.learning.backlogs import (
    AGE_AT_MOST,
    Unfallen,
    age_minutes,
    fall_limit,
    stalls,
    unfallen,
)
from shared.autoscaling.learning.throughput import rate_estimate
from shared.autoscaling.operating.conditions import conditions
from shared.autoscaling.policy import Observation
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.sources import HubMetric
from shared.autoscaling.state import BusyIntervals, Learned, ScalingState, Stall
from shared.autoscaling.transition import Transition, advance
from shared.values.measurements import CAPACITY_METRIC, Metric
from shared.values.news import Severity
from tests.builders import NOW, SOURCE, ago, history, resource, sample, state

RATE = 60.0
Course = Callable[[float], float | None]
KNOWN_RATE = BusyIntervals(recent=((60.0, 1.0),) * 60)
"""Sixty intervals of a minute in which one instance finished 60 items."""


def hold(seen: Observation) -> Recommendation:
    return Recommendation(seen.capacity, "held")


def worker(**changes: Any) -> Resource:
    fields: dict[str, Any] = {
        "policy": QueueAge("backlog", hold),
        "limits": Limits(1, 20),
        "throughput": Throughput(RATE, 3),
    }
    return resource(**{**fields, **changes})


def counted(**changes: Any) -> Resource:
    metrics = {"backlog": SOURCE, "done": HubMetric()}
    throughput = Throughput(None, 3, completed_metric="done")
    return worker(**{"metrics": metrics, "throughput": throughput, **changes})


def run(
    declared: Resource,
    minutes: float,
    backlog: Course,
    done: Course | None = None,
    capacity: int = 3,
    learned: Learned = Learned(),  # noqa: B008
) -> tuple[ScalingState, list[tuple[float, Transition]]]:
    """Samples every 15 s, and counts every minute. Every action takes effect at once.

    Returns the state at NOW and the decisions, each with its minute.
    """
    held, steps = ScalingState(learned=learned), list[tuple[float, Transition]]()
    for tick in range(int(minutes * 4) + 1):
        minute, now = tick / 4, NOW - timedelta(minutes=minutes - tick / 4)
        values = {CAPACITY_METRIC: float(capacity), "backlog": backlog(minute)}
        if done is not None and minute % 1 == 0:
            values["done"] = done(minute)
        read = [
            Metric(declared.name, name, replace(sample(value), time=now))
            for name, value in values.items()
            if value is not None
        ]
        step = advance(declared, held, read, now)
        held = step.state
        if step.decision is not None:
            steps.append((minute, step))
            if step.decision.applies and held.desired is not None:
                capacity = held.desired.target
                held = held.with_desired(confirm(held.desired, now))
    return held, steps


def stopped_after(minutes: float, arriving: float = 0.0) -> Course:
    """A backlog that falls and rises around 500, until no worker finishes anything any more."""
    return lambda minute: (
        500 + 40 * (minute * 4 % 2) if minute < minutes else 500 + arriving * (minute - minutes)
    )


def test_the_oldest_item_may_be_as_old_as_the_last_one_that_was_seen_to_be_finished() -> None:
    declared = worker(throughput=Throughput(RATE, 3, trust_rate=True))
    held, steps = run(declared, 150, stopped_after(30))  # samples are kept for 30 minutes
    decision = steps[-1][1].decision
    assert decision is not None
    assert not decision.applies
    assert age_minutes(decision.evidence) == pytest.approx(500 / (60 * (decision.current or 0)))
    assert decision.evidence[AGE_AT_MOST] == pytest.approx(120, abs=4)
    assert "backlog has not fallen for 120 min" in decision.reason
    _, working = run(declared, 30, stopped_after(31))
    assert all(step.decision and AGE_AT_MOST not in step.decision.evidence for _, step in working)
    snapshot = Snapshot("plan-1", held, NOW)
    (found,) = conditions(declared, snapshot, 30)
    news = found.news(NOW)
    headline = "plan-1: backlog has not fallen for 120 min"
    assert (news.kind, news.headline) == ("backlog.not.falling", headline)
    assert "arrived at 2026-03-01 09:57 UTC or later. Either more work arrives than" in news.text


@pytest.mark.parametrize(
    ("changes", "capacity"),
    [({"mode": Mode.PAUSED}, 3), ({"mode": Mode.DRY_RUN}, 3), ({"limits": Limits(1, 3)}, 3)],
)
def test_only_the_facts_are_stated_while_the_capacity_cannot_rise(
    changes: dict[str, Any], capacity: int
) -> None:
    declared = worker(**changes)
    held, _ = run(declared, 60, stopped_after(30), capacity=capacity)
    found = conditions(declared, Snapshot("plan-1", held, NOW), 300)
    (condition,) = [each for each in found if each.severity is not Severity.INFO]
    assert condition.what == "plan-1: backlog has not fallen for 30 min"
    assert condition.meaning.endswith("UTC or later.") or not condition.meaning
    assert condition.todo == ""


@pytest.mark.parametrize(
    ("changes", "capacity", "minutes"),
    [
        ({}, 1, 10),
        ({"goal": Goal(age_limit_minutes=60)}, 1, 60),
        ({"cooldown": Cooldown(scale_out_seconds=600)}, 1, 13),
        ({"cooldown": Cooldown(600, 0), "throughput": Throughput(RATE, 7)}, 1, 17),
        ({"throughput": Throughput(0.05, 3)}, 1, 120),
        ({"throughput": Throughput(0.05, 3)}, 4, 30),
        ({"throughput": Throughput(1e-6, 3)}, 1, 1440),
    ],
)
def test_a_backlog_has_the_longest_of_four_times_to_fall(
    changes: dict[str, Any], capacity: int, minutes: float
) -> None:
    declared = worker(**{"cooldown": Cooldown(0, 0), **changes})
    assert fall_limit(declared, state([1], capacity)) == timedelta(minutes=minutes)
    lasting = Stall("backlog", ago(60 * minutes + 1))
    for stall in (lasting, replace(lasting, since=ago(60 * minutes))):
        held = state([9, 9], capacity, learned=Learned(stalls=(stall,)))
        held = held.with_history("backlog", history([9, 9], every_seconds=1))
        assert bool(unfallen(declared, held)) is (stall is lasting)


@pytest.mark.parametrize(
    ("values", "every_seconds", "since_seconds", "oldest_seconds"),
    [
        ([9, 9, 9], 60, 120, None),  # nothing was seen to be finished
        ([9, 8, 8, 9], 60, 120, 120),  # fell
        ([0, 0, 7, 9], 60, 120, 120),  # was empty
        ([9, 8, 8], 601, 0, None),  # what happened in a gap is unknown
        ([9, 9, 8], 601, 0, 0),
    ],
)
def test_a_stall_begins_when_something_was_last_seen_to_be_finished(
    values: list[float], every_seconds: float, since_seconds: float, oldest_seconds: float | None
) -> None:
    held = state([], 2).with_history("backlog", history(values, every_seconds))
    oldest = None if oldest_seconds is None else ago(oldest_seconds)
    assert stalls(resource(), held) == [Stall("backlog", ago(since_seconds), oldest)]


def test_counts_of_zero_hold_a_scale_out_for_a_limited_time() -> None:
    declared = counted(goal=Goal(age_limit_minutes=5), cooldown=Cooldown(0, 0))
    course = stopped_after(30, arriving=200)
    known = Learned(work=KNOWN_RATE)

    def steps(
        declared: Resource, done: float | None, minutes: float
    ) -> list[tuple[float, Decision]]:
        def count(minute: float) -> float | None:
            return 180.0 if minute <= 30 else done

        _, found = run(declared, minutes, course, count, learned=known)
        return [(at, step.decision) for at, step in found if step.decision and at > 41]

    held = steps(declared, 0.0, 75)
    assert next(at for at, each in held if each.applies) == pytest.approx(30 + 10 + 30, abs=1)
    never = replace(declared, guards=Guards(nothing_finished_seconds=0))
    # no counts: nothing is known, so nothing is held
    for other, done in ((declared, None), (never, 0.0)):
        assert any(each.applies for _, each in steps(other, done, 60))
    reason = [each for at, each in held if at <= 60][-1].reason
    said = "backlog has not fallen for 30 min, and nothing was counted as finished"
    assert f"{said}: no scale-out until 11:55:00 UTC" in reason


@pytest.mark.parametrize(
    ("capacity", "seconds", "holds"),
    [(3, 1800, True), (3, 601, True), (3, 600, False), (2, 1800, False), (1, 1800, False)],
)
def test_only_scale_outs_are_held_and_only_before_the_time_is_over(
    capacity: int, seconds: float, holds: bool
) -> None:
    declared, held = worker(guards=Guards(nothing_finished_seconds=seconds)), state([9], 2)
    stalled = Unfallen(Stall("backlog", ago(1200)), NOW, timedelta(minutes=10), True)
    recommendation, seen = Recommendation(capacity, "asked"), observe(declared, held, 2, NOW)
    context = Context(declared, held, seen, None, recommendation, unfallen=[stalled])
    limit = nothing_finished(capacity, context)
    assert (limit is not None and limit.capacity == 2) is holds


@pytest.mark.parametrize(
    ("rate", "waiting", "is_told"),
    [(None, 2, False), (None, 3, True), (RATE, 1, True), (RATE, 0, False)],
)
def test_an_empty_backlog_and_one_that_may_be_in_process_are_not_reported(
    rate: float | None, waiting: float, is_told: bool
) -> None:
    """Items may be in process for long only while the throughput is unknown."""
    declared = worker(throughput=Throughput(rate, 3))
    held = state([waiting] * 60, capacity=2)
    assert bool(unfallen(declared, held)) is is_told


def long_items(minute: float) -> float:
    return 1.0 if minute % 20 in (3, 9, 15) else 0.0


@pytest.mark.parametrize(
    ("minutes", "backlog", "done", "known", "likely"),
    [
        (100, lambda _: 5000, lambda _: 0.0, KNOWN_RATE, 60),
        (
            100,
            lambda at: 5000 - max(at - 80, 0) * 60,
            lambda at: 60.0 if at > 80 else 0.0,
            KNOWN_RATE,
            60,
        ),
        (300, lambda _: 500, long_items, BusyIntervals(), 0.05),
    ],
    ids=["still stopped", "working again", "most minutes finish none"],
)
def test_stopped_workers_teach_no_throughput_but_slow_ones_do(
    minutes: float, backlog: Course, done: Course, known: BusyIntervals, likely: float
) -> None:
    slow = likely < 1
    declared = counted(limits=Limits(1, 3 if slow else 1))
    held, _ = run(declared, minutes, backlog, done, 3 if slow else 1, Learned(work=known))
    estimate = rate_estimate(Throughput(), held.learned)
    assert estimate is not None
    assert estimate.likely == pytest.approx(likely, rel=0.1 if slow else 2e-4)
    assert bool(unfallen(declared, held)) is (done(minutes) == 0 and not slow)


def test_a_backlog_that_grows_while_workers_are_stopped_teaches_no_throughput() -> None:
    declared = worker(throughput=Throughput(None, 3))
    before, _ = run(declared, 60, stopped_after(61), learned=Learned())
    stopped, _ = run(declared, 41, lambda at: 500 + at * 100)
    assert before.learned.trend.busy > 40
    for minutes in (120, 120.5):
        later, _ = run(declared, minutes, lambda at: 500 + at * 100)
        assert later.learned.trend.busy == stopped.learned.trend.busy
        newest = later.histories["backlog"].samples[-1].time
        assert later.learned.trend.until == newest, "these samples teach nothing afterwards either"


@pytest.mark.parametrize(("arrivals", "age"), [(100.0, 5), (1e-12, None), (0.0, None)])
def test_an_age_beyond_all_limits_of_time_is_not_known(arrivals: float, age: float | None) -> None:
    assert age_minutes({"backlog": 500.0, "arrivals_per_minute": arrivals}) == age


def test_the_age_of_the_message_at_the_front_is_no_backlog() -> None:
    metrics = {"age": StorageQueue("work", peek=True), "backlog": StorageQueue("work")}
    assert resource(metrics=metrics).backlog_metric == "backlog"


@pytest.mark.parametrize(("seconds", "is_known"), [(-15, True), (0, True), (15, False)])
def test_a_stall_that_is_known_goes_on_while_the_samples_reach_back_to_it(
    seconds: float, is_known: bool
) -> None:
    """Its oldest item may be older than all samples that are kept."""
    held = state([50] * 6)
    first = held.histories["backlog"].samples[0].time
    known = Stall("backlog", first + timedelta(seconds=seconds), first - timedelta(hours=2))
    (found,) = stalls(worker(), replace(held, learned=Learned(stalls=(known,))))
    assert (found == known) is is_known
    assert is_known or found == Stall("backlog", first)
