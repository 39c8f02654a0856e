"""The collector reads a source once, however many metrics name it."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import NoReturn

from shared.adapters.memory.autoscaling import MemoryCapacityControl, MemoryReader
from shared.adapters.memory.platform_metrics import MemoryPlatformMetrics
from shared.autoscaling import AzureMonitorMetric
from shared.autoscaling.declaring import MetricSource
from shared.autoscaling.flows import metric_collector
from shared.autoscaling.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.autoscaling.messages import decode_samples, encode_metrics
from tests.builders import NOW, SOURCE, ago, metric, resource, sample

CPU = AzureMonitorMetric(
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/group-1/providers"
    "/Microsoft.Web/serverfarms/plan-1",
    "CpuPercentage",
)


class CountingReader(MemoryReader):
    def __init__(self) -> None:
        control = MemoryCapacityControl(lambda: NOW, {"plan-1": 2, "plan-2": 3})
        super().__init__(lambda: NOW, {SOURCE: 42.0}, control)
        self.reads: Counter[MetricSource] = Counter()

    async def read(self, source: MetricSource) -> MetricValue:
        self.reads[source] += 1
        return await super().read(source)


async def test_a_source_of_several_resources_is_read_once_and_given_to_all() -> None:
    reader = CountingReader()
    resources = [
        resource("plan-1", metrics={"backlog": SOURCE, "same": SOURCE}),
        resource("plan-2", metrics={"orders": SOURCE}),
    ]
    collection = await metric_collector.collect(resources, reader, 1)
    assert reader.reads[SOURCE] == 1
    assert [(m.resource_name, m.name) for m in collection.metrics if m.value.value == 42] == [
        ("plan-1", "backlog"), ("plan-1", "same"), ("plan-2", "orders"),
    ]  # fmt: skip


async def test_a_failed_source_fails_for_every_metric_that_names_it() -> None:
    reader = CountingReader()
    reader.values.clear()
    resources = [resource("plan-1"), resource("plan-2")]
    collection = await metric_collector.collect(resources, reader, 1)
    assert [f.resource_name for f in collection.failures] == ["plan-1", "plan-2"]
    assert reader.reads[SOURCE] == 1


async def test_samples_of_azure_monitor_reach_every_metric_that_names_them() -> None:
    platform = MemoryPlatformMetrics(lambda: NOW, timedelta(minutes=1))
    platform.points[CPU] = {ago(120): 40.0, ago(60): 50.0}
    resources = [resource(name, metrics={"cpu": CPU}) for name in ("plan-1", "plan-2")]
    collection = await metric_collector.collect(resources, CountingReader(), 1, platform)
    found = [m for m in collection.metrics if m.name == "cpu"]
    values = (sample(40, 60), sample(50, 0))
    assert found == [Metric(name, "cpu", v) for name in ("plan-1", "plan-2") for v in values]
    assert collection.failures == ()


async def test_a_streamed_metric_of_azure_monitor_is_not_read() -> None:
    streamed = AzureMonitorMetric(CPU.resource_id, CPU.metric, streamed=True)
    platform = MemoryPlatformMetrics(lambda: NOW)
    resources = [resource(metrics={"cpu": streamed})]
    collection = await metric_collector.collect(resources, CountingReader(), 1, platform)
    assert [m.name for m in collection.metrics] == [CAPACITY_METRIC]
    assert collection.failures == ()


async def test_an_azure_monitor_that_hangs_does_not_hold_back_other_sources() -> None:
    class Hanging(MemoryPlatformMetrics):
        async def read(self, _sources: object) -> NoReturn:
            await asyncio.Event().wait()
            raise AssertionError

    mixed = resource(metrics={"backlog": SOURCE, "cpu": CPU})
    collection = await metric_collector.collect(
        [mixed], CountingReader(), 0.02, Hanging(lambda: NOW)
    )
    assert {m.name for m in collection.metrics} == {CAPACITY_METRIC, "backlog"}
    assert [(f.metric_name, f.reason) for f in collection.failures] == [
        ("cpu", "no answer within 0.04 s")
    ]


async def test_a_broken_client_of_azure_monitor_fails_its_metrics_only() -> None:
    class Broken(MemoryPlatformMetrics):
        async def read(self, _sources: object) -> NoReturn:
            raise RuntimeError("broken")

    mixed = resource(metrics={"backlog": SOURCE, "cpu": CPU})
    collection = await metric_collector.collect([mixed], CountingReader(), 1, Broken(lambda: NOW))
    assert {m.name for m in collection.metrics} == {CAPACITY_METRIC, "backlog"}
    assert [(f.metric_name, f.reason) for f in collection.failures] == [
        ("cpu", "RuntimeError: broken")
    ]


def test_samples_of_one_resource_travel_in_one_message() -> None:
    plan_2 = Metric("plan-2", "backlog", sample(7))
    messages = encode_metrics([metric(1, 60), plan_2, metric(5, 0, "other"), metric(2, 0)])
    assert [decode_samples(message).metrics for message in messages] == [
        (metric(1, 60), metric(2, 0), metric(5, 0, "other")), (plan_2,),
    ]  # fmt: skip
