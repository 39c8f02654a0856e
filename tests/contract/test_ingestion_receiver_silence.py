"""A receiver with the real client reports a refused or broken connection within a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient

from local.amqp_broker import AmqpStandIn
from local.amqp_broker.model.properties import HubProperties
from shared.adapters.event_hubs.hub import IDLE_SECONDS_MAX, EventHubReader, client_of, send_event
from shared.adapters.event_hubs.receiver import EventHubReceiver
from shared.ingestion.errors import HubSilent, HubUnavailable
from shared.ingestion.model import Event
from shared.settings.connections import EventHubConnection, event_hub_connection
from tests.local.amqp_rig import LEAVES_SOCKETS_OPEN, forget_open_sockets
from tests.local.half_open_hub import HalfOpenProxy
from tests.local.polling import until

pytestmark = LEAVES_SOCKETS_OPEN
HUB, SECONDS_MAX = "telemetry", 30.0
IDLE_SECONDS = 1.0


@pytest.fixture
async def stand_in() -> AsyncIterator[AmqpStandIn]:
    async with AmqpStandIn() as stand_in:
        stand_in.broker.declare_hub(HUB, HubProperties(partition_count=1))
        yield stand_in
    forget_open_sockets()


def connection(string: str) -> EventHubConnection:
    hub = event_hub_connection({"Hub": string}, "Hub", HUB)
    assert isinstance(hub, EventHubConnection)
    return hub


async def send(stand_in: AmqpStandIn, count: int) -> None:
    producer = EventHubProducerClient.from_connection_string(
        stand_in.connection_string, eventhub_name=HUB
    )
    async with producer:
        batch = await producer.create_batch(partition_id="0")
        for number in range(count):
            batch.add(EventData(f"event {number}"))
        await producer.send_batch(batch)


async def nothing(events: Sequence[Event]) -> None:
    assert not events


async def test_a_consumer_group_that_does_not_exist_is_reported_with_its_name(
    stand_in: AmqpStandIn,
) -> None:
    hub = connection(stand_in.connection_string)
    receiver = EventHubReceiver(hub, "mistyped", wait_seconds=0.2, silent_seconds_max=2)
    with pytest.raises(HubSilent, match="consumer group 'mistyped' of hub 'telemetry'"):
        await asyncio.wait_for(receiver.receive("0", None, 1, nothing), SECONDS_MAX)


async def test_a_connection_that_drops_all_packets_is_reported(stand_in: AmqpStandIn) -> None:
    batches = list[Sequence[Event]]()

    async def deliver(events: Sequence[Event]) -> None:
        batches.append(events)

    async with HalfOpenProxy(stand_in.port) as proxy:
        hub = connection(proxy.through(stand_in.connection_string))
        receiver = EventHubReceiver(hub, "$Default", wait_seconds=0.2, idle_seconds=IDLE_SECONDS)
        receiving = asyncio.create_task(receiver.receive("0", None, 1, deliver))
        await send(stand_in, 3)
        await until(lambda: sum(map(len, batches)) == 3, SECONDS_MAX)
        proxy.swallow()
        with pytest.raises(HubUnavailable):
            await asyncio.wait_for(receiving, SECONDS_MAX)


async def test_requests_over_a_connection_that_drops_all_packets_time_out(
    stand_in: AmqpStandIn,
) -> None:
    async with HalfOpenProxy(stand_in.port) as proxy:
        hub = connection(proxy.through(stand_in.connection_string))
        proxy.swallow()
        partition_ids = EventHubReader(hub, "$Default", timeout_seconds=1).partition_ids()
        with pytest.raises(HubUnavailable, match="no answer within 1 s"):
            await asyncio.wait_for(partition_ids, SECONDS_MAX)
        with pytest.raises(HubUnavailable, match="no answer within 1 s"):
            await asyncio.wait_for(send_event(hub, b"lost", seconds_max=1), SECONDS_MAX)


async def test_a_connection_that_is_silent_from_the_start_is_reported(
    stand_in: AmqpStandIn,
) -> None:
    async with HalfOpenProxy(stand_in.port) as proxy:
        hub = connection(proxy.through(stand_in.connection_string))
        proxy.swallow()
        receiver = EventHubReceiver(hub, "$Default", wait_seconds=0.2, silent_seconds_max=2)
        with pytest.raises(HubUnavailable):
            await asyncio.wait_for(receiver.receive("0", None, 1, nothing), SECONDS_MAX)


async def test_a_connection_without_events_stays_open(stand_in: AmqpStandIn) -> None:
    """The client requests heartbeats, so that it does not mistake a lack of events for a broken
    connection."""
    batches = list[Sequence[Event]]()

    async def deliver(events: Sequence[Event]) -> None:
        batches.append(events)

    hub = connection(stand_in.connection_string)
    receiver = EventHubReceiver(hub, "$Default", wait_seconds=0.2, idle_seconds=IDLE_SECONDS)
    receiving = asyncio.create_task(receiver.receive("0", None, 1, deliver))
    await until(lambda: len(batches) >= 4 * IDLE_SECONDS / 0.2, SECONDS_MAX)
    assert not receiving.done()
    receiving.cancel()
    await asyncio.wait([receiving])


async def test_a_batch_that_takes_longer_than_the_idle_time_is_finished_first(
    stand_in: AmqpStandIn,
) -> None:
    """The client reads nothing while its buffer is full, so it may mistake a slow handler for a
    broken connection."""
    begun, finished = list[int](), list[int]()

    async def deliver(events: Sequence[Event]) -> None:
        if events:
            begun.append(events[0].sequence)
            await asyncio.sleep(3 * IDLE_SECONDS)
            finished.append(events[0].sequence)

    await send(stand_in, 100)
    hub = connection(stand_in.connection_string)
    receiver = EventHubReceiver(
        hub, "$Default", batch_max=10, prefetch=10, idle_seconds=IDLE_SECONDS
    )
    receiving = asyncio.create_task(receiver.receive("0", None, 1, deliver))
    await until(lambda: len(finished) == 4 or receiving.done(), SECONDS_MAX)
    if not receiving.done():
        pytest.skip("this version of the client keeps reading while a handler is slow")
    with pytest.raises(HubUnavailable, match="idle"):
        await receiving
    assert finished == begun


@pytest.mark.parametrize("kind", [EventHubConsumerClient, EventHubProducerClient])
async def test_every_client_requests_heartbeats(stand_in: AmqpStandIn, kind: Any) -> None:
    group = {"consumer_group": "$Default"} if kind is EventHubConsumerClient else {}
    client = client_of(kind, connection(stand_in.connection_string), **group)
    try:
        assert client._idle_timeout == IDLE_SECONDS_MAX
    finally:
        await client.close()
