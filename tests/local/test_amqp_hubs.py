"""Event hubs over AMQP, asked by the real azure-eventhub clients, sync and aio."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.aio import EventHubConsumerClient as AsyncConsumer
from azure.eventhub.aio import EventHubProducerClient as AsyncProducer
from azure.eventhub.exceptions import EventDataSendError, EventHubError

from local.amqp import AmqpStandIn, VirtualClock, faults
from local.amqp.model.hub import Partition
from local.amqp.model.properties import HubProperties
from tests.local.amqp_rig import SIDE_BY_SIDE, Test, Threaded, side_by_side, side_by_side_test
from tests.local.polling import until

pytestmark = [*SIDE_BY_SIDE, pytest.mark.usefixtures(side_by_side.__name__)]

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECONDS_MAX = 60.0
CLAIM_SECONDS = 1.0
"""How soon a reader that failed looks for its partition again: the client's own 30 s are long."""
GROUPS = ("$Default", "g1", "g2", "g3", "g4", "g5")
CONSUMER: dict[str, Any] = {
    "eventhub_name": "telemetry",
    "retry_total": 0,
    "keep_alive": 0,
    "load_balancing_interval": CLAIM_SECONDS,
}


_claiming = asyncio.Lock()
"""Held by a sync reader until it has its partition: until then the client asks itself without a
pause whether it has one (`EventProcessor.start`). A few such readers at once keep everybody else
in this interpreter from running, the stand-in and the readers' own threads first of all.
"""


class Reading:
    """What a consumer was given."""

    def __init__(self) -> None:
        self.events: list[EventData] = []
        self.errors: list[Exception] = []
        self.has_partition = False

    def on_partition_initialize(self, _context: Any) -> None:
        self.has_partition = True

    def on_event(self, _context: Any, event: EventData | None) -> None:
        if event is not None:
            self.events.append(event)

    def on_error(self, _context: Any, error: Exception) -> None:
        self.errors.append(error)

    async def wait_for(self, count: int) -> list[str]:
        await until(lambda: len(self.events) >= count, SECONDS_MAX)
        return [event.body_as_str() for event in self.events]

    async def error(self) -> Exception:
        await until(lambda: bool(self.errors), SECONDS_MAX)
        return self.errors[0]


@dataclass
class HubRig:
    """Clients of one kind, and the stand-in with the hub `telemetry` that they talk to."""

    kind: str
    stand_in: AmqpStandIn
    clock: VirtualClock
    stack: AsyncExitStack

    @property
    def partition(self) -> Partition:
        return self.stand_in.broker.hub("telemetry").partition("0")

    async def producer(self, name: str = "telemetry") -> Any:
        options: dict[str, Any] = {"eventhub_name": name, "retry_total": 0, "keep_alive": 0}
        string = self.stand_in.connection_string
        client: Any
        if self.kind == "aio":
            client = AsyncProducer.from_connection_string(string, **options)
        else:
            client = Threaded(EventHubProducerClient.from_connection_string(string, **options))
        return await self.stack.enter_async_context(client)

    @asynccontextmanager
    async def reading(self, group: str = "$Default", **options: Any) -> AsyncIterator[Reading]:
        """Read partition 0 in the background until the end of the `with`."""
        options = {"partition_id": "0", "starting_position": "-1"} | options
        read = self._read_aio if self.kind == "aio" else self._read_sync
        async with read(group, options) as reading:
            yield reading

    @asynccontextmanager
    async def _read_aio(self, group: str, options: dict[str, Any]) -> AsyncIterator[Reading]:
        reading = Reading()

        async def on_event(context: Any, event: EventData | None) -> None:
            reading.on_event(context, event)

        async def on_error(context: Any, error: Exception) -> None:
            reading.on_error(context, error)

        string = self.stand_in.connection_string
        async with AsyncConsumer.from_connection_string(string, group, **CONSUMER) as client:
            task = asyncio.create_task(client.receive(on_event, on_error=on_error, **options))
            try:
                yield reading
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    @asynccontextmanager
    async def _read_sync(self, group: str, options: dict[str, Any]) -> AsyncIterator[Reading]:
        reading = Reading()
        string = self.stand_in.connection_string
        client = EventHubConsumerClient.from_connection_string(string, group, **CONSUMER)
        options |= {
            "on_error": reading.on_error,
            "on_partition_initialize": reading.on_partition_initialize,
        }
        thread = threading.Thread(target=lambda: client.receive(reading.on_event, **options))
        try:
            async with _claiming:
                thread.start()
                await until(lambda: reading.has_partition, SECONDS_MAX)
            yield reading
        finally:
            await asyncio.to_thread(client.close)
            if thread.is_alive():
                await asyncio.to_thread(thread.join, SECONDS_MAX)


