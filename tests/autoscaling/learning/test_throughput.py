"""The rate of a busy instance, from what is finished while there is always work."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.autoscaling import (
    AzureMonitorMetric,
    BacklogTarget,
    Guards,
    HubMetric,
    Missing,
    Observation,
    Profile,
    QueueAge,
    Recommendation,
    Schedule,
    StorageQueue,
    TargetTracking,
    Threshold,
    Throughput,
    any_of,
    every,
    fallback,
    highest,
    scale_in_only_if,
)
from shared.autoscaling.deciding.decide import decide
from shared.autoscaling.deciding.validation import problems
from shared.autoscaling.learning.throughput import (
    Counted,
    counted_rate,
    known_throughput,
    rate_estimate,
    with_counted,
)
from shared.autoscaling.policy import RateEstimate, RateSource, Unhelpful
from shared.autoscaling.state import BusyIntervals, ScalingState
from shared.autoscaling.transition import advance
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from tests.builders import NOW, SOURCE, metric, resource, state

MINUTE = timedelta(minutes=1)
RATE = 40.0
PLAN = (
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/group-1/providers"
    "/Microsoft.Web/serverfarms/plan-1"
)


def at(minute: float, value: float) -> MetricValue:
    return MetricValue(NOW + MINUTE * minute, value)


def series(*values: float) -> list[MetricValue]:
    return [at(minute, value) for minute, value in enumerate(values)]


WAITING = series(*[500.0] * 12)
HELD = [at(-9, 3), at(12, 3)]

TEACHING: dict[str, tuple[list[MetricValue], list[MetricValue], list[MetricValue]]] = {
    "busy instances": (series(*[120.0] * 8), WAITING, HELD),
    "an interval with an empty queue teaches nothing": (
        series(*[120.0] * 4, 7.0, 9.0, *[120.0] * 3),
        series(*[500.0] * 4, 0.0, *[500.0] * 4),
        HELD,
    ),
    "no interval near a change teaches; the new ones begin to work at 4": (
        series(0, *[120.0] * 3, 121.0, 130.0, *[240.0] * 8),
        series(*[500.0] * 14),
        [at(-9, 3), at(2, 3), at(3, 6), at(14, 6)],
    ),
    "no interval teaches in which the capacity may have changed before it was read": (
        series(0, *[120.0] * 4, 180.0, *[240.0] * 8),
        series(*[500.0] * 14),
        [at(-9, 3), at(4.5, 3), at(5.5, 6), at(14, 6)],
    ),
    "an interval that lacks a sample does not underrate": (
        [sample for i, sample in enumerate(series(*[120.0] * 12)) if i not in (4, 7, 8)],
        WAITING,
        HELD,
    ),
}


@pytest.mark.parametrize(("finished", "backlog", "capacities"), TEACHING.values(), ids=TEACHING)
def test_what_busy_instances_finish_is_their_rate(
    finished: list[MetricValue], backlog: list[MetricValue], capacities: list[MetricValue]
) -> None:
    found = counted_rate(with_counted(BusyIntervals(), Counted(finished), backlog, capacities))
    assert found is not None
    assert found.likely == pytest.approx(RATE)
    assert found.relative_error == pytest.approx(0, abs=1e-4)


def test_what_comes_less_what_is_left_over_is_as_good() -> None:
    backlog = series(500, 530, 480, 600, 610, 700)
    incoming = Counted(series(0, 150, 70, 240, 130, 210), True)
    found = counted_rate(with_counted(BusyIntervals(), incoming, backlog, HELD))
    assert found is not None
    assert found.likely == pytest.approx(RATE)


@pytest.mark.parametrize(("intervals", "sure"), [(2, False), (3, True)])
def test_three_intervals_are_needed(intervals: int, sure: bool) -> None:
    counted = Counted(series(*[120.0] * (intervals + 1)))
    found = counted_rate(with_counted(BusyIntervals(), counted, WAITING, HELD))
    assert found is not None
    assert found.sure is sure


def test_each_interval_teaches_once_and_only_when_it_is_over_for_all_metrics() -> None:
    counted, capacities = Counted(series(*[120.0] * 6)), [at(-9, 3), at(6, 3)]
    backlog = series(*[500.0] * 6)
    early = with_counted(BusyIntervals(), counted, backlog[:4], capacities)
    whole = with_counted(early, counted, backlog, capacities)
    assert len(early.recent) == 3
    assert early.until == backlog[3].time
    assert whole == with_counted(BusyIntervals(), counted, backlog, capacities)
    assert with_counted(whole, counted, backlog, capacities) is whole


@pytest.mark.parametrize(
    ("published", "taught"),
    [
        ((0, 1, 2, 3, 4, 5), 5),
        ((0, 2, 1, 5, 4, 3), 5),  # not in order
        ((0, 2, 4, 6, 8), 0),  # a minute is never taken for the work of two
        ((0, 2, 3, 4), 0),
        ((0, 2, 3, 4, 5), 3),  # a count that is missing for five minutes is not waited for
    ],
)
def test_counts_that_are_published_one_by_one_teach_as_much_in_any_order(
    published: tuple[int, ...], taught: int
) -> None:
    work, samples = BusyIntervals(), list[MetricValue]()
    for minute in published:
        samples = sorted([*samples, at(minute, 120)], key=lambda sample: sample.time)
        counted = Counted(tuple(samples), grain=MINUTE)
        work = with_counted(work, counted, WAITING[:9], HELD)
    assert work.recent == ((120.0, 3.0),) * taught


@given(st.integers(0, 10_000), st.floats(0.05, 0.5))
def test_the_stated_error_covers_what_chance_does(seed: int, noise: float) -> None:
    chance = random.Random(seed)
    finished = series(*[120.0 * max(0.0, chance.gauss(1, noise)) for _ in range(60)])
    busy = series(*[500.0] * 60), [at(-9, 3), at(60, 3)]
    found = counted_rate(with_counted(BusyIntervals(), Counted(finished), *busy))
    assert found is not None
    assert abs(found.likely - RATE) <= 6 * found.relative_error * found.likely
    assert found.relative_error < noise / 2


def test_a_noisy_count_is_not_believed() -> None:
    steady = BusyIntervals(recent=((50.0, 1.0),) * 10)
    assert counted_rate(steady) == RateEstimate(RateSource.COUNTED, 50, 50, 0)
    assert counted_rate(BusyIntervals(recent=((10.0, 1.0), (90.0, 1.0)) * 5)) is None


def intervals(*levels: tuple[float, ...]) -> BusyIntervals:
    """So many minutes with so many deliveries, instances and failures each, level by level."""
    recent = tuple(
        [
            (done, busy, done - failed[0], busy) if failed else (done, busy)
            for count, done, busy, *failed in levels
            for _ in range(int(count))
        ]
    )
    return BusyIntervals(recent=recent, since_empty=len(recent), minutes=1)


SLOWER = BusyIntervals(
    recent=((120, 3),) * 12 + ((50, 4, 50, 3),) * 3 + ((70, 4),) * 4, since_empty=19, minutes=1
)
"""Workers that become slower while one more starts."""


@pytest.mark.parametrize(
    ("recent", "likely", "unhelpful"),
    [
        (intervals((12, 120, 3), (3, 60, 3)), 20, None),  # a deploy
        (intervals((12, 120, 3), (1, 60, 3)), 38.5, None),  # too few to tell
        (intervals((12, 60, 3), (8, 120, 3)), 40, None),
        (intervals((12, 120, 3), (9, 60, 3), (9, 240, 6)), 40, None),  # and its correction
        (intervals((12, 120, 3), (5, 60, 3), (12, 120, 6)), 20, None),  # what arrives, as before
        (intervals((12, 120, 3), (6, 240, 6)), 40, None),
        (intervals((12, 120, 3), (6, 125, 6)), 40, Unhelpful(3, 3)),
        (intervals((12, 120, 3), (6, 90, 6)), 40, Unhelpful(3, 3)),
        (intervals((12, 120, 3), (5, 50, 3), (3, 70, 4)), 17.1, None),  # slower before they start
        (SLOWER, 17.5, None),
        (intervals((12, 120, 3), (2, 125, 6)), 24.7, None),  # too few to tell
        (intervals((12, 120, 3), (3, 122, 4), (3, 121, 5)), 40, Unhelpful(3, 2)),
        (intervals((12, 120, 3), (6, 125, 6), (20, 121, 3)), 40.2, Unhelpful(3, 3)),  # stepped back
        (intervals((12, 120, 3), (6, 125, 6), (28, 121, 3)), 40.3, None),  # too long ago
        (intervals((12, 120, 3), (6, 118, 4)), 29.5, None),  # or slower in this hour
        (intervals((12, 120, 4), (6, 118, 6)), 30, Unhelpful(4, 2)),
        (  # again
            intervals(
                *((12, 100, 2), (6, 100, 20), (30, 100, 2), (6, 100, 20), (30, 100, 2)),
                (3, 100, 20),
            ),
            50,
            Unhelpful(2, 18),
        ),
        (intervals((12, 120, 3), (4, 125, 6), (4, 240, 6)), 34.5, None),  # they help now
        (intervals((12, 120, 3), (6, 90, 2)), 45, None),
        (intervals((12, 120, 3), (6, 240, 6, 118)), 40, Unhelpful(3, 3)),  # what is added fails
        (intervals((12, 120, 3, 12), (6, 240, 6, 24)), 40, None),  # the same share fails
        (intervals((12, 120, 3), (6, 120, 3, 60), (6, 240, 6, 120)), 40, None),  # poison, not more
        (intervals((12, 120, 3), (6, 500, 3, 499)), 40, None),  # most fail: no rate
    ],
)
def test_the_rate_follows_a_jump_unless_more_instances_finish_nothing_more(
    recent: BusyIntervals, likely: float, unhelpful: Unhelpful | None
) -> None:
    found = counted_rate(recent)
    assert found is not None
    assert found.likely == pytest.approx(likely, rel=0.01)
    assert found.unhelpful == unhelpful
    for other in (replace(recent, since_empty=2), replace(recent, minutes=0)):
        unknown = counted_rate(other)
        assert unknown is not None
        assert not unknown.limited


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("capacities", [(2, 3), (4, 6), (3, 5)])
def test_intervals_of_unequal_length_show_instances_that_help_nobody_and_no_others(
    capacities: tuple[int, int], seed: int
) -> None:
    """Counts that workers send come a little earlier or later than after a minute."""
    chance, (few, many) = random.Random(seed), capacities

    def found(rate: float, limit: float, hour: float, noise: float) -> Unhelpful | None:
        levels = [(few, rate)] * 12 + [(many, hour * rate)] * 6
        minutes = [(chance.uniform(0.99, 1.01), *each) for each in levels]
        done = [min(n * per, limit) * chance.gauss(1, noise) for _, n, per in minutes]
        recent = [(1, m * d, m * n) for d, (m, n, _) in zip(done, minutes, strict=True)]
        estimate = counted_rate(intervals(*recent))
        assert estimate is not None
        return estimate.unhelpful

    assert found(40, few * 40, 1, 0.01) == Unhelpful(few, many - few)
    assert found(40, 1000, 0.69, 0.08) is None


@pytest.mark.parametrize("seed", range(20))
def test_chance_does_not_make_instances_seem_unhelpful(seed: int) -> None:
    chance = random.Random(seed)
    found = counted_rate(
        intervals(
            *((1, chance.gauss(40 * n, 8 * n), n) for n in (2, 3, 5, 8, 9) for _ in range(12))
        )
    )
    assert found is not None
    assert found.unhelpful is None


def test_the_planned_rate_is_lower_by_how_much_the_rate_differs_between_hours() -> None:
    def planned(*levels: tuple[int, float, float]) -> float:
        found = counted_rate(intervals(*levels))
        assert found is not None
        return found.low / found.likely

    steady = planned((60, 120, 3))
    hours = planned((20, 100, 3), (20, 140, 3), (20, 120, 3))
    noise = planned(*((1, 100, 3), (1, 140, 3)) * 30)
    assert steady == 1
    assert hours == pytest.approx(0.83, abs=0.05)
    assert noise > 0.94


COUNTING = resource(
    metrics={"backlog": SOURCE, "finished": HubMetric()},
    throughput=Throughput(completed_metric="finished"),
    history_seconds=1800,
)


def test_a_count_teaches_and_decides_nothing() -> None:
    held = state([50.0] * 10, 2)
    step = advance(COUNTING, held, [metric(120, name="finished")], NOW)
    assert step.decision is None
    assert step.state.histories["finished"].samples


def test_a_count_may_be_older_than_the_window() -> None:
    late = [metric(120, 1200, name="finished"), metric(120, 1200)]
    step = advance(COUNTING, state(), late, NOW)
    assert (step.merged.accepted, step.merged.stale) == ((late[0],), (late[1],))


def test_a_count_that_never_comes_is_no_missing_data() -> None:
    strict = replace(
        COUNTING, policy=lambda _: Recommendation(1, "one"), guards=Guards(missing=Missing(180))
    )
    assert decide(strict, state([5.0] * 3, 2), NOW).desired == 1


AZURE = AzureMonitorMetric(PLAN, "CompleteMessage", "total")


@pytest.mark.parametrize(
    ("source", "every", "rate"),
    [
        (HubMetric(), 1, RATE),
        (AZURE, 1, RATE),
        (AZURE, 2, None),  # each count is that of one minute, although they are two apart
    ],
)
def test_a_rate_is_known_within_minutes_of_work(
    source: Any, every: int, rate: float | None
) -> None:
    counting = replace(COUNTING, metrics={"backlog": SOURCE, "finished": source})
    held = ScalingState()
    for minute in range(12):
        now = NOW + MINUTE * minute
        values = {CAPACITY_METRIC: 2.0, "backlog": 300.0, "finished": 80.0}
        for name in list(values)[: None if minute % every == 0 else -1]:
            sent = Metric("plan-1", name, MetricValue(now, values[name]))
            held = advance(counting, held, [sent], now).state
    estimate = rate_estimate(counting.throughput, held.learned)
    throughput = known_throughput(counting.throughput, held.learned, estimate)
    assert throughput.rate_per_instance_minute == (rate and pytest.approx(rate))
    assert throughput.completed_metric == "finished"
    assert (counted_rate(held.learned.work) is None) is (rate is None)


def test_a_count_that_is_not_declared_is_named() -> None:
    (one,) = problems([resource(throughput=Throughput(completed_metric="typo"))])
    assert "throughput.completed_metric = 'typo': must be one of the resource's metrics" in one
    both = replace(COUNTING, throughput=Throughput(None, None, "finished", "backlog"))
    assert any("only one of the two" in problem for problem in problems([both]))


# --- the backlog to learn from ---


def two(_: Observation) -> Recommendation:
    return Recommendation(2, "two")


BOTH = every("backlog", "retries")
BACKLOG, RETRIES = Threshold("backlog", 9, 1), Threshold("retries", 9, 1)
AGE = QueueAge("backlog", until_known=two)


@pytest.mark.parametrize(
    ("policy", "names", "learned"),
    [
        (AGE, "backlog retries", "backlog"),
        (scale_in_only_if(AGE, BOTH), "backlog retries", "backlog"),
        (scale_in_only_if(BacklogTarget("backlog"), BOTH), "backlog retries", "backlog"),
        (fallback(BacklogTarget("backlog"), RETRIES), "backlog retries", "backlog"),
        (Schedule((), Profile("any", policy=highest(AGE, two))), "backlog retries", "backlog"),
        (highest(AGE, BacklogTarget("retries")), "backlog retries", None),
        (highest(two, two), "backlog cpu", "backlog"),
        (Schedule((), Profile("any"), two), "backlog cpu", "backlog"),
        (two, "backlog retries", None),
        (any_of(BACKLOG, two), "backlog retries", "backlog"),
        (scale_in_only_if(BACKLOG, lambda _: True), "backlog retries", "backlog"),
        (scale_in_only_if(BACKLOG, BOTH), "backlog retries", None),
        (QueueAge("cpu", until_known=two), "backlog cpu", None),
        (TargetTracking("cpu", 50), "backlog cpu", None),
    ],
)  # fmt: skip
def test_the_throughput_is_learned_from_the_backlog_that_the_policies_name(
    policy: Any, names: str, learned: str | None
) -> None:
    sources = {"backlog": SOURCE, "retries": StorageQueue("retries"), "cpu": HubMetric()}
    metrics = {name: sources[name] for name in names.split()}
    assert resource(policy=policy, metrics=metrics).backlog_metric == learned
