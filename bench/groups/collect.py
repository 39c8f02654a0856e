"""collect: how long metric_collector takes to read many sources that each answer in 50 ms."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial

from bench.measurement import Measurement
from bench.repeats import medians
from bench.service_bus_process import service_bus, sources
from local.twins.autoscaling import MemoryReader
from shared.autoscaling import AppServicePlan, Resource, Threshold
from shared.autoscaling.azure_monitor.source import PlatformMetrics
from shared.autoscaling.flows import metric_collector
from shared.autoscaling.plan_facts import PlanReading
from shared.autoscaling.services.clients import AzureReader
from shared.autoscaling.sources import Services, Source
from shared.settings.connections import ServiceBusConnection, StorageConnection
from shared.values.measurements import MetricValue

ANSWER_SECONDS = 0.05
FEW, MANY = 200, 1_000
TIMEOUT_SECONDS = 30.0


def measure(repeats: int = 3) -> Iterator[Measurement]:
    """Seconds for 200 sources, compared with 200 pauses, and the cost of a source at 1,000."""
    few, many, pauses = asyncio.run(_measured(repeats))
    yield Measurement(
        f"collect.{FEW}_sources",
        few,
        "s",
        pauses,
        "≤ 1",
        f"through the Service Bus SDK; baseline: {FEW} pauses of {ANSWER_SECONDS:g} s",
    )
    yield Measurement(
        f"collect.ms_per_source_of_{MANY}",
        many / MANY * 1_000,
        "ms/source",
        few / FEW * 1_000,
        "ratio ≤ 1.1",
        f"baseline: the same at {FEW} sources",
    )


async def no_breaker() -> MetricValue:
    raise NotImplementedError("no source in this benchmark reads a circuit breaker")


def no_platform() -> PlatformMetrics:
    raise NotImplementedError("no source in this benchmark reads Azure Monitor")


def utc_now() -> datetime:
    return datetime.now(UTC)


async def _measured(repeats: int) -> Sequence[float]:
    with service_bus(MANY, ANSWER_SECONDS) as connection_string:
        reader = AzureReader(
            partial(StorageConnection, connection_string=connection_string),
            partial(ServiceBusConnection, connection_string=connection_string),
            Pauses(),
            no_breaker,
            no_platform,
            utc_now,
        )
        runs = [
            partial(_seconds, FEW, reader),
            partial(_seconds, MANY, reader),
            partial(_seconds, FEW, PausingReader(utc_now, {}, Pauses())),
        ]
        for run in runs:
            await run()  # The first run connects, which an instance does only once.
        try:
            return await medians(runs, repeats=repeats)
        finally:
            await reader.close()


class PausingReader(MemoryReader):
    """Reads sources that only wait."""

    async def read(self, _source: Source) -> MetricValue:
        await asyncio.sleep(ANSWER_SECONDS)
        return MetricValue(utc_now(), 2)


class Pauses:
    """A plan's capacity that only waits."""

    async def read(self, _source: object, /) -> PlanReading:
        await asyncio.sleep(ANSWER_SECONDS)
        return PlanReading(utc_now(), 2)

    describe = read

    async def change(self, target: AppServicePlan, capacity: int, read: PlanReading) -> None:
        raise NotImplementedError

    async def close(self) -> None: ...


async def _seconds(source_count: int, reader: Services) -> float:
    started = time.perf_counter()
    collection = await metric_collector.collect([_resource(source_count)], reader, TIMEOUT_SECONDS)
    seconds = time.perf_counter() - started
    assert not collection.failures, collection.failures[0]
    return seconds


def _resource(source_count: int) -> Resource:
    metrics: dict[str, Source] = {
        f"backlog-{number}": source for number, source in enumerate(sources(source_count))
    }
    return Resource(
        name="workers",
        target=AppServicePlan("00000000-0000-0000-0000-000000000001", "bench", "workers"),
        metrics=metrics,
        policy=Threshold("backlog-0", upper=100, lower=10),
    )
