"""The contract of reading a hub directly, tested on the in-memory adapter and the real client.

The broker of the client is the stand-in or Microsoft's emulator.
"""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubProducerClient
from azure.eventhub.amqp import AmqpAnnotatedMessage

from local.amqp_broker import VirtualClock
from local.amqp_broker.model.hub import EventContent
from local.functions_host.event_hub_invocation import PartitionPlace, batch_invocation
from local.functions_host.functions import EVENT_HUB_TRIGGER, Binding
from local.twins.event_hub import MemoryHubReader
from local.twins.ingestion import MemoryIngestionStore
from shared.ingestion.dead_letters.find import DeadLetterQuery, find
from shared.ingestion.dead_letters.redrive import Redriver
from shared.ingestion.errors import HubMissing, HubUnavailable, NotFound
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.process_batch import Consumer, process_batch
from shared.ingestion.events.trigger_batch import parse_batch
from shared.ingestion.hub.client import EventHubReader
from shared.ingestion.hub.received import READABLE_BYTES_MAX, to_event
from shared.ingestion.hub.receiver import FROM_THE_START, EventHubReceiver
from shared.ingestion.model import Effect, Event, FailureKind, HubState, Span, Stream
from shared.ingestion.operating.breaker_controller import SECONDS_MAX
from shared.ingestion.ports import HubReader, ReadBack
from shared.settings.connections import EventHubConnection, event_hub_connection
from tests.emulators import rig as emulators
from tests.emulators.rig import HUB, a_partition, an_empty_hub
from tests.local.polling import until

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

T = TypeVar("T")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=20)
READ_MAX = 4
OLD, NEW = 3, 8
"""One read returns at most 2 * READ_MAX - 1 events: a part batch, and a whole one."""
"""Retention has removed events 0 to 2, where the clock can be moved. Events 3 to 8 remain."""


@dataclass
class HubRig:
    """`first` is the sequence number of the first of the NEW events of `stream`."""

    hub: HubReader
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


async def test_a_hub_that_was_deleted_is_told_from_one_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses, sleep = list[float](), asyncio.sleep

    async def recorded(seconds: float, *result: Any) -> Any:
        pauses.append(seconds)
        return await sleep(seconds, *result)

    monkeypatch.setattr(asyncio, "sleep", recorded)
    async with an_empty_hub() as place:
        gone = replace(place.connection, hub="deleted")
        with pytest.raises(HubMissing, match="deleted/partitions"):
            await EventHubReader(gone, "readback").partition_ids()
        with pytest.raises(HubMissing, match="deleted/0"):
            await EventHubReader(gone, "readback").state(Stream("ns", "deleted", "$Default", "0"))
    assert max(pauses) <= SECONDS_MAX / 10, "the page waits for the answer only this long"


async def test_an_unreachable_hub_raises_hub_unavailable() -> None:
    string = "Endpoint=sb://127.0.0.1:9;SharedAccessKeyName=n;SharedAccessKey=a2V5"
    environ = {"Hub": f"{string};UseDevelopmentEmulator=true"}
    connection = event_hub_connection(environ, "Hub", "telemetry")
    assert isinstance(connection, EventHubConnection)
    with pytest.raises(HubUnavailable, match="telemetry/0, consumer group readback: "):
        await EventHubReader(connection, "readback", 1).state(Stream("ns", HUB, "$Default", "0"))


UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")
READ: dict[str, tuple[dict[str, Any], bytes]] = {
    "one data section": ({"data_body": b"{}"}, b"{}"),
    "several data sections": ({"data_body": [b"{", b"}"]}, b"{}"),
    "no byte": ({"data_body": b""}, b""),
    "text": ({"value_body": "ü"}, b"\xc3\xbc"),
    "bytes": ({"value_body": b"\xff"}, b"\xff"),
}
NOT_READ: dict[str, tuple[dict[str, Any], str, str]] = {
    "null": ({"value_body": None}, "null", "null"),
    "true": ({"value_body": True}, "boolean", "true"),
    "number": ({"value_body": 5}, "number", "5"),
    "no number": ({"value_body": float("nan")}, "number", '"nan"'),
    "uuid": ({"value_body": UUID}, "uuid", f'"{UUID}"'),
    "time": ({"value_body": NOON}, "timestamp", '"2026-03-01T12:00:00Z"'),
    "map": ({"value_body": {"a": b"\xff", 1: [None]}}, "map", '{"a": "/w==", "1": [null]}'),
    "list": ({"value_body": ["ü", 1.5]}, "list", '["ü", 1.5]'),
    "long": ({"value_body": ["xü" * 9_000]}, "list", f'["{"xü" * 5332}x…'),
    "sequences": ({"sequence_body": [[1], ["a"]]}, "sequence", '[[1], ["a"]]'),
}


PROPERTIES = {
    "text": ("ü", "ü"),
    "binary": (b"abc", "YWJj"),
    "no text": (b"\xff\x00", "/wA="),
    "time": (NOON + timedelta(milliseconds=620), "2026-03-01T12:00:00.62Z"),
    "number": (1772366400, 1772366400),
    "share": (0.5, 0.5),
    "flag": (True, True),
    "uuid": (UUID, str(UUID)),
    "nothing": (None, None),
}


