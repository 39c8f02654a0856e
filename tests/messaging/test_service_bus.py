"""The sender over real AMQP: azure-servicebus and a broker on loopback, or Microsoft's emulator."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage
from proton import Message as ProtonMessage

from local.amqp_broker import AmqpStandIn, faults
from local.amqp_broker.faults import FaultKind
from shared.ingestion.dead_letters.redrive import to_message
from shared.ingestion.model import Stream
from shared.ingestion.store.events import StoredDeadLetter
from shared.messaging.batch_sender import BatchSender
from shared.messaging.encoder import ID_LENGTH_MAX, encode_all
from shared.messaging.model import BatchLimits
from shared.messaging.packing import envelope_bytes, section_bytes
from shared.messaging.send_state import RetryBudget
from shared.settings.connections import ServiceBusConnection
from shared.values.messages import Message, Order, Result
from shared.wiring.batch_sender import batch_sender
from tests.emulators.rig import Bus, administration_client, bus_in_thread
from tests.ingestion.commits import letter
from tests.local.amqp_rig import LEAVES_SOCKETS_OPEN

pytestmark = LEAVES_SOCKETS_OPEN
LIMIT = 256 * 1024
LATER_SECONDS = 3
QUICK = RetryBudget(pause_seconds=0.001, busy_seconds=0.001)


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture(scope="module")
def bus() -> Iterator[Bus]:
    with bus_in_thread() as running:
        yield running


@pytest.fixture
def connection(bus: Bus) -> ServiceBusConnection:
    return bus.connection


@pytest.fixture
async def jobs(bus: Bus) -> str:
    """A new queue that detects duplicates."""
    return await bus.queue(duplicate_window=timedelta(minutes=5))


async def waiting(bus: Bus, queue: str) -> int:
    """How many messages wait in a queue, as its administration says."""
    async with administration_client(bus.administration) as administration:
        facts = await administration.get_queue_runtime_properties(queue)
    return facts.active_message_count or 0


def received(
    connection: ServiceBusConnection, count: int, path: str
) -> list[ServiceBusReceivedMessage]:
    """All messages in the queue: ``count`` of them, and any further ones. They stay locked."""
    messages: list[ServiceBusReceivedMessage] = []
    topic, _, subscription = path.partition("/")
    # Without keep-alive: the client's keep-alive thread would also read, and could lose messages.
    one_reader: dict[str, Any] = {"keep_alive": 0}
    with ServiceBusClient.from_connection_string(
        connection.connection_string, **one_reader
    ) as client:
        if subscription:
            receiver = client.get_subscription_receiver(topic, subscription)
        else:
            receiver = client.get_queue_receiver(path)
        with receiver:
            while len(messages) < count and (batch := receiver.receive_messages(2000, 2)):
                messages += batch
            messages += receiver.receive_messages(10, max_wait_time=0.2)
    return messages


def stored(bus: AmqpStandIn, path: str) -> list[Any]:
    """All messages that the broker holds, read by a call. A slow receiver could lose messages of
    its own, and these tests are about the sender."""
    messages: list[Any] = []
    store = bus.namespace.store(path)
    while (message := store.receive_and_delete(now())) is not None:
        decoded: Any = ProtonMessage()
        decoded.decode(message.content.payload)
        messages.append(decoded)
    return messages


async def send(sender: BatchSender, messages: list[Message], order: Order = Order.KEPT) -> Result:
    try:
        return await sender.send(messages, order)
    finally:
        await sender.link.close()


async def test_messages_are_received_as_they_were_sent(
    connection: ServiceBusConnection, jobs: str
) -> None:
    message = Message(
        b"body",
        "id",
        correlation_id="c",
        content_type="text/plain",
        subject="s",
        time_to_live=timedelta(hours=1),
        application_properties={"n": 2**40, "text": "ü", "yes": True, "half": 0.5},
    )
    await send(batch_sender(connection, jobs, now), [message, Message("second", "id2")])
    first, second = await asyncio.to_thread(received, connection, 2, jobs)
    assert (b"".join(first.body), b"".join(second.body)) == (b"body", b"second")
    assert (first.message_id, first.correlation_id, first.subject) == ("id", "c", "s")
    assert (first.content_type, first.time_to_live) == ("text/plain", timedelta(hours=1))
    read = {b"n": 2**40, b"text": "ü".encode(), b"yes": True, b"half": 0.5}
    assert first.application_properties == read


# The client leaves the sockets of broken connections to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_thousands_of_messages_arrive_once_and_in_order_despite_link_failures(
    bus: Bus, connection: ServiceBusConnection, jobs: str
) -> None:
    stand_in = bus.inside()
    randomly = random.Random(11)
    sizes = [min(60_000, int(randomly.lognormvariate(6.5, 1.2))) for _ in range(5_000)]
    messages = [Message(bytes(size), f"m{place}") for place, size in enumerate(sizes)]
    stand_in.faults.arm(faults.size_exceeded(jobs), skip=3)
    stand_in.faults.arm(faults.drop_after_accept(jobs), skip=8)
    stand_in.faults.arm(faults.throttle(jobs), skip=12, times=2)
    stand_in.faults.arm(faults.drop_before_accept(jobs), skip=18)
    result = await send(batch_sender(connection, jobs, now, budget=QUICK), messages)
    assert (result.sent, result.refused) == (5_000, ())
    assert result.retries == 5
    assert result.resent_unknown > 0
    assert await waiting(bus, jobs) == 5_000
    arrived = stored(stand_in, jobs)
    assert [m.id for m in arrived] == [m.message_id for m in messages]
    assert [len(m.body) for m in arrived] == sizes


def filling(surplus: int) -> list[Message]:
    """Two messages whose batch exceeds the limit by ``surplus`` bytes."""
    first, empty = Message(bytes(100_000), "first"), Message(bytes(300), "second")
    sizes = [section_bytes(item.size_bytes) for item in encode_all([first, empty], 0)]
    room = LIMIT - envelope_bytes(first) - sum(sizes) + 300
    return [first, Message(bytes(room + surplus), "second")]


async def test_a_batch_of_exactly_the_maximum_size_is_accepted_and_a_larger_one_refused(
    connection: ServiceBusConnection, jobs: str
) -> None:
    full = await send(batch_sender(connection, jobs, now), filling(0))
    assert (full.batches, full.bytes, full.retries) == (1, LIMIT, 0)
    renamed = [m._replace(message_id=f"{m.message_id}2"[1:]) for m in filling(1)]
    more = await send(batch_sender(connection, jobs, now), renamed)
    assert (more.batches, more.retries) == (2, 0)
    sender = batch_sender(connection, jobs, now)
    await sender.send([Message(b"", "opens")])
    assert sender.limits == BatchLimits(LIMIT, message_bytes=LIMIT)
    sender.limits = BatchLimits(LIMIT + 1)
    beyond = [m._replace(message_id=f"{m.message_id}3"[1:]) for m in filling(1)]
    result = await send(sender, beyond)
    assert (result.batches, result.retries) == (2, 1)


async def test_batches_can_be_sent_to_topics(bus: Bus, connection: ServiceBusConnection) -> None:
    topic = await bus.topic("all")
    sender = batch_sender(connection, topic, now, topic=True)
    await send(sender, [Message("one", "1"), Message("two", "2")])
    arrived = await asyncio.to_thread(received, connection, 2, f"{topic}/all")
    assert [str(m) for m in arrived] == ["one", "two"]


async def test_a_message_with_a_known_id_is_dropped_and_a_scheduled_one_waits(
    connection: ServiceBusConnection, jobs: str
) -> None:
    due = now() + timedelta(seconds=LATER_SECONDS)
    later = Message(b"later", "later", scheduled_at=due)
    for _ in range(2):
        await send(batch_sender(connection, jobs, now), [later, Message(b"now", "now")])
    arrived = await asyncio.to_thread(received, connection, 2, jobs)
    assert [message.message_id for message in arrived] == ["now", "later"]
    assert now() >= due


async def test_a_queue_that_detects_duplicates_takes_each_dead_letter_once(
    connection: ServiceBusConnection, jobs: str
) -> None:
    """Each of the dead letters is of another event with the same number of the same partition."""
    stream, first = Stream("ns", "h" * 256, "$Default", "0"), letter(2**63 - 1)
    later = replace(first, enqueued_at=first.enqueued_at + timedelta(days=1))
    letters = [
        StoredDeadLetter(stream, first, "version"),
        StoredDeadLetter(stream, later, "of a hub that was recreated"),
        *[
            StoredDeadLetter(replace(stream, **{name: other}), first, "version")
            for name, other in (
                ("namespace", "ns2"),
                ("hub", "h" * 255 + "2"),
                ("consumer_group", "$Default~replay"),
                ("partition_id", "1"),
            )
        ],
    ]
    for _ in range(2):  # the second time after a crash before the dead letters were removed
        sender = batch_sender(connection, jobs, now)
        await sender.send([to_message(stored) for stored in letters])
        await sender.link.close()
    messages = await asyncio.to_thread(received, connection, len(letters), jobs)
    assert len({message.message_id for message in messages}) == len(messages) == len(letters)
    assert max(len(message.message_id or "") for message in messages) <= ID_LENGTH_MAX


async def test_messages_without_a_session_id_are_named_and_the_others_are_sent(
    bus: Bus, connection: ServiceBusConnection
) -> None:
    queue = await bus.queue(requires_session=True)
    messages = [
        Message(b"", str(place), session_id=None if place in {1, 5} else "s") for place in range(8)
    ]
    result = await send(batch_sender(connection, queue, now), messages)
    assert [refusal.position for refusal in result.refused] == [1, 5]
    assert all("SessionId was not set" in refusal.reason for refusal in result.refused)
    assert (result.sent, result.resent_unknown, await waiting(bus, queue)) == (6, 0, 6)


async def test_a_batch_of_premium_that_exceeds_the_batch_limit_is_divided(
    bus: Bus, connection: ServiceBusConnection
) -> None:
    """Service Bus closes the link on which such a batch arrives."""
    queue = await bus.queue(max_message_bytes=3 * 2**20)
    sender = batch_sender(connection, queue, now, budget=QUICK)
    await sender.send([Message(b"", "opens")])
    sender.limits = BatchLimits(3 * 2**20)
    result = await send(sender, [Message(bytes(700_000), f"{n}") for n in range(3)])
    assert (result.sent, result.refused, result.resent_unknown) == (3, (), 0)
    assert await waiting(bus, queue) == 4


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("kind", "condition", "is_certain"),
    [
        (FaultKind.REFUSE, "amqp:not-allowed", True),
        (FaultKind.DETACH, "com.microsoft:argument-out-of-range", True),
        (FaultKind.DETACH, "com.microsoft:not-known-yet", False),
        (FaultKind.REFUSE, "amqp:internal-error", False),
    ],
)
async def test_only_a_refusal_that_blames_the_messages_is_not_repeated(
    bus: Bus,
    connection: ServiceBusConnection,
    jobs: str,
    kind: FaultKind,
    condition: str,
    is_certain: bool,
) -> None:
    stand_in = bus.inside()
    fault = faults.TransferFault(kind, condition, entity=jobs)
    stand_in.faults.arm(fault, times=2)  # the batch of two, and the first of them alone
    messages = [Message(b"", "1"), Message(b"", "2")]
    result = await send(batch_sender(connection, jobs, now, budget=QUICK), messages)
    refused = [refusal.message_id for refusal in result.refused]
    assert (refused, result.sent) == ((["1"], 1) if is_certain else ([], 2))
    assert bool(result.resent_unknown) is not is_certain
    assert all(condition in refusal.reason for refusal in result.refused)
