"""The contract of reading a hub directly, tested on the in-memory adapter and the real client.

The broker of the client is the stand-in or Microsoft's emulator.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubProducerClient

from local.amqp_broker import VirtualClock
from shared.adapters.event_hubs.hub import EventHubReader
from shared.adapters.event_hubs.receiver import EventHubReceiver
from shared.adapters.memory.ingestion import MemoryHubReader
from shared.ingestion.errors import HubMissing, HubUnavailable, NotFound
from shared.ingestion.events.ports import ReadBack
from shared.ingestion.events.survey import Span
from shared.ingestion.model import Event, HubState, Stream
from shared.ingestion.operating.breaker import Hub
from shared.settings.connections import EventHubConnection, event_hub_connection
from tests.emulators import rig as emulators
from tests.emulators.rig import HUB, a_partition, an_empty_hub
from tests.local.polling import until

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=20)
READ_MAX = 4
OLD, NEW = 3, 6
"""Retention has removed events 0 to 2, where the clock can be moved. Events 3 to 8 remain."""


@dataclass
class HubRig:
    """`first` is the sequence number of the first of the NEW events of `stream`."""

    hub: Hub
    stream: Stream
    first: int
    stand_in: bool
    forget_all: Callable[[], Awaitable[None]]


def memory_rig() -> HubRig:
    hub, stream = MemoryHubReader(READ_MAX, ("0", "1")), Stream("ns", HUB, "$Default", "0")
    hub.created_at = NOON
    properties = {"source": "test"}
    events = [
        Event(n, str(n), LATER, f"event {n - OLD}".encode(), None, properties)
        for n in range(OLD + NEW)
    ]
    hub.add(stream, *events)
    hub.forget(stream, OLD)

    async def forget_all() -> None:
        hub.forget(stream, 100)

    return HubRig(hub, stream, OLD, True, forget_all)


@asynccontextmanager
async def azure_rig() -> AsyncIterator[HubRig]:
    clock = VirtualClock(NOON)

    async def forget_all() -> None:
        place.inside()
        clock.advance(timedelta(hours=24))

    async with a_partition(clock) as place:
        is_stand_in = place.stand_in is not None
        if is_stand_in:
            await send(place, OLD)
            clock.advance(timedelta(hours=20))
        await send(place, NEW)
        clock.advance(timedelta(hours=20))
        connection = place.connection
        stream = Stream(connection.namespace, HUB, "$Default", place.partition)
        first = OLD if is_stand_in else place.first
        hub = EventHubReader(connection, "readback", 20, READ_MAX)
        yield HubRig(hub, stream, first, is_stand_in, forget_all)


async def send(place: emulators.Hub, count: int) -> None:
    """Events with a property, in one batch."""
    producer = EventHubProducerClient.from_connection_string(
        place.connection.connection_string, eventhub_name=place.connection.hub
    )
    async with producer:
        batch = await producer.create_batch(partition_id=place.partition)
        for number in range(count):
            event = EventData(f"event {number}")
            event.properties = {"source": "test"}
            batch.add(event)
        await producer.send_batch(batch)


@pytest.fixture(params=["memory", "azure-eventhub"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[HubRig]:
    if request.param == "memory":
        yield memory_rig()
        return
    async with azure_rig() as rig:
        yield rig


def numbers(read: ReadBack) -> list[int]:
    return [event.sequence for event in read.events]


async def test_a_span_is_read_back_in_parts(rig: HubRig) -> None:
    first, last = rig.first, rig.first + NEW - 1
    assert rig.stream.partition_id in await rig.hub.partition_ids()
    assert (await rig.hub.state(rig.stream)).last_enqueued == last
    read = await rig.hub.read_back(rig.stream, Span(first, first + 2))
    assert (numbers(read), read.complete_to) == ([first, first + 1, first + 2], first + 2)
    event = read.events[0]
    assert (event.body, event.properties) == (b"event 0", {"source": "test"})
    assert event.partition_key is None
    assert int(event.offset) >= 0
    long = await rig.hub.read_back(rig.stream, Span(first, last))
    assert numbers(long) == list(range(first, long.complete_to + 1))
    assert long.complete_to < last, "a long span is read in parts"
    rest = await rig.hub.read_back(rig.stream, Span(long.complete_to + 1, last))
    assert numbers(rest) == list(range(long.complete_to + 1, last + 1))
    after = event.enqueued_at + timedelta(hours=1)
    assert await rig.hub.sequence_at(rig.stream, after) == last + 1


async def test_events_that_retention_removed_are_not_read_back(rig: HubRig) -> None:
    if not rig.stand_in:
        emulators.skip(emulators.Limit.INSIDE)
    empty = replace(rig.stream, partition_id="1")
    assert await rig.hub.state(empty) == HubState(NOON, -1)
    read = await rig.hub.read_back(rig.stream, Span(1, 5))
    assert (numbers(read), read.complete_to, read.oldest) == ([3, 4, 5], 5, OLD)
    assert read.events[0].enqueued_at == LATER
    assert await rig.hub.sequence_at(rig.stream, NOON) == OLD
    assert (await rig.hub.state(rig.stream)).newest_at == LATER
    await rig.forget_all()
    assert (await rig.hub.state(rig.stream)).newest_at is None
    assert await rig.hub.read_back(rig.stream, Span(3, 8)) == ReadBack((), 8)
    assert await rig.hub.sequence_at(rig.stream, NOON) == OLD + NEW


async def test_a_consumer_group_that_does_not_exist_is_reported_by_name(rig: HubRig) -> None:
    await rig.hub.check_group("$Default", rig.stream.partition_id)
    with pytest.raises(NotFound, match=r"consumer group '?mistyped"):
        await rig.hub.check_group("mistyped", rig.stream.partition_id)


async def test_a_consumer_group_whose_partition_has_a_reader_exists_and_the_reader_stays() -> None:
    """The trigger reads with an epoch, and the hub then refuses a reader without one."""
    batches = list[Sequence[Event]]()

    async def deliver(events: Sequence[Event]) -> None:
        batches.append(events)

    async with a_partition() as place:
        connection = place.connection
        receiver = EventHubReceiver(connection, "$Default", wait_seconds=0.2)
        receive = receiver.receive(place.partition, place.after, 1, deliver)
        receiving = asyncio.create_task(receive)
        await until(lambda: bool(batches), 20)
        await EventHubReader(connection, "$Default").check_group("$Default", place.partition)
        seen = len(batches)
        await until(lambda: len(batches) > seen, 20)
        receiving.cancel()
        await asyncio.wait([receiving])


async def test_a_hub_that_was_deleted_is_told_from_one_that_does_not_answer() -> None:
    async with an_empty_hub() as place:
        gone = replace(place.connection, hub="deleted")
        with pytest.raises(HubMissing, match="deleted/partitions"):
            await EventHubReader(gone, "readback").partition_ids()
        with pytest.raises(HubMissing, match="deleted/0"):
            await EventHubReader(gone, "readback").state(Stream("ns", "deleted", "$Default", "0"))


async def test_an_unreachable_hub_raises_hub_unavailable() -> None:
    string = "Endpoint=sb://127.0.0.1:9;SharedAccessKeyName=n;SharedAccessKey=a2V5"
    environ = {"Hub": f"{string};UseDevelopmentEmulator=true"}
    connection = event_hub_connection(environ, "Hub", "telemetry")
    assert isinstance(connection, EventHubConnection)
    with pytest.raises(HubUnavailable, match="telemetry/0, consumer group readback: "):
        await EventHubReader(connection, "readback", 1).state(Stream("ns", HUB, "$Default", "0"))