async def test_properties_have_the_same_form_from_the_trigger_and_outside_functions() -> None:
    received = list[EventData]()

    async def deliver(batch: Sequence[EventData]) -> None:
        received.extend(batch)

    async with a_partition() as place:
        event = EventData(b"x")
        event.properties = {name: sent for name, (sent, _) in PROPERTIES.items()}
        producer = EventHubProducerClient.from_connection_string(
            place.connection.connection_string, eventhub_name=place.connection.hub
        )
        async with producer:
            await producer.send_event(event, partition_id=place.partition)
        receiver = EventHubReceiver(place.connection, "$Default", wait_seconds=0.2)
        start = FROM_THE_START if place.after is None else place.after
        receiving = asyncio.create_task(receiver.receive_data(place.partition, start, 1, deliver))
        await until(lambda: receiving.done() or len(received) == 1, 20)
        receiving.cancel()
        await asyncio.wait([receiving])
    trigger = Binding(EVENT_HUB_TRIGGER, "events", {"dataType": "BINARY", "cardinality": "MANY"})
    invocation = batch_invocation(trigger, PartitionPlace("ns", HUB, "$Default", "0"), received)
    metadata = {name: json.loads(datum.value) for name, datum in invocation.metadata.items()}
    (from_trigger,) = parse_batch(list(invocation.trigger.value.bytes), metadata).events
    outside = to_event(received[0])
    assert from_trigger.properties == outside.properties
    assert outside.properties == {name: form for name, (_, form) in PROPERTIES.items()}
    assert from_trigger == outside


async def send_forms(place: emulators.Hub) -> None:
    producer = EventHubProducerClient.from_connection_string(
        place.connection.connection_string, eventhub_name=place.connection.hub
    )
    async with producer:
        batch = await producer.create_batch(partition_id=place.partition)
        for fields in [f for f, _ in READ.values()] + [f for f, _, _ in NOT_READ.values()]:
            batch.add(AmqpAnnotatedMessage(**fields))
        batch.add(EventData(b"the last"))
        await producer.send_batch(batch)


UNDECODED = {
    "character": b"\x73\0\0\0x",
    "small decimal": b"\x84" + bytes(8),
    "map with a list as key": b"\xc1\x04\x02\x45\x40\x40",
    "deep list": None,
}
"""Encoded values that the client cannot decode."""

PROPERTY = b"\0\x53\x74\xc1\x07\x02\xa1\x01a\xa1\x01b"
"""The section of properties of an event, as short as it can be written."""


def nested(depth: int) -> bytes:
    value = b"\x45"
    for _ in range(depth):
        value = b"\xd0" + (len(value) + 4).to_bytes(4, "big") + b"\0\0\0\x01" + value
    return value


async def test_an_event_that_the_client_cannot_decode_is_a_dead_letter_and_stops_no_other() -> None:
    async with a_partition() as place:
        broker = place.inside().broker
        for value in UNDECODED.values():
            body = PROPERTY + b"\0\x53\x77" + (value or nested(3_000))
            broker.publish(broker.hub(HUB), [EventContent(body)], place.partition)
        await place.send(b"good")
        reader = EventHubReader(place.connection, "readback", 20)
        *undecoded, good = await all_events(place, reader, received=True)
    assert (good.body, good.unreadable) == (b"good", "")
    assert len(undecoded) == len(UNDECODED)
    for event in undecoded:
        assert event.properties == {"a": "b"}
        assert event.unreadable.startswith(
            "the body is an AMQP value that the client cannot decode"
        )
    assert json.loads(undecoded[0].body) == base64.b64encode(b"\0\x53\x77\x73\0\0\0x").decode()


async def once(attempt: Callable[[], Awaitable[T]], worth: Callable[[Exception], bool]) -> T:
    return await attempt()


async def in_turn(work: Iterable[Callable[[], Awaitable[None]]]) -> None:
    for piece in work:
        await piece()


async def all_events(place: emulators.Hub, hub: EventHubReader, *, received: bool) -> list[Event]:
    """The events of the partition, from its receiver or read back."""
    stream = Stream("ns", HUB, "$Default", place.partition)
    last = (await hub.state(stream)).last_enqueued
    if not received:
        return list((await hub.read_back(stream, Span(place.first, last))).events)
    events = list[Event]()

    async def deliver(batch: Sequence[Event]) -> None:
        events.extend(batch)

    receiver = EventHubReceiver(place.connection, "$Default", wait_seconds=0.2)
    receiving = asyncio.create_task(receiver.receive(place.partition, place.after, 1, deliver))
    await until(lambda: receiving.done() or len(events) == last - place.first + 1, 20)
    receiving.cancel()
    await asyncio.wait([receiving])
    return events


@pytest.mark.parametrize("received", [True, False], ids=["received", "read back"])
async def test_an_event_whose_body_is_not_bytes_is_a_dead_letter_and_stops_no_other(
    received: bool,
) -> None:
    async def handle(event: Event) -> Effect:
        return Effect(event.sequence, event.body.hex())

    store, stream = MemoryIngestionStore(lambda: LATER), Stream("ns", HUB, "$Default", "0")
    async with a_partition() as place:
        await send_forms(place)
        hub = EventHubReader(place.connection, "readback", 20)
        events = await all_events(place, hub, received=received)
        consumer = Consumer(stream, Writer(), store, hub, handle, once, in_turn, lambda: "tx")
        await process_batch(events, consumer)
        bodies = [body for _, body in READ.values()] + [b"the last"]
        kept = store.rows[stream].effects.values()
        assert [effect.value for effect in kept] == [body.hex() for body in bodies]
        letters = await find(store, DeadLetterQuery(), 100)
        assert {stored.letter.kind for stored in letters} == {FailureKind.NOT_BYTES}
        shown = [(s.letter.error.split(",")[0], (s.letter.body or b"").decode()) for s in letters]
        assert shown == [(f"the body is an AMQP {f}", text) for _, f, text in NOT_READ.values()]
        assert len(NOT_READ["long"][2].encode()) <= READABLE_BYTES_MAX + len("…".encode())
        again = await Redriver(store, hub, lambda _stream: handle, once).redrive(letters)
        assert [error for _, error in again.failed] == [stored.letter.error for stored in letters]
