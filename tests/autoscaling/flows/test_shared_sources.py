"""The collector reads a source once, however many metrics name it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NoReturn

import pytest

from local.twins.autoscaling import MemoryCapacityControl, MemoryReader
from local.twins.platform_metrics import MemoryPlatformMetrics
from shared.autoscaling import AzureMonitorMetric
from shared.autoscaling.azure_monitor.source import (
    PlatformMetrics,
    PlatformReading,
    Together,
)
from shared.autoscaling.flows import metric_collector
from shared.autoscaling.messages import decode_samples
from shared.autoscaling.sources import Source
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.values.samples import encode_metrics
from tests.builders import NOW, SOURCE, ago, metric, resource, sample

CPU = AzureMonitorMetric(
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/group-1/providers"
    "/Microsoft.Web/serverfarms/plan-1",
    "CpuPercentage",
)


class CountingReader(MemoryReader):
    def __init__(self, platform: PlatformMetrics | None = None) -> None:
        control = MemoryCapacityControl(lambda: NOW, {"plan-1": 2, "plan-2": 3})
        super().__init__(lambda: NOW, {SOURCE: 42.0}, control, platform)
        self.reads: Counter[Source] = Counter()

    async def read(self, source: Source) -> MetricValue:
        self.reads[source] += 1
        return await super().read(source)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_source_of_several_resources_is_read_once_for_every_metric_that_names_it(
    fails: bool,
) -> None:
    reader, names = CountingReader(), [("plan-1", "backlog"), ("plan-1", "same"), ("plan-2", "own")]
    if fails:
        reader.values.clear()
    resources = [
        resource("plan-1", metrics={"backlog": SOURCE, "same": SOURCE}),
        resource("plan-2", metrics={"own": SOURCE}),
    ]
    collection = await metric_collector.collect(resources, reader, 1)
    assert reader.reads[SOURCE] == 1
    found = [(m.resource_name, m.name) for m in collection.metrics if m.value.value == 42]
    failed = [(f.resource_name, f.metric_name) for f in collection.failures]
    assert (found, failed) == (([], names) if fails else (names, []))


async def test_samples_of_azure_monitor_reach_every_metric_that_names_them() -> None:
    platform = MemoryPlatformMetrics(lambda: NOW, timedelta(minutes=1))
    platform.points[CPU] = {ago(120): 40.0, ago(60): 50.0}
    resources = [resource(name, metrics={"cpu": CPU}) for name in ("plan-1", "plan-2")]
    collection = await metric_collector.collect(resources, CountingReader(platform), 1)
    found = [m for m in collection.metrics if m.name == "cpu"]
    values = (sample(40, 60), sample(50, 0))
    assert found == [Metric(name, "cpu", v) for name in ("plan-1", "plan-2") for v in values]
    assert collection.failures == ()


async def test_metrics_of_azure_monitor_that_are_read_together_share_one_call() -> None:
    """A read that gives up ends neither the call nor the reads of the others."""
    asked, answer = list[Sequence[AzureMonitorMetric]](), asyncio.Event()

    class Slow(MemoryPlatformMetrics):
        async def read(
            self, sources: Sequence[AzureMonitorMetric]
        ) -> Mapping[AzureMonitorMetric, PlatformReading]:
            asked.append(tuple(sources))
            await answer.wait()
            return await super().read(sources)

    platform = Slow(lambda: NOW, timedelta(minutes=1))
    memory = replace(CPU, metric="MemoryPercentage")
    platform.points = {CPU: {ago(60): 50.0}, memory: {ago(60): 60.0}}
    together = Together(lambda: platform)
    gives_up, waits = (asyncio.create_task(together.read(each)) for each in (CPU, memory))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gives_up.cancel()
    answer.set()
    assert await waits == (sample(60, 0),)
    assert asked == [(CPU, memory)]
    alone = asyncio.create_task(together.read(CPU))
    await asyncio.sleep(0)
    alone.cancel()  # it was the only one, so the call ends
    assert await together.read(memory) == ()


async def test_a_streamed_metric_of_azure_monitor_is_not_read() -> None:
    streamed = AzureMonitorMetric(CPU.resource_id, CPU.metric, streamed=True)
    platform = MemoryPlatformMetrics(lambda: NOW)
    resources = [resource(metrics={"cpu": streamed})]
    collection = await metric_collector.collect(resources, CountingReader(platform), 1)
    assert [m.name for m in collection.metrics] == [CAPACITY_METRIC]
    assert collection.failures == ()


async def hangs(_platform: object, _sources: object) -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


async def breaks(_platform: object, _sources: object) -> NoReturn:
    raise RuntimeError("broken")


@pytest.mark.parametrize(
    ("read", "reason"),
    [(hangs, "no answer within 0.04 s"), (breaks, "RuntimeError: broken")],
)
async def test_an_azure_monitor_that_hangs_or_breaks_fails_its_metrics_only(
    read: Any, reason: str
) -> None:
    platform = type("Failing", (MemoryPlatformMetrics,), {"read": read})(lambda: NOW)
    mixed = resource(metrics={"backlog": SOURCE, "cpu": CPU})
    collection = await metric_collector.collect([mixed], CountingReader(platform), 0.02)
    assert {m.name for m in collection.metrics} == {CAPACITY_METRIC, "backlog"}
    assert [(f.metric_name, f.reason) for f in collection.failures] == [("cpu", reason)]


def test_samples_of_one_resource_travel_in_one_message() -> None:
    plan_2 = Metric("plan-2", "backlog", sample(7))
    messages = encode_metrics([metric(1, 60), plan_2, metric(5, 0, "other"), metric(2, 0)])
    assert [decode_samples(message).metrics for message in messages] == [
        (metric(1, 60), metric(2, 0), metric(5, 0, "other")), (plan_2,),
    ]  # fmt: skip
