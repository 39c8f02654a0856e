"""The metrics of decisions, of the decision log, and of ingestion."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from local.twins.autoscaling import MemoryStateStore
from local.twins.nightly import MemoryRunStore
from local.twins.rows import MemoryRows
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.declaring import Goal, Limits, Throughput
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.operating.metering import measured as measured_entries
from shared.azure.meter import OpenTelemetryMeter
from shared.ingestion.breaker.state import Breaker, BreakerMode
from shared.ingestion.model import (
    Checkpoint,
    Commit,
    DeadLetter,
    Effect,
    FailureKind,
    Gap,
    Stream,
)
from shared.ingestion.store.breakers import BreakerStore
from shared.ingestion.store.events import EventStore
from shared.trends.nightly.flows.run_manager import of_dates
from shared.trends.nightly.model import Demand, Run, RunState
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from tests.builders import NOW, as_message, resource


class Measured:
    """A resource whose store is measured, and a meter for others."""

    def __init__(self) -> None:
        self.now = NOW
        self.reader = InMemoryMetricReader()
        self.meter = OpenTelemetryMeter(MeterProvider([self.reader]).get_meter("test"))
        self.resource = resource(
            limits=Limits(1, 5),
            goal=Goal(age_limit_minutes=4),
            throughput=Throughput(rate_per_instance_minute=30),
        )
        self.store = MemoryStateStore(
            lambda: self.now,
            lambda entries, state: self.meter(
                measured_entries(entries, state, {"plan-1": self.resource})
            ),
        )

    async def minute(self, backlog: float, late_seconds: float = 0) -> None:
        self.now += timedelta(minutes=1)
        time = self.now - timedelta(seconds=late_seconds)
        for name, value in ((CAPACITY_METRIC, 2.0), ("backlog", backlog)):
            sent = Metric("plan-1", name, MetricValue(time, value))
            await scaling_logic.process_samples(
                as_message(sent), {"plan-1": self.resource}, self.store
            )

    def points(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: list(metric.data.data_points)
            for scope in data.resource_metrics[0].scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def measured() -> Measured:
    return Measured()


async def test_gauges_show_the_newest_backlog_and_the_current_and_desired_capacity(
    measured: Measured,
) -> None:
    for backlog in (100, 150, 200, 250, 300):
        await measured.minute(backlog)
    points = measured.points()
    (metric,) = points["autoscaler.metric"]
    assert (metric.value, dict(metric.attributes)) == (
        300,
        {"autoscaler.resource": "plan-1", "autoscaler.metric": "backlog"},
    )
    assert [p.value for p in points["autoscaler.capacity"]] == [2]
    assert [p.value for p in points["autoscaler.desired"]] == [3]


async def test_gauges_show_the_limits_the_goal_and_the_throughput(measured: Measured) -> None:
    await measured.minute(100)
    points = measured.points()
    values = {name: getattr(points[name][0], "value", None) for name in points}
    assert (values["autoscaler.minimum"], values["autoscaler.maximum"]) == (1, 5)
    assert values["autoscaler.age.limit"] == 240
    assert (values["autoscaler.throughput"], values["autoscaler.throughput.low"]) == (30, 30)
    assert values["autoscaler.throughput.error"] == 0


async def test_the_age_of_the_oldest_item_is_the_backlog_divided_by_its_arrivals(
    measured: Measured,
) -> None:
    evidence = {"backlog": 90.0, "arrivals_per_minute": 60.0}
    entry = LogEntry("plan-1", NOW, EntryKind.DECISION, "1", "holding", evidence=evidence)
    await measured.store.record(entry)
    assert [point.value for point in measured.points()["autoscaler.age"]] == [90]


async def test_decisions_are_counted_by_outcome_and_guard(measured: Measured) -> None:
    for _ in range(7):
        await measured.minute(200)
    counted = {
        (p.attributes["autoscaler.outcome"], p.attributes["autoscaler.guard"]): p.value
        for p in measured.points()["autoscaler.decisions"]
    }
    assert counted[("out", "none")] == 1
    assert sum(counted.values()) == 7


async def test_the_age_of_samples_is_measured(measured: Measured) -> None:
    await measured.minute(5, late_seconds=20)
    (age,) = measured.points()["autoscaler.sample.age"]
    assert (age.count, age.sum) == (1, 20)


async def test_the_lag_of_a_partition_and_the_outcomes_of_its_events_are_measured() -> None:
    measured, stream = Measured(), Stream("bus", "metrics", "$Default", "2")
    store = EventStore(MemoryRows(lambda: NOW), meter=measured.meter)
    letter = DeadLetter(1, "1", NOW, NOW, FailureKind.POISON, "bad")
    checkpoint = Checkpoint(0, 4, "4", NOW - timedelta(seconds=90), txid="t")
    gap = Gap(2, 4, NOW, "retention")
    commit = Commit(None, checkpoint, (Effect(0, "kept"),), (letter,), (gap,))
    await store.commit(stream, await store.load(stream), commit)
    points = measured.points()
    assert [p.value for p in points["autoscaler.ingestion.lag"]] == [90]
    counted = {
        p.attributes["autoscaler.outcome"]: p.value for p in points["autoscaler.ingestion.outcomes"]
    }
    assert counted == {"effect": 1, "dead_letter": 1, "gap": 3}


@pytest.mark.parametrize(
    ("mode", "level"), [("closed", 0), ("half_open", 1), ("open", 2), ("isolated", 3)]
)
async def test_the_mode_of_the_breaker_is_a_number(
    measured: Measured, mode: str, level: int
) -> None:
    store = BreakerStore(MemoryRows(lambda: NOW), "metric_ingest", measured.meter)
    seen = await store.load()
    await store.replace(seen, Breaker(BreakerMode(mode)))
    assert [point.value for point in measured.points()["autoscaler.ingestion.breaker"]] == [level]


async def test_dates_of_the_last_week_are_counted_by_the_state_of_their_latest_run(
    measured: Measured,
) -> None:
    store = MemoryRunStore(lambda: NOW)
    runs = {1: RunState.FAILED, 2: RunState.SUCCEEDED, 3: RunState.SUCCEEDED, 8: RunState.LOST}
    for days, state in runs.items():
        day = NOW.date() - timedelta(days=days)
        await store.write(Run("events", day, 1, 1, "t", NOW, state, NOW, NOW))
    await store.ask("events", Demand(NOW.date(), NOW, "nightly run"))
    measured.meter(of_dates("events", await store.read("events")))
    points = measured.points()["autoscaler.trends.dates"]
    counted = {point.attributes["autoscaler.state"]: point.value for point in points}
    assert {state: count for state, count in counted.items() if count} == {
        "requested": 1,
        "failed": 1,
        "succeeded": 2,
    }
    assert counted["lost"] == 0, "a state without dates is 0, so that its line ends"
