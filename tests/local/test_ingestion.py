"""From a producer to a decision with AMQP, the worker library, tables, queues and HTTP.

The test itself delivers the events to the trigger, so that it can skip some.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubProducerClient
from azure_functions_runtime.bindings.datumdef import Datum

from local.amqp_broker import AmqpStandIn
from local.amqp_broker.model.properties import HubProperties
from local.azurite import Azurite
from local.demo import profile
from local.demo.hosted_app import hosted_app
from local.demo.system import APP_DIR, shrunk_host_json
from local.functions_host.functions import EVENT_HUB_TRIGGER, Function
from local.functions_host.host import FunctionsHost
from local.functions_host.listeners import LISTENERS
from local.functions_host.services import Services
from local.functions_host.worker import Invocation, Outcome, json_datum
from shared.autoscaling import AzureMonitorMetric, HubMetric, Mode, Threshold
from shared.autoscaling.store.tables import TableStateStore
from shared.ingestion.events import tail
from shared.ingestion.hub.client import EventHubReader
from shared.ingestion.model import Event, Span, Stream
from shared.ingestion.store.events import EventStore
from shared.ingestion.store.tables import TableRows
from shared.settings.connections import EventHubConnection, StorageConnection, event_hub_connection
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from tests.builders import encode_metric, resource
from tests.settings.test_settings import SINGLE

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

HUB = "metrics"
WAIT_SECONDS = 40
ONCE_A_YEAR = "0 0 0 1 1 *"
BUS = (
    f"/subscriptions/{profile.PLAN.subscription}/resourceGroups/g"
    "/providers/Microsoft.ServiceBus/namespaces/bus"
)
RESOURCE = resource(
    metrics={
        "pushed": HubMetric(),
        "backlog": AzureMonitorMetric(BUS, "IncomingMessages", streamed=True),
    },
    policy=Threshold("pushed", 100, 10),
    mode=Mode.DRY_RUN,
)


class Delivery:
    """Replaces the trigger's listener: the test delivers the batches."""

    def __init__(self, services: Services, function: Function) -> None:
        self._services, self._function = services, function
        Delivery.latest = self

    latest: Delivery

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def hand_over(self, events: Sequence[Event]) -> Outcome:
        bodies = Datum(SimpleNamespace(bytes=[event.body for event in events]), "collection_bytes")
        system = [
            {
                "SequenceNumber": event.sequence,
                "Offset": event.offset,
                "EnqueuedTimeUtc": event.enqueued_at.isoformat(),
                "PartitionKey": event.partition_key,
            }
            for event in events
        ]
        values = {
            "PartitionContext": {"PartitionId": "0"},
            "SystemPropertiesArray": system,
            "PropertiesArray": [{}] * len(events),
        }
        metadata = {name: json_datum(json.dumps(value)) for name, value in values.items()}
        invocation = Invocation(self._function.trigger.name, bodies, metadata)
        return await self._services.invoker.invoke(self._function, invocation)


@dataclass
class World:
    host: FunctionsHost
    hub: AmqpStandIn
    connection: EventHubConnection
    store: EventStore
    state: TableStateStore
    stream: Stream

    async def produce(self, *bodies: bytes) -> None:
        producer = EventHubProducerClient.from_connection_string(
            self.hub.connection_string, eventhub_name=HUB
        )
        async with producer:
            batch = await producer.create_batch(partition_id="0")
            for body in bodies:
                batch.add(EventData(body))
            await producer.send_batch(batch)

    async def produced(self, last: int) -> list[Event]:
        reader = EventHubReader(self.connection, "$Default", WAIT_SECONDS)
        return list((await reader.read_back(self.stream, Span(0, last))).events)

    async def reached(self, sequence: int) -> bool:
        checkpoint = (await self.store.load(self.stream)).checkpoint
        return checkpoint is not None and checkpoint.sequence == sequence

    async def samples(self, name: str) -> list[float]:
        histories = (await self.state.load(RESOURCE.name)).state.histories
        return [sample.value for sample in histories[name].samples] if name in histories else []


