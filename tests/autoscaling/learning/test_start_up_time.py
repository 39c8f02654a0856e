"""The start-up time, and which source of the throughput counts."""

from __future__ import annotations

import copy
import pickle
from dataclasses import astuple, replace
from datetime import timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any

import pytest

from shared.autoscaling import Observation, QueueAge, Recommendation
from shared.autoscaling.deciding.samples import observe
from shared.autoscaling.declaring import Throughput
from shared.autoscaling.learning.throughput import (
    known_throughput,
    learn_wait,
    rate_estimate,
    start_up_minutes,
    started,
    starting_minutes,
)
from shared.autoscaling.policies.queue_age import START_UP_MINUTES
from shared.autoscaling.policy import RateEstimate, RateSource
from shared.autoscaling.state import (
    ActionStatus,
    BacklogTrend,
    BusyIntervals,
    Learned,
    ScalingState,
)
from shared.values.measurements import CAPACITY_METRIC, MetricValue, Window
from tests.builders import NOW, confirmed, resource, sample, state

COUNTED = BusyIntervals(recent=((50.0, 1.0),) * 10)
"""Ten intervals of 50 items in a busy minute."""
UNSURE = BacklogTrend(None, 5, 0, 30, 1, 100, 0, 0, 0, 1)
SURE = replace(UNSURE, information=1.0, weighted_rate=40.0, drained=30.0)
TOLD = Throughput(5, 1)


def throughput(fixed: Throughput, learned: Learned) -> Throughput:
    return known_throughput(fixed, learned, rate_estimate(fixed, learned))


def first(*recent: tuple[float, float]) -> BusyIntervals:
    return BusyIntervals(recent=recent)


SETTINGS, BY_COUNT, BY_BACKLOG = RateSource.SETTINGS, RateSource.COUNTED, RateSource.BACKLOG


@pytest.mark.parametrize(
    ("fixed", "learned", "source", "sure", "likely"),
    [
        (TOLD, Learned(), SETTINGS, True, 5),
        (TOLD, Learned(work=COUNTED, trend=SURE), SETTINGS, True, 5),
        (Throughput(), Learned(work=COUNTED), BY_COUNT, True, 50),
        (Throughput(), Learned(work=COUNTED, trend=SURE), BY_COUNT, True, 50),
        (Throughput(), Learned(trend=SURE), BY_BACKLOG, True, 40),
        (Throughput(), Learned(trend=UNSURE), BY_BACKLOG, False, None),
        # the first counts narrow an estimate that is less sure
        (Throughput(), Learned(work=first((80, 2)), trend=UNSURE), BY_COUNT, False, 40),
        (Throughput(), Learned(work=first((80, 2), (120, 3))), BY_COUNT, False, 40),
        (Throughput(), Learned(work=first((80, 2)), trend=SURE), BY_BACKLOG, True, 40),
        (Throughput(), Learned(work=first((0, 2)), trend=UNSURE), BY_BACKLOG, False, None),
        (
            Throughput(),
            Learned(work=first((0, 2), (1, 2), (80, 2)), trend=UNSURE),
            BY_BACKLOG,
            False,
            None,
        ),
    ],
)
def test_settings_come_before_counts_and_counts_before_the_backlog(
    fixed: Throughput, learned: Learned, source: RateSource, sure: bool, likely: float | None
) -> None:
    estimate = rate_estimate(fixed, learned)
    assert estimate is not None
    assert (estimate.source, estimate.sure) == (source, sure)
    assert likely is None or estimate.likely == pytest.approx(likely, rel=0.1)
    found = throughput(fixed, learned)
    assert found.rate_per_instance_minute == (estimate.low if sure else None)
    exact = source is SETTINGS or learned.work == COUNTED
    assert (estimate.low == estimate.likely) is exact
    assert source is not SETTINGS or found == fixed


@pytest.mark.parametrize(
    ("estimate", "told"),
    [
        ((SETTINGS, 40, 40, 0), "40 a minute, given in settings"),
        ((BY_BACKLOG, 40, 30, 0.12), "40 a minute, estimated from the backlog ± 12%"),
        ((BY_COUNT, 40, 40, 0.004), "40 a minute, counted ± under 1%"),
        ((BY_COUNT, 40, 30, 0.25), "40 a minute, counted ± 25%"),  # a quarter is sure enough
        ((BY_COUNT, 40, 30, 0.26), "40 a minute, counted ± 26%, not sure yet"),
        ((BY_COUNT, 35_742, 20_000, 0.3), "35,740 a minute, counted ± 30%, not sure yet"),
    ],
)
def test_an_estimate_names_its_source_and_its_uncertainty(estimate: Any, told: str) -> None:
    made = RateEstimate(*estimate)
    assert str(made) == f"rate per instance {told}"
    assert made.sure is ("not sure" not in told)


