"""A rate that is set by hand is a claim, and what is seen may refute it."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from html import unescape
from typing import Any

import pytest

from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling import HubMetric, QueueAge, Resource, Throughput
from shared.autoscaling.deciding.decide import decide
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.flows.notify import collect_news
from shared.autoscaling.flows.status import read_one
from shared.autoscaling.learning.throughput import contradiction, rate_estimate
from shared.autoscaling.messages import Samples
from shared.autoscaling.policy import RateSource, Recommendation
from shared.autoscaling.state import Learned, RateClaim, ScalingState
from shared.autoscaling.store.rows import state_of, state_row
from shared.autoscaling.transition import advance
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.values.news import NewsKind
from shared.web.board import Board
from shared.web.http import Request
from shared.web.page import dashboard
from tests.builders import NOW, SOURCE, resource

MINUTE = timedelta(minutes=1)
Minute = tuple[datetime, list[Metric]]


def told(rate: float, *, counts: bool = True, **changes: Any) -> Resource:
    metrics = {"backlog": SOURCE, **({"done": HubMetric()} if counts else {})}
    return resource(
        metrics=metrics,
        policy=QueueAge("backlog", lambda seen: Recommendation(seen.capacity, "hold")),
        throughput=Throughput(rate, 1, completed_metric="done" if counts else None, **changes),
    )


def minutes(
    count: int,
    capacity: Callable[[int], float],
    backlog: Callable[[int], float],
    done: Callable[[int], float] | None = None,
) -> Iterator[Minute]:
    """The samples of each minute, up to NOW."""
    for minute in range(count + 1):
        now = NOW - MINUTE * (count - minute)
        values = {CAPACITY_METRIC: capacity(minute), "backlog": backlog(minute)}
        if done is not None:
            values["done"] = done(minute)
        yield now, [Metric("plan-1", name, MetricValue(now, v)) for name, v in values.items()]


def after(declared: Resource, course: Iterator[Minute]) -> ScalingState:
    held = ScalingState()
    for now, metrics in course:
        held = advance(declared, held, metrics, now).state
    return held


def busy(count: int, finished: float, instances: float = 2) -> Iterator[Minute]:
    """Busy instances, each of which finishes so much in a minute."""
    return minutes(count, lambda _: instances, lambda _: 300.0, lambda _: instances * finished)


@pytest.mark.parametrize(
    ("count", "finished", "trusted", "source"),
    [
        (40, 28, False, RateSource.COUNTED),
        (40, 90, False, RateSource.COUNTED),
        (40, 57, False, RateSource.SETTINGS),
        (4, 28, False, RateSource.DOUBTED),  # not for long enough
        (40, 28, True, RateSource.SETTINGS),
    ],
)
def test_a_setting_is_replaced_once_counts_contradict_it_for_long(
    count: int, finished: float, trusted: bool, source: RateSource
) -> None:
    declared = told(60, trust_rate=trusted)
    estimate = rate_estimate(declared.throughput, after(declared, busy(count, finished)).learned)
    assert estimate is not None
    assert estimate.source is source
    if source is RateSource.SETTINGS:
        assert estimate.likely == pytest.approx(60, rel=0.01)
    elif source is RateSource.DOUBTED:
        assert 42 < estimate.likely < 60
    else:
        assert estimate.likely == pytest.approx(finished)


def course_of(rate: float, seed: int, count: int = 600) -> Iterator[Minute]:
    """A queue whose capacity follows its load, with no counts. It is never empty."""
    chance, queue, instances = random.Random(seed), 2000.0, 6.0
    backlogs, capacities = list[float](), list[float]()
    for minute in range(count + 1):
        if minute % 20 == 0:
            instances = chance.choice(
                [4.0, 8.0] if 1000 < queue < 9000 else [2.0 + 9 * (queue > 5000)]
            )
        queue = max(queue + chance.gauss(6 * rate, 0.3 * rate) - instances * rate, 500.0)
        backlogs.append(queue)
        capacities.append(instances)
    return minutes(count, capacities.__getitem__, backlogs.__getitem__)


def test_the_more_a_setting_is_doubted_the_lower_is_the_rate_to_plan_with() -> None:
    lows, fixed = list[float](), Throughput(60)
    for doubt in (0.0, 1.0, 4.0, 10.0):  # the last one is refuted, but nothing else is seen
        claim = RateClaim(60, doubt, NOW, NOW if doubt > 5 else None)
        estimate = rate_estimate(fixed, Learned(claim=claim))
        assert estimate is not None
        assert estimate.source is (RateSource.DOUBTED if doubt else RateSource.SETTINGS)
        assert ("given in settings, because that is in doubt" in str(estimate)) is bool(doubt)
        lows.append(estimate.low)
    assert lows == sorted(lows, reverse=True)
    assert lows[0] == 60
    assert lows[-1] == pytest.approx(42)


@pytest.mark.parametrize("seed", range(4))
def test_a_load_that_rises_before_each_scale_out_refutes_no_setting_that_is_right(
    seed: int,
) -> None:
    """The load of each half hour is another one, and the capacity follows 8 min later."""
    chance, queue, load = random.Random(seed), 90_000.0, [6.0] * 1200
    for start in range(30, len(load), 30):
        load[start : start + 30] = [chance.uniform(4, 9)] * 30
    instances = [round(load[max(minute - 8, 0)]) for minute in range(len(load))]
    backlogs = list[float]()
    for minute, each in enumerate(load):
        working = min(instances[max(minute - 1, 0)], instances[minute])
        queue += 60 * (each - working) + chance.gauss(0, 60)
        backlogs.append(queue)
    course = minutes(len(load) - 1, instances.__getitem__, backlogs.__getitem__)
    claim = after(told(60, counts=False), course).learned.claim
    assert claim is not None
    assert claim.refuted_at is None


@pytest.mark.parametrize("seed", range(4))
def test_instances_that_start_within_seconds_refute_no_setting_that_is_right(seed: int) -> None:
    """The load of each minute is another one, and the capacity follows within that minute."""
    chance, queue = random.Random(seed), 90_000.0
    load = [chance.uniform(4, 9) for _ in range(120)]
    instances = [round(each) for each in load]
    backlogs = list[float]()
    for each, working in zip(load, instances, strict=True):
        queue += 60 * (each - working) + chance.gauss(0, 60)
        backlogs.append(queue)
    course = minutes(len(load) - 1, instances.__getitem__, backlogs.__getitem__)
    declared = replace(told(60, counts=False), throughput=Throughput(60, 0.05))
    estimate = rate_estimate(declared.throughput, after(declared, course).learned)
    assert estimate is not None
    assert (estimate.source, estimate.low) == (RateSource.SETTINGS, 60)


@pytest.mark.parametrize("seed", range(4))
def test_the_course_of_the_backlog_refutes_a_setting_that_is_too_high_and_no_other(
    seed: int,
) -> None:
    for rate, refuted in ((60, False), (30, True)):
        declared = told(60, counts=False)
        learned = after(declared, course_of(rate, seed)).learned
        assert learned.claim is not None
        assert (learned.claim.refuted_at is not None) is refuted
        estimate = rate_estimate(declared.throughput, learned)
        assert estimate is not None
        assert estimate.low == pytest.approx(60 if not refuted else 30, rel=0.3)


async def test_page_log_status_and_notification_tell_a_contradiction_with_one_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    declared, now = told(60), NOW
    store = MemoryStateStore(lambda: now)
    resources = {"plan-1": declared}
    course = minutes(40, lambda _: 2.0, lambda _: 300.0, lambda minute: 52.0 + minute % 2 * 8)
    with caplog.at_level(logging.WARNING):
        while not caplog.messages:
            now, metrics = next(course)
            samples = Samples("plan-1", tuple(metrics))
            await scaling_logic.process_samples(samples, resources, store)
    learned = (await store.load("plan-1")).state.learned
    text = contradiction(declared.throughput, learned, now)
    told_of = "the setting says 60 a minute; in the last [0-9]+ min instances finished 28[.0-9]* ± "
    assert re.match(told_of, text)
    assert caplog.messages == [f"[rate_refuted] plan-1: {text}"]
    news = await collect_news([declared], store, NOW, now, 30)
    (one,) = [each for each in news.conditions if each.kind is NewsKind.RATE_REFUTED]
    assert one.what == f"plan-1: {text}"
    assert one.to_json() in (await read_one(declared, store, 30))["conditions"]
    board = Board(resources, store, 30)
    assert one.what in unescape((await dashboard(Request(), board)).body)


def test_a_setting_that_is_changed_is_a_new_claim() -> None:
    held = after(told(60), busy(40, 28))
    estimate = rate_estimate(Throughput(28), held.learned)
    assert estimate is not None
    assert (estimate.source, estimate.low) == (RateSource.SETTINGS, 28)


def test_the_doubt_is_read_back() -> None:
    learned = after(told(60), busy(40, 28)).learned
    assert learned.claim is not None
    assert learned.claim.refuted_at is not None
    assert state_of([state_row("plan-1", "learned", learned)])[0].learned == learned


def test_a_rate_below_half_of_the_setting_is_used_once_it_has_helped_for_ten_minutes() -> None:
    declared = told(60)
    lows = []
    for count in (12, 40):
        estimate = rate_estimate(declared.throughput, after(declared, busy(count, 12)).learned)
        assert estimate is not None
        assert estimate.told == 60
        lows.append(estimate.low)
    assert lows == [30, pytest.approx(12)]


def slow_database(minute: int) -> float:
    return 2.0 if minute < 20 else 4.0


@pytest.mark.parametrize("rate", [60, None])
def test_a_limit_behind_the_workers_lowers_no_rate_and_adds_nothing(rate: float | None) -> None:
    declared = replace(told(60), throughput=Throughput(rate, 1, completed_metric="done"))
    for finished, wanted in ((lambda _: 120.0, 4), (lambda m: 60 * slow_database(m), 5)):
        course = minutes(40, slow_database, lambda m: 300.0 + 100 * m, finished)
        held = after(declared, course)
        estimate = rate_estimate(declared.throughput, held.learned)
        assert estimate is not None
        assert estimate.likely == pytest.approx(60)
        assert decide(declared, replace(held, desired=None), NOW).desired == wanted