async def hub_rig(stack: AsyncExitStack, kind: str) -> HubRig:
    clock = VirtualClock(NOON)
    stand_in = await stack.enter_async_context(AmqpStandIn(clock=clock))
    properties = HubProperties(partition_count=2, consumer_groups=GROUPS)
    stand_in.broker.declare_hub("telemetry", properties)
    return HubRig(kind, stand_in, clock, stack)


def both(scenario: Any) -> Test:
    """With either client of Event Hubs, both at once."""
    return side_by_side_test(scenario, hub_rig)


def aio_only(scenario: Any) -> Test:
    """Where sync readers would take all of the processor: they look for events without a pause
    while they open, and try again without a pause when they are turned away.
    """
    return side_by_side_test(scenario, hub_rig, ["aio"])


async def send(client: Any, *texts: str, **options: Any) -> None:
    """In one batch."""
    batch = await client.create_batch(**options)
    for text in texts:
        batch.add(EventData(text))
    await client.send_batch(batch)


@both
async def test_events_come_in_order_with_number_offset_and_time(rig: HubRig) -> None:
    sender = await rig.producer()
    event = EventData("a")
    event.properties = {"k": 1}
    await sender.send_event(event, partition_id="0")
    rig.clock.advance(timedelta(minutes=1))
    await send(sender, "b", "c", partition_id="0")
    async with rig.reading() as reader:
        assert await reader.wait_for(3) == ["a", "b", "c"]
    assert [each.sequence_number for each in reader.events] == [0, 1, 2]
    offsets = [int(each.offset or "") for each in reader.events]
    assert offsets == sorted(set(offsets))
    assert reader.events[0].properties == {b"k": 1}
    later = NOON + timedelta(minutes=1)
    assert [each.enqueued_time for each in reader.events] == [NOON, later, later]


@both
async def test_an_event_comes_to_a_reader_that_waits(rig: HubRig) -> None:
    sender = await rig.producer()
    async with rig.reading() as reader:
        await until(lambda: rig.partition.reader_count == 1, SECONDS_MAX)
        await send(sender, "a", partition_id="0")
        assert await reader.wait_for(1) == ["a"]


@both
async def test_a_partition_key_chooses_the_partition_and_is_told(rig: HubRig) -> None:
    sender = await rig.producer()
    for text in ("a", "b", "c"):
        await send(sender, text, partition_key="key")
    await sender.send_event(EventData("d"), partition_key="key")
    chosen = rig.stand_in.broker.hub("telemetry").choose("key").id
    async with rig.reading(partition_id=chosen) as reader:
        assert await reader.wait_for(4) == ["a", "b", "c", "d"]
    assert {each.partition_key for each in reader.events} == {b"key"}


@both
async def test_properties_of_hub_and_partition(rig: HubRig) -> None:
    sender = await rig.producer()
    told = await sender.get_eventhub_properties()
    assert (told["eventhub_name"], told["partition_ids"]) == ("telemetry", ["0", "1"])
    assert (await sender.get_partition_properties("1"))["is_empty"]
    rig.clock.advance(timedelta(minutes=1))
    await send(sender, "a", "b", partition_id="0")
    full = await sender.get_partition_properties("0")
    assert not full["is_empty"]
    assert (full["beginning_sequence_number"], full["last_enqueued_sequence_number"]) == (0, 1)
    assert full["last_enqueued_time_utc"] == rig.clock()
    assert full["last_enqueued_offset"] == str(rig.partition.facts(rig.clock()).last_offset)


