"""The app's adapters of Event Hubs, against Microsoft's emulator or the stand-in."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubProducerClient

from shared.adapters.event_hubs.hub import EventHubReader
from shared.adapters.event_hubs.receiver import EventHubReceiver
from shared.ingestion.errors import HubUnavailable
from shared.ingestion.events.survey import Span
from shared.ingestion.model import Event, Stream
from shared.settings.connections import EventHubConnection
from tests.emulators.rig import HUB, PARTITIONS, running_hub
from tests.local.amqp_rig import LEAVES_SOCKETS_OPEN
from tests.local.polling import until

pytestmark = LEAVES_SOCKETS_OPEN
EVENTS = 300
SECONDS_MAX = 60.0


@dataclass
class Filled:
    """A partition whose last events are those of the test, from sequence number `first`."""

    connection: EventHubConnection
    partition: str
    first: int

    @property
    def stream(self) -> Stream:
        return Stream(self.connection.namespace, HUB, "g1", self.partition)


@pytest.fixture
async def hub() -> AsyncIterator[Filled]:
    """Emulators keep earlier events, so a test begins after those of a random partition."""
    partition = str(random.randrange(PARTITIONS))
    async with running_hub() as connection:
        producer = EventHubProducerClient.from_connection_string(
            connection.connection_string, eventhub_name=HUB
        )
        async with producer:
            before = await producer.get_partition_properties(partition)
            batch = await producer.create_batch(partition_id=partition)
            for number in range(EVENTS):
                batch.add(EventData(f"event {number}"))
            await producer.send_batch(batch)
        last = -1 if before["is_empty"] else int(before["last_enqueued_sequence_number"])
        yield Filled(connection, partition, last + 1)


class Reading:
    """The batches that one receiver delivered, and its task."""

    def __init__(self, hub: Filled, epoch: int) -> None:
        self.events: list[Event] = []
        receiver = EventHubReceiver(hub.connection, "g1", batch_max=99, wait_seconds=0.5)
        after = hub.first - 1 if hub.first else None
        self.task = asyncio.create_task(receiver.receive(hub.partition, after, epoch, self.deliver))

    async def deliver(self, events: Sequence[Event]) -> None:
        assert len(events) <= 99
        self.events += events

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


async def test_events_arrive_once_and_in_order_with_their_sequence_numbers(hub: Filled) -> None:
    reading = Reading(hub, 1)
    await until(lambda: len(reading.events) >= EVENTS, SECONDS_MAX)
    await reading.stop()
    assert [event.sequence - hub.first for event in reading.events] == list(range(EVENTS))
    assert [event.body for event in reading.events] == [
        f"event {number}".encode() for number in range(EVENTS)
    ]


async def test_a_receiver_with_a_higher_epoch_takes_the_partition_over(hub: Filled) -> None:
    old = Reading(hub, 1)
    await until(lambda: bool(old.events), SECONDS_MAX)
    new = Reading(hub, 2)
    with pytest.raises(HubUnavailable):
        await asyncio.wait_for(old.task, SECONDS_MAX)
    await until(lambda: len(new.events) >= EVENTS, SECONDS_MAX)
    await new.stop()


async def test_skipped_events_are_read_back_and_the_end_of_a_partition_is_known(
    hub: Filled,
) -> None:
    reader = EventHubReader(hub.connection, "readback", SECONDS_MAX, EVENTS)
    assert len(await reader.partition_ids()) == PARTITIONS
    assert (await reader.state(hub.stream)).last_enqueued == hub.first + EVENTS - 1
    span = Span(hub.first + 10, hub.first + 19)
    read = await reader.read_back(hub.stream, span)
    assert [event.sequence - hub.first for event in read.events] == list(range(10, 20))
    assert read.complete_to == span.last
