"""decide: how many decisions one core makes a second, without any input or output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import cycle

from bench.measurement import Measurement
from bench.repeats import calls_per_second
from shared.autoscaling import (
    AppServicePlan,
    QueueAge,
    Resource,
    ServiceBusSubscription,
    Threshold,
    Throughput,
)
from shared.autoscaling.deciding.counterfactual import explained
from shared.autoscaling.deciding.decide import decide
from shared.autoscaling.deciding.samples import merge
from shared.autoscaling.state import ScalingState
from shared.autoscaling.transition import advance
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue, Window

SAMPLES = 40
"""Ten minutes with one sample every 15 s, which are the app's defaults."""

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
STEP = timedelta(seconds=15)
UNIT = "decisions/s"
BASELINE = f"baseline: mean and maximum of the same {SAMPLES} floats, inline"

RESOURCE = Resource(
    name="workers",
    target=AppServicePlan("00000000-0000-0000-0000-000000000001", "bench", "workers"),
    metrics={"backlog": ServiceBusSubscription("orders", "billing")},
    policy=Threshold("backlog", upper=100, lower=10),
)
BY_AGE = replace(
    RESOURCE,
    policy=QueueAge("backlog", until_known=Threshold("backlog", upper=100, lower=10)),
    throughput=Throughput(60.0, start_up_minutes=3),
)
MESSAGES, WARM_UP = 360, 160
"""The messages of an hour and a half; the history is complete after the warm-up."""
VALUES = [50.0 + position % 7 for position in range(SAMPLES)]


def measure(repeats: int = 9, calls: int = 5_000) -> Iterator[Measurement]:
    """Decisions a second, compared with the arithmetic that any Python implementation needs."""
    operations = (_decision(), _merge_and_decision(), _mean_and_maximum)
    decisions, merges, limit = calls_per_second(operations, repeats=repeats, calls=calls)
    both = (_explanation(), _decision())
    explanations, plain = calls_per_second(both, repeats=repeats, calls=max(calls // 50, 1))
    yield Measurement("decide.decisions", decisions, UNIT, limit, "≥ 50000", BASELINE)
    yield Measurement("decide.merge_and_decide", merges, UNIT, limit, note=BASELINE)
    note = "with its counterfactual, as for a change; baseline: the decision alone"
    yield Measurement("decide.explained", explanations, UNIT, plain, "≥ 500", note)
    (by_age,) = calls_per_second([_advance()], repeats=repeats, calls=max(calls // 5, 1))
    note = "a message with backlog and capacity, QueueAge; baseline: the aim"
    yield Measurement("decide.advance_queue_age", by_age, UNIT, 16_000, "≥ 16000", note)


def _decision() -> Callable[[], object]:
    state = _state(SAMPLES)
    return lambda: decide(RESOURCE, state, NOW)


def _explanation() -> Callable[[], object]:
    state = _state(SAMPLES)
    return lambda: explained(RESOURCE, state, decide(RESOURCE, state, NOW))


def _merge_and_decision() -> Callable[[], object]:
    before = _state(SAMPLES - 1)
    newest = Metric(RESOURCE.name, "backlog", MetricValue(NOW, VALUES[-1]))

    def run() -> object:
        merged = merge(RESOURCE, before, [newest], NOW)
        return decide(RESOURCE, merged.state, NOW)

    return run


def _advance() -> Callable[[], object]:
    """One message after the other, each with the state that the messages before it led to."""
    state, given = ScalingState(), list[tuple[ScalingState, list[Metric], datetime]]()
    for number in range(MESSAGES):
        now, backlog = NOW + STEP * number, 120.0 + 90.0 * (number % 16 > 8) + number % 7
        read = {"backlog": MetricValue(now, backlog), CAPACITY_METRIC: MetricValue(now, 3)}
        message = [Metric(BY_AGE.name, name, value) for name, value in read.items()]
        given.append((state, message, now))
        state = advance(BY_AGE, state, message, now).state
    turns = cycle(given[WARM_UP:])

    def run() -> object:
        known, message, now = next(turns)
        return advance(BY_AGE, known, message, now)

    return run


def _mean_and_maximum() -> object:
    return sum(VALUES) / len(VALUES), max(VALUES)


def _state(sample_count: int) -> ScalingState:
    """The state with the first ``sample_count`` samples of the window."""
    times = [NOW - STEP * (SAMPLES - 1 - position) for position in range(sample_count)]
    backlog = tuple(map(MetricValue, times, VALUES))
    capacity = (MetricValue(NOW, 2),)
    return ScalingState({"backlog": Window(backlog), CAPACITY_METRIC: Window(capacity)})
