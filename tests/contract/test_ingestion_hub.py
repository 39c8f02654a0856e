"""The contract of reading a hub directly, tested on the in-memory adapter and the real client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubProducerClient

from local.amqp_broker import AmqpStandIn, VirtualClock
from local.amqp_broker.model.properties import HubProperties
from shared.adapters.event_hubs.hub import EventHubReader
from shared.adapters.event_hubs.receiver import EventHubReceiver
from shared.adapters.memory.ingestion import MemoryHubReader
from shared.ingestion.errors import HubUnavailable, NotFound
from shared.ingestion.events.ports import ReadBack
from shared.ingestion.events.survey import Span
from shared.ingestion.model import Event, HubState, Stream
from shared.ingestion.operating.breaker import Hub
from shared.settings.connections import EventHubConnection, event_hub_connection
from tests.local.polling import until

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

STREAM = Stream("ns", "telemetry", "$Default", "0")
EMPTY = Stream("ns", "telemetry", "$Default", "1")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
READ_MAX = 4
OLD, NEW = 3, 6
"""Retention has removed events 0 to 2. Events 3 to 8 remain."""


@dataclass
class HubRig:
    hub: Hub
    forget_all: Callable[[], Awaitable[None]]


def a_connection(stand_in: AmqpStandIn) -> EventHubConnection:
    environ = {"Hub": stand_in.connection_string}
    connection = event_hub_connection(environ, "Hub", "telemetry")
    assert isinstance(connection, EventHubConnection)
    return connection


async def filled(stand_in: AmqpStandIn, clock: VirtualClock) -> None:
    properties = HubProperties(partition_count=2, consumer_groups=("$Default", "readback"))
    stand_in.broker.declare_hub("telemetry", properties)
    producer = EventHubProducerClient.from_connection_string(
        stand_in.connection_string, eventhub_name="telemetry"
    )
    async with producer:
        for count in (OLD, NEW):
            batch = await producer.create_batch(partition_id="0")
            for number in range(count):
                event = EventData(f"event {number}")
                event.properties = {"source": "test"}
                batch.add(event)
            await producer.send_batch(batch)
            clock.advance(timedelta(hours=20))


def memory_rig() -> HubRig:
    hub = MemoryHubReader(READ_MAX, ("0", "1"))
    hub.created_at = NOON
    later, properties = NOON + timedelta(hours=20), {"source": "test"}
    events = [
        Event(n, str(n), later, f"event {n - OLD}".encode(), None, properties)
        for n in range(OLD + NEW)
    ]
    hub.add(STREAM, *events)
    hub.forget(STREAM, OLD)

    async def forget_all() -> None:
        hub.forget(STREAM, 100)

    return HubRig(hub, forget_all)


@pytest.fixture(params=["memory", "azure-eventhub"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[HubRig]:
    if request.param == "memory":
        yield memory_rig()
        return
    clock = VirtualClock(NOON)
    async with AmqpStandIn(clock=clock) as stand_in:
        await filled(stand_in, clock)

        async def forget_all() -> None:
            clock.advance(timedelta(hours=24))

        hub = EventHubReader(a_connection(stand_in), "readback", 20, READ_MAX)
        yield HubRig(hub, forget_all)


def numbers(read: ReadBack) -> list[int]:
    return [event.sequence for event in read.events]


async def test_a_span_is_read_back_without_events_that_retention_removed(rig: HubRig) -> None:
    assert await rig.hub.partition_ids() == ("0", "1")
    assert (await rig.hub.state(STREAM)).last_enqueued == OLD + NEW - 1
    assert await rig.hub.state(EMPTY) == HubState(NOON, -1)
    read = await rig.hub.read_back(STREAM, Span(1, 5))
    assert (numbers(read), read.complete_to) == ([3, 4, 5], 5)
    first = read.events[0]
    assert (first.body, first.properties) == (b"event 0", {"source": "test"})
    assert (first.enqueued_at, first.partition_key) == (NOON + timedelta(hours=20), None)
    assert int(first.offset) > 0
    long = await rig.hub.read_back(STREAM, Span(3, 8))
    assert numbers(long) == list(range(3, long.complete_to + 1))
    assert long.complete_to < 8, "a long span is read in parts"
    rest = await rig.hub.read_back(STREAM, Span(long.complete_to + 1, 8))
    assert numbers(rest) == list(range(long.complete_to + 1, 9))
    assert await rig.hub.sequence_at(STREAM, NOON) == OLD
    assert await rig.hub.sequence_at(STREAM, NOON + timedelta(hours=21)) == OLD + NEW
    await rig.forget_all()
    assert await rig.hub.read_back(STREAM, Span(3, 8)) == ReadBack((), 8)
    assert await rig.hub.sequence_at(STREAM, NOON) == OLD + NEW


async def test_a_consumer_group_that_does_not_exist_is_reported_by_name(rig: HubRig) -> None:
    await rig.hub.check_group("$Default", "0")
    with pytest.raises(NotFound, match=r"consumer group '?mistyped"):
        await rig.hub.check_group("mistyped", "0")


async def test_a_consumer_group_whose_partition_has_a_reader_exists_and_the_reader_stays() -> None:
    """The trigger reads with an epoch, and the hub then refuses a reader without one."""
    batches = list[Sequence[Event]]()

    async def deliver(events: Sequence[Event]) -> None:
        batches.append(events)

    async with AmqpStandIn() as stand_in:
        stand_in.broker.declare_hub("telemetry", HubProperties(partition_count=1))
        connection = a_connection(stand_in)
        receiver = EventHubReceiver(connection, "$Default", wait_seconds=0.2)
        receiving = asyncio.create_task(receiver.receive("0", None, 1, deliver))
        await until(lambda: bool(batches), 20)
        await EventHubReader(connection, "$Default").check_group("$Default", "0")
        seen = len(batches)
        await until(lambda: len(batches) > seen, 20)
        receiving.cancel()
        await asyncio.wait([receiving])


async def test_an_unreachable_hub_raises_hub_unavailable() -> None:
    string = "Endpoint=sb://127.0.0.1:9;SharedAccessKeyName=n;SharedAccessKey=a2V5"
    environ = {"Hub": f"{string};UseDevelopmentEmulator=true"}
    connection = event_hub_connection(environ, "Hub", "telemetry")
    assert isinstance(connection, EventHubConnection)
    with pytest.raises(HubUnavailable, match="telemetry/0, consumer group readback: "):
        await EventHubReader(connection, "readback", 1).state(STREAM)
