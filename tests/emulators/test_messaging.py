"""The app's adapters of Service Bus, against Microsoft's emulator or the stand-in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from shared.adapters.memory.autoscaling import MemoryCapacityControl
from shared.adapters.memory.ingestion import MemoryBreakerStore
from shared.adapters.readers import AzureReader
from shared.autoscaling.declaring import MetricSource, ServiceBusQueue, ServiceBusSubscription
from shared.messaging.batch_sender import BatchSender
from shared.messaging.model import Message, Order
from shared.settings.connections import ServiceBusConnection
from shared.wiring.batch_sender import batch_sender
from tests.emulators.rig import DAILY, JOBS, SUBSCRIPTION, TOPIC, Bus, new_id, running_bus
from tests.local.amqp_rig import LEAVES_SOCKETS_OPEN

pytestmark = LEAVES_SOCKETS_OPEN
WAIT_SECONDS = 10
QUIET_SECONDS = 1
MANY = 1_000


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
async def bus() -> AsyncIterator[Bus]:
    async with running_bus() as running:
        yield running


async def send(sender: BatchSender, *messages: Message) -> int:
    """Send in order, and return the number of batches."""
    try:
        result = await sender.send(messages, Order.KEPT)
    finally:
        await sender.link.close()
    assert (result.sent, result.refused) == (len(messages), ())
    return result.batches


async def drained(receiver: ServiceBusReceiver, mark: str) -> list[str]:
    """Complete all messages and return the ids of those with this mark."""
    ids: list[str] = []
    async with receiver:
        while messages := await receiver.receive_messages(500, max_wait_time=QUIET_SECONDS):
            for message in messages:
                await receiver.complete_message(message)
                ids.append(message.message_id or "")
    return [each for each in ids if each.startswith(mark)]


async def received(connection: ServiceBusConnection, queue: str, mark: str) -> list[str]:
    client = ServiceBusClient.from_connection_string(connection.connection_string)
    async with client:
        return await drained(client.get_queue_receiver(queue), mark)


async def test_batches_filled_to_the_wire_size_are_accepted_and_arrive_in_order(bus: Bus) -> None:
    mark = new_id()
    messages = [Message(bytes(900), f"{mark}-{place}") for place in range(MANY)]
    assert await send(batch_sender(bus.connection, JOBS, now), *messages) > 1
    arrived = await received(bus.connection, JOBS, mark)
    assert arrived == [message.message_id for message in messages]


async def test_a_message_with_a_known_id_is_dropped_within_the_window(bus: Bus) -> None:
    mark = new_id()
    for _ in range(2):
        await send(batch_sender(bus.connection, DAILY, now), Message(b"day", f"{mark}-day"))
    assert await received(bus.connection, DAILY, mark) == [f"{mark}-day"]


async def test_a_scheduled_message_waits_for_its_time(bus: Bus) -> None:
    mark = new_id()
    due = now() + timedelta(seconds=WAIT_SECONDS)
    later = Message(b"later", f"{mark}-later", scheduled_at=due)
    await send(batch_sender(bus.connection, JOBS, now), later, Message(b"now", f"{mark}-now"))
    assert await received(bus.connection, JOBS, mark) == [f"{mark}-now"]
    async with ServiceBusClient.from_connection_string(bus.connection.connection_string) as client:
        receiver = client.get_queue_receiver(JOBS)
        async with receiver:
            (message,) = await receiver.receive_messages(1, max_wait_time=3 * WAIT_SECONDS)
            assert message.message_id == f"{mark}-later"
            await receiver.complete_message(message)


@pytest.mark.parametrize(
    ("source", "path", "topic"),
    [
        (ServiceBusQueue(JOBS), JOBS, False),
        (ServiceBusSubscription(TOPIC, SUBSCRIPTION), TOPIC, True),
    ],
    ids=["queue", "subscription"],
)
async def test_the_backlog_of_a_source_is_counted(
    bus: Bus, source: MetricSource, path: str, topic: bool
) -> None:
    sources = AzureReader(
        lambda _name: pytest.fail("no storage is read"),
        lambda _name: bus.administration,
        MemoryCapacityControl(now, {}),
        lambda: MemoryBreakerStore(now),
    )
    try:
        before = (await sources.read(source)).value
        sender = batch_sender(bus.connection, path, now, topic=topic)
        await send(sender, *[Message(b"work", f"{new_id()}") for _ in range(3)])
        assert (await sources.read(source)).value == before + 3
    finally:
        await sources.close()
