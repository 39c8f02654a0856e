"""What PlatformMetrics promises, kept by the in-memory adapter and by the one that asks Azure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol

import pytest

from local.azure_apis.arm import ArmStandIn
from local.twins.platform_metrics import MemoryPlatformMetrics
from shared.autoscaling import AzureMonitorMetric
from shared.autoscaling.azure_monitor.client import AzurePlatformMetrics, batch_address
from shared.autoscaling.azure_monitor.queries import RESOURCES_MAX
from shared.autoscaling.azure_monitor.source import PlatformMetrics
from shared.autoscaling.errors import ReadFailed
from shared.values.measurements import MetricValue
from tests.builders import NOW

MINUTE = timedelta(minutes=1)
GROUP = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/group-1/providers"
PLAN = f"{GROUP}/Microsoft.Web/serverfarms/plan-1"
BUS = f"{GROUP}/Microsoft.ServiceBus/namespaces/bus-1"
CPU = AzureMonitorMetric(PLAN, "CpuPercentage")
DONE = AzureMonitorMetric(BUS, "CompleteMessage", "total", filter="EntityName eq 'orders'")


class Subject(Protocol):
    """An adapter, its clock, and what Azure Monitor knows."""

    now: datetime
    metrics: PlatformMetrics

    def publish(self, source: AzureMonitorMetric, minutes_ago: int, value: float) -> None: ...

    def lag(self, minutes: int) -> None: ...

    def withhold(self, minutes_ago: int, *, withheld: bool = True) -> None: ...

    async def restart(self) -> None: ...


class InMemory:
    def __init__(self) -> None:
        self.now = NOW
        self.memory = MemoryPlatformMetrics(lambda: self.now, MINUTE)
        self.metrics: PlatformMetrics = self.memory
        self.memory.points = {CPU: {}, DONE: {}}

    def publish(self, source: AzureMonitorMetric, minutes_ago: int, value: float) -> None:
        self.memory.points[source][NOW - minutes_ago * MINUTE] = value

    def lag(self, minutes: int) -> None:
        self.memory.lag = (minutes + 1) * MINUTE

    def withhold(self, minutes_ago: int, *, withheld: bool = True) -> None:
        change = self.memory.unpublished.add if withheld else self.memory.unpublished.discard
        change(NOW - minutes_ago * MINUTE)

    async def restart(self) -> None:
        self.memory.restart()


class Azure:
    def __init__(self) -> None:
        self.now = NOW
        self.arm = ArmStandIn([], clock=lambda: self.now)
        self.arm.metrics.add(PLAN, "CpuPercentage")
        self.arm.metrics.add(BUS, "CompleteMessage", "IncomingMessages")

    def open(self) -> None:
        self.metrics: PlatformMetrics = AzurePlatformMetrics(self.arm.base_url, 5, lambda: self.now)

    def publish(self, source: AzureMonitorMetric, minutes_ago: int, value: float) -> None:
        entity = "orders" if source.filter else ""
        time = NOW - minutes_ago * MINUTE
        values = self.arm.metrics.resources[source.resource_id.lower()].values
        values[source.metric, entity].pop(time, None)
        self.arm.metrics.record(source.resource_id, source.metric, time, value, entity)

    def lag(self, minutes: int) -> None:
        self.arm.metrics.lag_seconds = minutes * 60

    def withhold(self, minutes_ago: int, *, withheld: bool = True) -> None:
        for each in self.arm.metrics.resources.values():
            change = each.unpublished.add if withheld else each.unpublished.discard
            change(NOW - minutes_ago * MINUTE)

    async def restart(self) -> None:
        await self.metrics.close()
        self.open()


@pytest.fixture
async def azure() -> AsyncIterator[Azure]:
    subject = Azure()
    async with subject.arm:
        subject.open()
        try:
            yield subject
        finally:
            await subject.metrics.close()


@pytest.fixture(params=["in memory", "azure"])
def subject(request: pytest.FixtureRequest) -> Subject:
    return InMemory() if request.param == "in memory" else request.getfixturevalue("azure")


async def samples(subject: Subject, source: AzureMonitorMetric = CPU) -> list[tuple[int, float]]:
    """The new samples as the minutes since each of them ended, before or after NOW, and its
    value."""
    readings = await subject.metrics.read([source])
    reading = readings[source]
    assert not isinstance(reading, ReadFailed), reading
    return [((NOW - each.time) // MINUTE, each.value) for each in reading]


async def test_a_sample_is_dated_by_the_end_of_its_minute(subject: Subject) -> None:
    subject.publish(CPU, 1, 50)
    assert await samples(subject) == [(0, 50)]


async def test_a_minute_without_a_value_is_missing_and_not_zero(subject: Subject) -> None:
    subject.publish(CPU, 3, 50)
    subject.publish(CPU, 1, 70)
    assert await samples(subject) == [(2, 50), (0, 70)]


async def test_a_minute_that_is_not_over_is_left_for_later(subject: Subject) -> None:
    subject.publish(CPU, 0, 90)
    subject.publish(CPU, 1, 50)
    subject.now += timedelta(seconds=30)
    assert await samples(subject) == [(0, 50)]
    subject.now += MINUTE
    assert await samples(subject) == [(-1, 90)]


async def test_a_point_is_returned_once_and_a_late_one_after_later_ones(subject: Subject) -> None:
    subject.publish(CPU, 3, 30)
    subject.publish(CPU, 2, 40)
    subject.withhold(3)
    assert await samples(subject) == [(1, 40)]
    subject.now += MINUTE
    subject.withhold(3, withheld=False)
    assert await samples(subject) == [(2, 30)]
    subject.now += MINUTE
    assert await samples(subject) == []


@pytest.mark.parametrize("minutes", [1, 4, 10])
async def test_a_lag_delays_samples_and_loses_none(subject: Subject, minutes: int) -> None:
    subject.lag(minutes)
    for ago in range(12, 0, -1):
        subject.publish(CPU, ago, ago)
    received = []
    for _ in range(minutes + 1):
        received += await samples(subject)
        subject.now += MINUTE
    assert received == [(ago - 1, ago) for ago in range(12, 0, -1)]


async def test_a_sum_is_taken_once_two_queries_agree(subject: Subject) -> None:
    subject.publish(DONE, 1, 7)
    assert await samples(subject, DONE) == []
    subject.publish(DONE, 1, 10)
    subject.now += MINUTE
    assert await samples(subject, DONE) == []
    subject.now += MINUTE
    assert await samples(subject, DONE) == [(0, 10)]


async def test_after_a_restart_the_last_minutes_are_returned_again(subject: Subject) -> None:
    for ago in (8, 7, 1):
        subject.publish(CPU, ago, ago)
        subject.publish(DONE, ago, ago)
    await samples(subject)
    await subject.restart()
    assert await samples(subject) == [(7, 8), (6, 7), (0, 1)]
    assert await samples(subject, DONE) == [(7, 8), (6, 7)]  # the newest sum may still grow


async def test_a_source_is_asked_once_a_minute(subject: Subject) -> None:
    subject.publish(CPU, 1, 50)
    assert CPU in await subject.metrics.read([CPU, CPU])
    subject.now += timedelta(seconds=30)
    assert await subject.metrics.read([CPU]) == {}
    subject.now += timedelta(seconds=30)
    assert CPU in await subject.metrics.read([CPU])


async def test_the_failure_of_one_source_does_not_affect_others(subject: Subject) -> None:
    subject.publish(CPU, 1, 50)
    unknown = AzureMonitorMetric(PLAN.replace("plan-1", "plan-9"), "CpuPercentage")
    readings = await subject.metrics.read([unknown, CPU])
    assert isinstance(readings[unknown], ReadFailed)
    assert readings[CPU] == (MetricValue(NOW, 50),)


# --- what only Azure does ---------------------------------------------------------------------


def plans(azure: Azure, count: int) -> list[AzureMonitorMetric]:
    found = [
        AzureMonitorMetric(PLAN.replace("plan-1", f"plan-{n}"), "CpuPercentage")
        for n in range(count)
    ]
    for source in found:
        azure.arm.metrics.add(source.resource_id, "CpuPercentage")
        azure.publish(source, 1, 50)
    return found


def values(readings: Mapping[AzureMonitorMetric, object]) -> dict[str, object]:
    return {source.resource_id.rpartition("/")[2]: each for source, each in readings.items()}


@pytest.mark.parametrize("region", ["westeurope", "West Europe"])
async def test_resources_of_a_region_are_batched_by_fifty(azure: Azure, region: str) -> None:
    sources = plans(azure, 60)
    for resource in azure.arm.metrics.resources.values():
        resource.region = region
    azure.arm.metrics.subscription_readable = True
    first = await azure.metrics.read(sources)  # each alone: their regions are not known yet
    azure.arm.requests.clear()
    azure.now += MINUTE
    for source in sources:
        azure.publish(source, 0, 60)
    second = await azure.metrics.read(sources)
    assert [request.method for request in azure.arm.requests] == ["POST", "POST"]
    assert all(each == (MetricValue(NOW, 50),) for each in first.values())
    assert second == dict.fromkeys(sources, (MetricValue(NOW + MINUTE, 60),))
    assert len(sources) > RESOURCES_MAX


async def test_without_the_right_to_batch_each_is_asked_alone_and_one_line_says_so(
    azure: Azure, caplog: pytest.LogCaptureFixture
) -> None:
    sources = plans(azure, 3)
    with caplog.at_level(logging.WARNING, "shared"):
        for minute in range(4):
            readings = await azure.metrics.read(sources)
            newest = MetricValue(azure.now, 50)
            assert readings == dict.fromkeys(sources, (newest,)), f"minute {minute}"
            for source in sources:
                azure.publish(source, -minute, 50)
            azure.now += MINUTE
    assert [request.method for request in azure.arm.requests] == ["GET"] * 3 + ["POST"] + [
        "GET"
    ] * 9
    (line,) = caplog.messages
    assert "assign the app the role Monitoring Reader on the subscription" in line
    azure.now += timedelta(hours=1)
    azure.arm.metrics.subscription_readable = True
    azure.arm.requests.clear()
    await azure.metrics.read(sources)
    assert [request.method for request in azure.arm.requests] == ["POST"]


async def test_a_throttled_namespace_waits_as_long_as_it_says_and_no_other_one_waits(
    azure: Azure,
) -> None:
    azure.publish(CPU, 1, 50)
    azure.publish(DONE, 9, 5)
    bus = azure.arm.metrics.resources[BUS.lower()]
    bus.throttled_seconds = 150
    first = await azure.metrics.read([CPU, DONE])
    assert first[CPU] == (MetricValue(NOW, 50),)
    assert "429" in str(first[DONE])
    bus.throttled_seconds = None
    azure.arm.requests.clear()
    for _ in range(2):
        azure.now += MINUTE
        again = await azure.metrics.read([CPU, DONE])
        assert isinstance(again[CPU], tuple)
        assert f"throttles {BUS.lower()}: the next query is at 2026-03-01T12:02:30" in str(
            again[DONE]
        )
    assert all("serverfarms" in request.path for request in azure.arm.requests)
    azure.now += MINUTE
    assert (await azure.metrics.read([DONE]))[DONE] == (MetricValue(NOW - 8 * MINUTE, 5),)


async def test_a_success_ends_the_doubling_of_waits(azure: Azure) -> None:
    plan = azure.arm.metrics.resources[PLAN.lower()]
    waits = []
    for throttled in (0, None, 0):
        plan.throttled_seconds = throttled
        await azure.metrics.read([CPU])
        azure.now += MINUTE
        plan.throttled_seconds = None
        waits.append((await azure.metrics.read([CPU]))[CPU])
        azure.now += MINUTE
    assert waits == [(), (), ()]  # each wait was a minute, so that every second query succeeded


async def test_a_throttled_batch_is_not_replaced_by_single_requests(azure: Azure) -> None:
    sources = plans(azure, 2)
    azure.arm.metrics.subscription_readable = True
    await azure.metrics.read(sources)
    azure.arm.metrics.batch_throttled_seconds = 90
    azure.arm.requests.clear()
    for _ in range(3):
        azure.now += MINUTE
        answers = await azure.metrics.read(sources)
    assert [request.method for request in azure.arm.requests] == ["POST", "POST"]
    assert all("529" in str(each) for each in answers.values())


async def test_a_metric_that_does_not_exist_does_not_affect_others_of_its_resource(
    azure: Azure,
) -> None:
    wrong = AzureMonitorMetric(PLAN, "CpuPercent")
    custom = AzureMonitorMetric(PLAN, "CpuPercentage", namespace="azure.applicationinsights")
    azure.publish(CPU, 1, 50)
    answers = await azure.metrics.read([CPU, wrong, custom])
    asked = {each.query.get("metricnamespace") for each in azure.arm.requests}
    assert asked == {None, "azure.applicationinsights"}
    assert answers[CPU] == (MetricValue(NOW, 50),)
    assert "Failed to find metric configuration for metric: CpuPercent" in str(answers[wrong])


async def test_a_filter_of_any_characters_is_sent_whole_alone_and_in_a_batch(azure: Azure) -> None:
    path = "a&b+c=100%25#d"
    buses = [BUS, BUS.replace("bus-1", "bus-2")]
    azure.arm.metrics.add(buses[1], "CompleteMessage")
    azure.arm.metrics.subscription_readable = True
    sources = [
        AzureMonitorMetric(bus, "CompleteMessage", filter=f"EntityName eq '{path}'")
        for bus in buses
    ]
    for method in ("GET", "POST"):
        for bus in buses:
            azure.arm.metrics.record(bus, "CompleteMessage", azure.now - MINUTE, 7, path)
        answers = await azure.metrics.read(sources)
        assert [each[0].value for each in answers.values() if isinstance(each, tuple)] == [7, 7]
        assert azure.arm.requests[-1].method == method
        azure.now += MINUTE


async def test_metrics_of_one_resource_share_a_request_and_the_error_of_one_spares_the_others(
    azure: Azure, monkeypatch: pytest.MonkeyPatch
) -> None:
    incoming = AzureMonitorMetric(BUS, "IncomingMessages", "total", filter=DONE.filter)
    azure.publish(DONE, 9, 5)
    azure.publish(incoming, 9, 6)
    shared = await azure.metrics.read([DONE, incoming])
    assert len(azure.arm.requests) == 1
    assert [each[0].value for each in shared.values() if isinstance(each, tuple)] == [5, 6]
    await azure.restart()
    described = type(azure.arm.metrics)._metric

    def failing(self: object, resource: Any, name: str, *more: Any) -> dict[str, Any]:
        failed = {"errorCode": "Timeout", "errorMessage": "try later"}
        failed = failed if name == "IncomingMessages" else {}
        return {**described(self, resource, name, *more), **failed}  # type: ignore[arg-type]

    monkeypatch.setattr(type(azure.arm.metrics), "_metric", failing)
    answers = await azure.metrics.read([DONE, incoming])
    assert answers[DONE] == (MetricValue(NOW - 8 * MINUTE, 5),)
    assert str(answers[incoming]) == "IncomingMessages: Timeout: 'try later'"


async def test_a_missing_role_is_named_once_and_asked_for_again_after_an_hour(azure: Azure) -> None:
    azure.arm.metrics.resources[PLAN.lower()].readable = False
    assert "Monitoring Reader" in str((await azure.metrics.read([CPU]))[CPU])
    azure.now += timedelta(minutes=59)
    assert await azure.metrics.read([CPU]) == {}
    azure.now += MINUTE
    azure.arm.metrics.resources[PLAN.lower()].readable = True
    assert (await azure.metrics.read([CPU]))[CPU] == ()


@pytest.mark.parametrize(
    ("arm_endpoint", "address"),
    [
        (
            "https://management.azure.com",
            ("https://westeurope.metrics.monitor.azure.com", "https://metrics.monitor.azure.com"),
        ),
        (
            "https://management.chinacloudapi.cn/",
            ("https://westeurope.metrics.monitor.azure.cn", "https://metrics.monitor.azure.cn"),
        ),
        ("https://management.private.example", None),
    ],
)
def test_the_batch_interface_of_each_cloud_has_its_own_address(
    arm_endpoint: str, address: tuple[str, str] | None
) -> None:
    assert batch_address(arm_endpoint, "westeurope") == address


async def test_a_service_that_hangs_fails_its_sources_only(azure: Azure) -> None:
    await azure.metrics.close()
    azure.metrics = AzurePlatformMetrics(azure.arm.base_url, 0.05, lambda: azure.now)
    azure.arm.delay_seconds = 5
    async with asyncio.timeout(3):
        answers = await azure.metrics.read([CPU])
    assert "no answer within 0.05 s" in str(answers[CPU])
