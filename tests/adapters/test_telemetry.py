"""The metrics of decisions, of the decision log, and of ingestion."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from shared.adapters.azure.telemetry import MeasuredIngestion, MeasuredStore
from shared.adapters.memory.autoscaling import MemoryStateStore
from shared.adapters.memory.ingestion import MemoryIngestionStore
from shared.autoscaling.flows import override as control
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.autoscaling.operating.overrides import Change
from shared.autoscaling.state import Override
from shared.ingestion.model import (
    Checkpoint,
    Commit,
    DeadLetter,
    Effect,
    FailureKind,
    Gap,
    Stream,
)
from tests.builders import NOW, resource


class Measured:
    """A resource whose store records metrics."""

    def __init__(self) -> None:
        self.now = NOW
        self.reader = InMemoryMetricReader()
        self.meter = MeterProvider([self.reader]).get_meter("test")
        self.store = MeasuredStore(MemoryStateStore(lambda: self.now), self.meter)
        self.resource = resource()

    async def minute(self, backlog: float, late_seconds: float = 0) -> None:
        self.now += timedelta(minutes=1)
        time = self.now - timedelta(seconds=late_seconds)
        for name, value in ((CAPACITY_METRIC, 2.0), ("backlog", backlog)):
            sent = Metric("plan-1", name, MetricValue(time, value))
            await scaling_logic.process_sample(sent, {"plan-1": self.resource}, self.store)

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
        {"resource": "plan-1", "metric": "backlog"},
    )
    assert [p.value for p in points["autoscaler.capacity"]] == [2]
    assert [p.value for p in points["autoscaler.desired"]] == [3]


async def test_decisions_are_counted_by_outcome_and_guard(measured: Measured) -> None:
    for _ in range(7):
        await measured.minute(200)
    counted = {
        (p.attributes["outcome"], p.attributes["guard"]): p.value
        for p in measured.points()["autoscaler.decisions"]
    }
    assert counted[("out", "none")] == 1
    assert sum(counted.values()) == 7


async def test_the_age_of_samples_is_measured(measured: Measured) -> None:
    await measured.minute(5, late_seconds=20)
    (age,) = measured.points()["autoscaler.sample.age"]
    assert (age.count, age.sum) == (1, 20)


async def test_other_entries_of_the_decision_log_are_counted_by_kind(measured: Measured) -> None:
    change = Change(Override(reason="sale", floor=2), "anna", "c-1")
    await control.set_override(measured.resource, change, measured.store)
    (line,) = measured.points()["autoscaler.log"]
    assert (line.value, line.attributes["kind"]) == (1, "override")


async def test_the_lag_of_a_partition_and_the_outcomes_of_its_events_are_measured() -> None:
    measured, stream = Measured(), Stream("bus", "metrics", "$Default", "2")
    store = MeasuredIngestion(MemoryIngestionStore(lambda: NOW), measured.meter)
    letter = DeadLetter(1, "1", NOW, NOW, FailureKind.POISON, "bad")
    checkpoint = Checkpoint(0, 4, "4", NOW - timedelta(seconds=90), txid="t")
    gap = Gap(2, 4, NOW, "retention")
    commit = Commit(None, checkpoint, (Effect(0, "kept"),), (letter,), (gap,))
    await store.commit(stream, await store.load(stream), commit)
    points = measured.points()
    assert [p.value for p in points["ingestion.lag"]] == [90]
    counted = {p.attributes["outcome"]: p.value for p in points["ingestion.outcomes"]}
    assert counted == {"effect": 1, "dead_letter": 1, "gap": 3}