# --- what policies see ------------------------------------------------------------------------


def test_rules_see_the_estimate_even_if_it_is_not_sure() -> None:
    seen = observe(resource(), state([1], learned=Learned(trend=UNSURE)), 2, NOW)
    assert seen.throughput.rate_per_instance_minute is None
    assert seen.estimate is not None
    assert seen.estimate.source is RateSource.BACKLOG


def test_the_default_rule_plans_with_the_low_end_of_an_unsure_estimate() -> None:
    def other(seen: Observation) -> Recommendation:
        return Recommendation(seen.capacity, "other", "other")

    policy = QueueAge("backlog", until_known=other)
    fresh = observe(resource(), state([100, 200, 400], 2), 2, NOW)
    assert policy(fresh).rule == "other"
    unsure = replace(fresh, estimate=RateEstimate(RateSource.BACKLOG, 40, 10, 0.9))
    sure = replace(fresh, throughput=Throughput(10.0))
    assert policy(unsure).rule == "queue_age"
    assert policy(unsure).capacity == policy(sure).capacity > 2


@pytest.mark.parametrize(("error", "most"), [(0.9, 4), (0.1, 5)])
def test_an_unsure_throughput_lets_the_capacity_grow_step_by_step(error: float, most: int) -> None:
    seen = observe(resource(), state([0, 9000, 18_000], 1), 1, NOW)
    seen = replace(seen, estimate=RateEstimate(RateSource.BACKLOG, 40, 10, error))
    policy = QueueAge("backlog", until_known=lambda _: Recommendation(1, ""))
    assert seen.limits.maximum == 5
    made = policy(seen)
    assert made.capacity == most
    assert made.evidence["rate_source"] == "estimated from the backlog"
    assert made.evidence["rate_relative_error"] == error
    assert made.reason.endswith(f"; {seen.estimate}")


# --- the declaration --------------------------------------------------------------------------


def test_the_earlier_name_of_the_start_up_time_works_and_names_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match="use start_up_minutes") as warned:
        earlier = Throughput(5, dead_time_minutes=1)
    assert warned[0].filename == __file__
    assert (earlier, hash(earlier)) == (TOLD, hash(Throughput(5, start_up_minutes=1)))
    assert pickle.loads(pickle.dumps(earlier)) == copy.deepcopy(earlier) == TOLD
    with pytest.warns(DeprecationWarning, match="use start_up_minutes"):
        assert earlier.dead_time_minutes == 1
    with pytest.warns(DeprecationWarning, match="use start_up_minutes"):
        assert replace(Throughput(5), dead_time_minutes=1) == TOLD  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="give one of them"):
        Throughput(5, 1, dead_time_minutes=2)


def test_the_start_up_time_can_be_replaced_without_a_warning() -> None:
    assert replace(TOLD, start_up_minutes=2) == Throughput(5, 2)
    assert replace(TOLD, rate_per_instance_minute=6) == Throughput(6, start_up_minutes=1)
    names = (Throughput(5, 1, "done", "in"), Throughput(completed_metric="done"))
    assert [astuple(each) for each in names] == [
        (5, 1, "done", "in", False),
        (None, None, "done", None, False),
    ]


# --- the start-up time ----------------------------------------------------------------------------


def waited(minutes: float, epoch: int = 9, **changes: Any) -> ScalingState:
    """A scale-out that the newest sample shows, so many minutes after its action."""
    requested_at = NOW - timedelta(minutes=minutes)
    out = confirmed(0, target=5, previous=2, epoch=epoch)
    read = {CAPACITY_METRIC: Window((MetricValue(NOW, 5),))}
    return ScalingState(read, replace(out, **{"requested_at": requested_at, **changes}))


def learned_from(*states: ScalingState) -> Learned:
    learned = Learned()
    for each in states:
        learned = learn_wait(replace(each, learned=learned)).learned
    return learned


def test_the_wait_until_instances_are_read_is_the_mean_from_action_to_sample() -> None:
    learned = learned_from(waited(2, 1), waited(3, 2), waited(4, 3))
    assert (learned.dead_times, learned.epoch) == (3, 3)
    assert learned.dead_time_minutes == pytest.approx(3)
    unread = replace(waited(3), histories={})
    assert learned_from(unread) == Learned()


