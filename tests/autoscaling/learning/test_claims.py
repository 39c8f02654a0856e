"""A rate that is set by hand is a claim, and what is seen may refute it."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from html import unescape
from typing import Any

import pytest

from backtest.arena import ARENAS, Arena, Plan, usual_rate
from backtest.replay import App, in_arena, replay_workload
from backtest.workload import workload_of
from backtest.world import varied
from bench.traffic import DAY, traffic
from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling import HubMetric, QueueAge, Resource, Throughput
from shared.autoscaling.deciding.decide import decide
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.flows.notify import collect_news
from shared.autoscaling.flows.status import read_one
from shared.autoscaling.learning.claims import REFUTED, with_counted_rate
from shared.autoscaling.learning.throughput import contradiction, counted_rate, rate_estimate
from shared.autoscaling.messages import Samples
from shared.autoscaling.policy import RateEstimate, RateSource, Recommendation
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
        assert 30 < estimate.likely < 60
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
    for doubt in (0.0, 5.0, 20.0, 50.0):  # the last one is refuted, but nothing else is seen
        claim = RateClaim(60, doubt, NOW, NOW if doubt > REFUTED else None)
        estimate = rate_estimate(fixed, Learned(claim=claim))
        assert estimate is not None
        assert estimate.source is (RateSource.DOUBTED if doubt else RateSource.SETTINGS)
        assert ("given in settings, because that is in doubt" in str(estimate)) is bool(doubt)
        lows.append(estimate.low)
    assert lows == sorted(lows, reverse=True)
    assert lows[0] == 60
    assert lows[-1] == pytest.approx(30)


class Refutations(App):
    """Remembers in which minutes a setting was refuted."""

    refuted: tuple[int, ...] = ()

    def receive(self, metrics: Sequence[Metric], step: int, now: datetime) -> None:
        before = self.state.learned.claim
        super().receive(metrics, step, now)
        after = self.state.learned.claim
        if after and after.refuted_at and not (before and before.refuted_at):
            self.refuted = (*self.refuted, step)


@pytest.mark.parametrize("shape", ["on_and_off", "web_site", "model_requests"])
def test_on_bursty_traffic_a_release_that_halves_the_rate_is_noticed_and_a_right_rate_is_kept(
    shape: str,
) -> None:
    """A day of the right rate, and a day in which a release halves it or not."""
    workload = workload_of(shape, NOW, traffic(shape, 1))
    arena = Arena(usual_rate(workload.arrivals), **ARENAS["production"])
    for each, begin, end in ((arena, DAY, DAY), (varied(arena, "halved"), DAY, DAY + 8 * 60)):
        app = Refutations(in_arena(told(60, counts=False), each), Plan(each))
        replay_workload(app, each, workload.part(0, 2 * DAY), lambda _: None)
        assert (begin < end) is bool(app.refuted)
        assert all(begin < step / each.steps_per_minute < end for step in app.refuted)


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


@pytest.mark.parametrize("seed", range(4))
def test_once_counts_stay_away_the_course_of_the_backlog_refutes_a_setting(seed: int) -> None:
    declared, held, earlier = told(60), ScalingState(), 601 * MINUTE
    for now, metrics in busy(40, 60):
        before = [
            replace(each, value=replace(each.value, time=each.value.time - earlier))
            for each in metrics
        ]
        held = advance(declared, held, before, now - earlier).state
    assert counted_rate(held.learned.work)
    for now, metrics in course_of(30, seed):
        held = advance(declared, held, metrics, now).state
    estimate = rate_estimate(declared.throughput, held.learned)
    assert estimate is not None
    assert (estimate.source, estimate.told) == (RateSource.BACKLOG, 60)
    assert estimate.low == pytest.approx(30, rel=0.3)


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


def test_a_rate_that_counts_have_replaced_stays_while_nothing_is_counted() -> None:
    declared = told(60)
    held = after(declared, busy(40, 28))
    for minute in range(1, 200):
        now = NOW + minute * MINUTE
        values = {CAPACITY_METRIC: 2.0, "backlog": 0.0}
        idle = [Metric("plan-1", name, MetricValue(now, v)) for name, v in values.items()]
        held = advance(declared, held, idle, now).state
    estimate = rate_estimate(declared.throughput, held.learned)
    assert estimate is not None
    assert (estimate.source, estimate.told) == (RateSource.COUNTED, 60)
    assert estimate.likely == pytest.approx(28)


def test_a_setting_that_is_too_low_does_not_lower_the_rate_before_it_is_replaced() -> None:
    declared, held, lows = told(60), ScalingState(), list[float]()
    for now, metrics in busy(40, 90):
        held = advance(declared, held, metrics, now).state
        estimate = rate_estimate(declared.throughput, held.learned)
        assert estimate is not None
        lows.append(estimate.low)
    assert lows[0] == min(lows) == 60
    assert lows[-1] == pytest.approx(90)


def test_a_count_that_contradicts_a_setting_now_and_then_is_forgotten() -> None:
    claim, agrees = RateClaim(60), RateEstimate(RateSource.COUNTED, 60, 58, 0.03, chance=0.01)
    for _ in range(20):
        claim = with_counted_rate(claim, replace(agrees, likely=45), NOW)
        assert claim.doubt > 0
        for _ in range(10):
            claim = with_counted_rate(claim, agrees, NOW)
        assert claim == RateClaim(60)


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