@pytest.fixture
async def world(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr("scaling_rules.resources", lambda _settings: [RESOURCE])
    storage = StorageConnection("Storage", azurite.connection_string)
    store, state = EventStore(TableRows(storage)), TableStateStore(storage)
    async with AmqpStandIn() as hub:
        groups = ("$Default", "readback")
        hub.broker.declare_hub(HUB, HubProperties(partition_count=1, consumer_groups=groups))
        connection = event_hub_connection({"Hub": hub.connection_string}, "Hub", HUB)
        assert isinstance(connection, EventHubConnection)
        settings = {
            **SINGLE,
            "AzureWebJobsStorage": azurite.connection_string,
            "EventHubConnection": hub.connection_string,
            "BreakerApprovalKey": "k" * 32,
            "MetricCollectorSchedule": ONCE_A_YEAR,
            "ReconcilerSchedule": ONCE_A_YEAR,
            "LogRetentionSchedule": ONCE_A_YEAR,
            "IngestTailSchedule": ONCE_A_YEAR,
        }
        listeners = {**LISTENERS, EVENT_HUB_TRIGGER: Delivery}
        host = FunctionsHost(
            APP_DIR, settings=settings, config=shrunk_host_json(), listeners=listeners
        )
        async with hosted_app(host):
            stream = Stream(connection.namespace, HUB, "$Default", "0")
            yield World(host, hub, connection, store, state, stream)
    await store.close()
    await state.close()


def own(value: float, seconds_ago: float) -> bytes:
    at = datetime.now(UTC) - timedelta(seconds=seconds_ago)
    return encode_metric(Metric(RESOURCE.name, "pushed", MetricValue(at, value))).encode()


def of_azure_monitor(value: float) -> bytes:
    at = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=1)
    record = {
        "count": 1,
        "total": value,
        "average": value,
        "resourceId": BUS.upper(),
        "time": f"{at:%Y-%m-%dT%H:%M:%S}.0000000Z",
        "metricName": "IncomingMessages",
        "timeGrain": "PT1M",
    }
    return gzip.compress(json.dumps({"records": [record]}).encode())


async def until(met: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not await met():
        assert time.monotonic() < deadline, "not met in time"
        await asyncio.sleep(0.05)


async def test_events_lead_to_a_decision_despite_skips_repetitions_and_an_undelivered_tail(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "IDLE", timedelta(0))  # two runs detect the tail without a wait
    bodies = [own(500, 10 - n) for n in range(5)]
    await world.produce(*bodies[:4], b"nonsense", of_azure_monitor(7), bodies[4])
    events = await world.produced(6)
    capacity = Metric(RESOURCE.name, CAPACITY_METRIC, MetricValue(datetime.now(UTC), 2))
    assert (await world.host.invoke("scaling_logic", encode_metric(capacity))).succeeded

    first = await Delivery.latest.hand_over(events[:2])
    assert first.succeeded, first.error
    skipping = await Delivery.latest.hand_over(events[4:5])  # 2 and 3 are never delivered
    assert skipping.succeeded, skipping.error
    assert await world.reached(4)
    again = await Delivery.latest.hand_over(events[:5])
    assert again.succeeded, again.error
    for _ in range(2):  # 5 and 6 are not delivered either, and no later event reveals it
        assert (await world.host.invoke("ingest_tail")).succeeded
    assert await world.reached(6)

    async def decided() -> bool:
        lines = await world.state.log(RESOURCE.name)
        return any(line.desired == 3 for line in lines)

    await until(decided)
    assert await world.samples("pushed") == [500] * 5
    assert await world.samples("backlog") == [7]
    (letter,) = await world.store.dead_letters(world.stream, None, 10)
    assert (letter.letter.sequence, letter.letter.body) == (4, b"nonsense")
    assert await world.store.outbox(world.stream, 10) == []