def test_the_wait_of_an_action_whose_message_was_lost_begins_when_azure_was_asked() -> None:
    asked, before = (int((NOW - timedelta(seconds=s)).timestamp()) for s in (30, 600))
    known = [learned_from(waited(3, 1, changes=(each,))) for each in (asked, before)]
    assert [each.dead_time_minutes for each in known] == [0.5, 3], "or when it was requested"


@pytest.mark.parametrize(
    ("fixed", "waits", "start_up", "starting"),
    [
        (Throughput(), [], None, 3),
        (Throughput(), [0.25, 0.25], None, 2.75),  # a read number does not show a start
        (Throughput(), [2, 4], None, 0),
        (Throughput(), [8], 8, 0),  # but instances that are not read yet do not work
        (TOLD, [0.25], 1, 0.75),
        (TOLD, [8], 1, 0),
    ],
)
def test_a_number_that_is_read_soon_is_not_taken_for_a_short_start_up_time(
    fixed: Throughput, waits: list[float], start_up: float | None, starting: float
) -> None:
    learned = learned_from(*[waited(wait, epoch) for epoch, wait in enumerate(waits, 1)])
    assert known_throughput(fixed, learned, None).start_up_minutes == start_up
    assert start_up_minutes(fixed, learned) == (start_up or START_UP_MINUTES)
    assert starting_minutes(fixed, learned) == pytest.approx(starting)


def changes(*pairs: tuple[float, float]) -> list[MetricValue]:
    return [MetricValue(NOW + timedelta(minutes=at), number) for at, number in pairs]


@pytest.mark.parametrize(
    ("read", "working"),
    [
        ([(0, 2), (9, 2)], [(0, 2)]),
        ([(0, 2), (5, 6), (6, 6)], [(0, 2), (8, 6)]),
        ([(0, 2), (5, 3), (6, 4)], [(0, 2), (8, 3), (9, 4)]),
        ([(0, 6), (5, 2), (6, 2)], [(0, 6), (5, 2)]),
        ([(0, 6), (5, 2), (6, 6)], [(0, 6), (5, 2), (9, 6)]),
        ([(0, 2), (5, 6), (6, 4)], [(0, 2), (8, 4)]),
        ([(0, 2), (5, 6), (8, 4)], [(0, 2), (8, 4)]),
        ([(0, 2), (5, 3), (6, 6), (7, 4)], [(0, 2), (8, 3), (9, 4)]),
    ],
)
def test_as_many_instances_work_as_were_read_at_least_while_they_started(
    read: list[tuple[float, float]], working: list[tuple[float, float]]
) -> None:
    assert list(started(tuple(changes(*read)), 3)) == changes(*working)
    at_once = [next(run) for _, run in groupby(read, key=itemgetter(1))]
    assert list(started(tuple(changes(*read)), 0)) == changes(*at_once)


@pytest.mark.parametrize("seconds_ago", [0, 1])
def test_instances_whose_change_was_confirmed_since_the_last_sample_are_starting(
    seconds_ago: float,
) -> None:
    read = Window((sample(2, 60), sample(2, seconds_ago)))
    change = ScalingState({CAPACITY_METRIC: read}, confirmed(0, target=5))
    works_at = NOW + timedelta(minutes=3)
    assert observe(resource(), change, 5, NOW).working.samples[-1] == MetricValue(works_at, 5)


def test_a_change_teaches_its_wait_once() -> None:
    once = learned_from(waited(3))
    assert once.dead_times == 1
    assert learned_from(waited(3), waited(3)) == once


def test_old_waits_weigh_less() -> None:
    learned = learned_from(
        *[waited(2, e) for e in range(1, 60)], *[waited(6, e) for e in range(60, 300)]
    )
    assert learned.dead_time_minutes == pytest.approx(6, rel=0.02)


@pytest.mark.parametrize(
    "changes",
    [
        {"attempts": 1},
        {"reached": 3},
        {"given_up": 9},
        {"requested_at": NOW - timedelta(hours=5)},
        {"requested_at": NOW},
        {"previous": 7},
    ],
)
def test_a_wait_for_another_reason_teaches_nothing(changes: dict[str, Any]) -> None:
    learned = learned_from(waited(3, **changes))
    assert (learned.dead_times, learned.epoch) == (0, 9)


def test_an_action_that_is_not_confirmed_teaches_nothing_yet() -> None:
    assert learned_from(waited(3, status=ActionStatus.PENDING)) == Learned()
