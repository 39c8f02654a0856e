"""round_trips: the requests that one invocation of scaling_logic sends to storage."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from statistics import median

from bench.measurement import Measurement
from bench.request_counter import RequestCounter, request_counter
from local.azurite import Azurite
from shared.autoscaling import AppServicePlan, Resource, ServiceBusSubscription, Threshold
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.messages import Samples
from shared.autoscaling.store.tables import TableStateStore
from shared.settings.connections import StorageConnection
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue

MINIMUM = {"capacity_sample": 2, "hold": 2, "duplicate": 1, "scale": 2}
"""One read and one transaction. A duplicate has nothing to write."""


def measure(repeats: int = 5) -> Iterator[Measurement]:
    """Requests of an invocation, compared with the fewest that it needs."""
    lives = asyncio.run(_lives(repeats))
    for case, minimum in MINIMUM.items():
        counts = [life[case] for life in lives]
        requests = median(count.total() for count in counts)
        aim = " + ".join(["1 read", "1 transaction"][:minimum])
        note = "seen: " + ", ".join(f"{number} {kind}" for kind, number in counts[0].items())
        yield Measurement(f"round_trips.{case}", requests, "requests", minimum, aim, note)


async def _lives(repeats: int) -> list[Mapping[str, Counter[str]]]:
    async with _counted_store() as (counter, store):
        await store.load("nobody")  # The first call creates the table.
        return [await _life(f"plan-{number}", counter, store) for number in range(repeats)]


async def _life(
    name: str, counter: RequestCounter, store: TableStateStore
) -> Mapping[str, Counter[str]]:
    """The requests of each case, in order, for one resource."""
    resources = {name: _resource(name)}
    start = (await store.load(name)).read_at - timedelta(minutes=1)
    counts = {}
    for case, metric in _cases(name, start).items():
        with counter.counting() as requests:
            action = await scaling_logic.process_samples(
                Samples(metric.resource_name, (metric,)), resources, store
            )
        assert (action is not None) == (case == "scale"), f"{case} led to {action}"
        counts[case] = requests
    return counts


def _cases(name: str, start: datetime) -> Mapping[str, Metric]:
    hold = Metric(name, "backlog", MetricValue(start + timedelta(seconds=1), 50))
    return {
        "capacity_sample": Metric(name, CAPACITY_METRIC, MetricValue(start, 2)),
        "hold": hold,
        "duplicate": hold,
        "scale": Metric(name, "backlog", MetricValue(start + timedelta(seconds=2), 5000)),
    }


def _resource(name: str) -> Resource:
    return Resource(
        name=name,
        target=AppServicePlan("00000000-0000-0000-0000-000000000001", "bench", name),
        metrics={"backlog": ServiceBusSubscription("orders", "billing")},
        policy=Threshold("backlog", upper=100, lower=10, minimum_samples=1),
    )


@asynccontextmanager
async def _counted_store() -> AsyncIterator[tuple[RequestCounter, TableStateStore]]:
    with Azurite() as azurite:
        async with request_counter(azurite.connection_string) as (counter, counted):
            store = TableStateStore(StorageConnection("Storage", counted))
            try:
                yield counter, store
            finally:
                await store.close()