@aio_only
async def test_reading_begins_where_it_was_asked(rig: HubRig) -> None:
    sender = await rig.producer()
    for text in "abc":
        await send(sender, text, partition_id="0")
        rig.clock.advance(timedelta(minutes=1))
    second = NOON + timedelta(minutes=1)
    offset = str(rig.partition.facts(rig.clock()).last_offset // 2)
    cases: list[tuple[Any, bool, str]] = [
        ("@latest", False, "d"),
        (offset, False, "cd"),
        (1, False, "cd"),
        (1, True, "bcd"),
        (second, False, "cd"),
        (second, True, "bcd"),
    ]
    async with AsyncExitStack() as stack:
        readers = []
        for group, (position, inclusive, expected) in zip(GROUPS, cases, strict=True):
            options = {"starting_position": position, "starting_position_inclusive": inclusive}
            reader = await stack.enter_async_context(rig.reading(group, **options))
            readers.append((reader, expected))
        await until(lambda: rig.partition.reader_count == len(cases), SECONDS_MAX)
        await send(sender, "d", partition_id="0")
        for reader, expected in readers:
            assert await reader.wait_for(len(expected)) == list(expected)


@both
async def test_events_beyond_the_retention_are_gone(rig: HubRig) -> None:
    sender = await rig.producer()
    await send(sender, "old", partition_id="0")
    rig.clock.advance(timedelta(hours=23))
    await send(sender, "new", partition_id="0")
    rig.clock.advance(timedelta(hours=1))
    async with rig.reading() as reader:
        assert await reader.wait_for(1) == ["new"]
    told = await sender.get_partition_properties("0")
    assert told["beginning_sequence_number"] == 1


@aio_only
async def test_a_higher_owner_level_takes_the_partition_over(rig: HubRig) -> None:
    await send(await rig.producer(), "a", partition_id="0")
    async with rig.reading(owner_level=1) as old:
        await old.wait_for(1)
        async with rig.reading(owner_level=2) as new:
            assert await new.wait_for(1) == ["a"]
            assert "stolen" in str(await old.error())
            async with rig.reading(owner_level=1) as late:
                assert "stolen" in str(await late.error())
            assert new.errors == []


@both
async def test_consumer_groups_read_by_themselves(rig: HubRig) -> None:
    await send(await rig.producer(), "a", partition_id="0")
    async with (
        rig.reading("g1", owner_level=9) as one,
        rig.reading("g2", owner_level=1) as other,
    ):
        assert await one.wait_for(1) == await other.wait_for(1) == ["a"]
        assert one.errors == other.errors == []


@both
async def test_a_hub_that_is_not_there(rig: HubRig) -> None:
    sender = await rig.producer("none")
    with pytest.raises(EventHubError):
        await sender.get_eventhub_properties()
    with pytest.raises(EventHubError):
        await sender.send_event(EventData("a"))


@both
async def test_an_event_sent_again_after_a_broken_connection_is_there_twice(
    rig: HubRig,
) -> None:
    sender = await rig.producer()
    rig.stand_in.faults.arm(faults.drop_after_accept("telemetry/Partitions/0"))
    try:
        await send(sender, "a", partition_id="0")  # the aio client tries again by itself
    except EventHubError:
        await send(sender, "a", partition_id="0")
    async with rig.reading() as reader:
        assert await reader.wait_for(2) == ["a", "a"]


@both
async def test_a_producer_whose_link_is_detached_again_and_again_is_told(rig: HubRig) -> None:
    sender = await rig.producer()
    rig.stand_in.faults.arm(faults.detach(), times=5)
    with pytest.raises(EventHubError):
        await send(sender, "a", partition_id="0")
    rig.stand_in.faults.disarm()
    await send(sender, "b", partition_id="0")
    assert rig.partition.facts(rig.clock()).last_sequence_number == 0


@both
async def test_an_event_too_large_is_refused(rig: HubRig) -> None:
    rig.stand_in.broker.declare_hub("small", HubProperties(max_event_bytes=1000))
    sender = await rig.producer("small")
    assert (await sender.create_batch()).max_size_in_bytes == 1000
    with pytest.raises(EventDataSendError):
        await sender.send_event(EventData("x" * 1000))
