"""Receiving a partition with an owner level, by the real client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubProducerClient

from local.amqp_broker import AmqpStandIn
from local.amqp_broker.model.properties import HubProperties
from shared.adapters.event_hubs.receiver import EventHubReceiver
from shared.ingestion.errors import HubUnavailable
from shared.ingestion.model import Event
from shared.settings.connections import EventHubConnection, event_hub_connection
from tests.local.polling import until

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

EVENTS = 700
SECONDS_MAX = 20.0


@pytest.fixture
async def hub() -> AsyncIterator[EventHubConnection]:
    """A hub with EVENTS events in partition 0."""
    async with AmqpStandIn() as stand_in:
        stand_in.broker.declare_hub("telemetry", HubProperties(partition_count=1))
        connection = event_hub_connection({"Hub": stand_in.connection_string}, "Hub", "telemetry")
        assert isinstance(connection, EventHubConnection)
        producer = EventHubProducerClient.from_connection_string(
            connection.connection_string, eventhub_name=connection.hub
        )
        async with producer:
            batch = await producer.create_batch(partition_id="0")
            for number in range(EVENTS):
                batch.add(EventData(f"event {number}"))
            await producer.send_batch(batch)
        yield connection


class Reading:
    """One receiver, the events that it received, and the task that it runs in."""

    def __init__(self, hub: EventHubConnection, after: int | None, epoch: int) -> None:
        self.batches: list[Sequence[Event]] = []
        receiver = EventHubReceiver(hub, "$Default", batch_max=200, wait_seconds=0.2)
        self.task = asyncio.create_task(receiver.receive("0", after, epoch, self.deliver))

    async def deliver(self, events: Sequence[Event]) -> None:
        self.batches.append(events)

    @property
    def sequences(self) -> list[int]:
        return [event.sequence for batch in self.batches for event in batch]

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


async def test_events_are_delivered_in_order_and_then_empty_batches_follow(
    hub: EventHubConnection,
) -> None:
    whole = Reading(hub, None, 1)
    await until(lambda: len(whole.sequences) == EVENTS and whole.batches[-1] == [], SECONDS_MAX)
    await whole.stop()
    assert whole.sequences == list(range(EVENTS))
    assert max(len(batch) for batch in whole.batches) <= 200
    first = next(batch for batch in whole.batches if batch)
    assert first[0].body == b"event 0"
    rest = Reading(hub, EVENTS - 10, 1)
    await until(lambda: len(rest.sequences) == 9, SECONDS_MAX)
    await rest.stop()
    assert rest.sequences == list(range(EVENTS - 9, EVENTS))


async def test_a_receiver_with_a_higher_epoch_ends_and_locks_out_the_lower_one(
    hub: EventHubConnection,
) -> None:
    old = Reading(hub, None, 1)
    await until(lambda: bool(old.batches), SECONDS_MAX)
    new = Reading(hub, None, 2)
    with pytest.raises(HubUnavailable, match="higher epoch"):
        await asyncio.wait_for(old.task, SECONDS_MAX)
    await until(lambda: len(new.sequences) == EVENTS, SECONDS_MAX)
    late = Reading(hub, None, 1)
    with pytest.raises(HubUnavailable, match="epoch 2 already exists"):
        await asyncio.wait_for(late.task, SECONDS_MAX)
    await new.stop()


async def test_an_error_of_the_handler_ends_the_receiver(hub: EventHubConnection) -> None:
    async def fail(events: Sequence[Event]) -> None:
        raise ValueError(f"{events[0].sequence}")

    receiver = EventHubReceiver(hub, "$Default")
    with pytest.raises(ValueError, match=r"^0$"):
        await asyncio.wait_for(receiver.receive("0", None, 1, fail), SECONDS_MAX)


async def test_a_hub_that_does_not_exist_raises_hub_unavailable(hub: EventHubConnection) -> None:
    gone = EventHubConnection("Hub", "nowhere", hub.namespace, hub.connection_string)
    receiver = EventHubReceiver(gone, "$Default")

    async def deliver(events: Sequence[Event]) -> None:
        raise AssertionError(events)

    with pytest.raises(HubUnavailable):
        await asyncio.wait_for(receiver.receive("0", None, 1, deliver), SECONDS_MAX)
