"""Event hubs over AMQP with the real azure-eventhub clients.

Each scenario uses its own partition of the hub `telemetry` and reads only new events. It runs
against Microsoft's emulator if that is named (see `tests.emulators.rig`). Scenarios that move the
clock, arm faults or inspect the broker are then skipped.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.exceptions import EventDataSendError, EventHubError

from local.amqp_broker import AmqpStandIn, VirtualClock
from local.amqp_broker.model.hub import Partition
from local.amqp_broker.model.properties import HubProperties
from tests.emulators.rig import Hub, a_partition
from tests.local.amqp_rig import SIDE_BY_SIDE, Test, side_by_side, side_by_side_test
from tests.local.polling import until

pytestmark = [*SIDE_BY_SIDE, pytest.mark.usefixtures(side_by_side.__name__)]

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECONDS_MAX = 60.0
CLAIM_SECONDS = 1.0
"""How soon a failed reader claims its partition again. The client's default of 30 s is long."""
GROUPS = ("$Default", "g1", "g2", "g3", "g4", "g5")
CONSUMER: dict[str, Any] = {
    "eventhub_name": "telemetry",
    "retry_total": 0,
    "keep_alive": 0,
    "load_balancing_interval": CLAIM_SECONDS,
}


class Reading:
    """The events and errors that a consumer received."""

    def __init__(self) -> None:
        self.events: list[EventData] = []
        self.errors: list[Exception] = []

    async def on_event(self, _context: Any, event: EventData | None) -> None:
        if event is not None:
            self.events.append(event)

    async def on_error(self, _context: Any, error: Exception) -> None:
        self.errors.append(error)

    async def wait_for(self, count: int) -> list[str]:
        await until(lambda: len(self.events) >= count, SECONDS_MAX)
        return [event.body_as_str() for event in self.events]

    async def error(self) -> Exception:
        await until(lambda: bool(self.errors), SECONDS_MAX)
        return self.errors[0]


@dataclass
class HubRig:
    """Clients and their partition, which no other scenario uses."""

    hub: Hub
    clock: VirtualClock
    stack: AsyncExitStack

    def inside(self) -> AmqpStandIn:
        """Return the stand-in, or skip the test if there is none."""
        return self.hub.inside()

    @property
    def connection_string(self) -> str:
        return self.hub.connection.connection_string

    @property
    def partition_id(self) -> str:
        return self.hub.partition

    @property
    def after(self) -> int:
        """The sequence number before the first event of the scenario."""
        return self.hub.first - 1

    @property
    def partition(self) -> Partition:
        return self.inside().broker.hub("telemetry").partition(self.partition_id)

    def advance(self, by: timedelta) -> None:
        self.inside()
        self.clock.advance(by)

    def is_now(self, time: datetime) -> bool:
        """Whether a time is now: exactly by the virtual clock, approximately by the emulator's."""
        if self.hub.stand_in is not None:
            return time == self.clock()
        return abs(datetime.now(UTC) - time) < timedelta(minutes=1)

    async def attached(self, count: int = 1) -> None:
        """Wait until this many readers are attached. The emulator does not show readers."""
        if self.hub.stand_in is not None:
            await until(lambda: self.partition.reader_count == count, SECONDS_MAX)

    async def producer(self, name: str = "telemetry") -> Any:
        client = EventHubProducerClient.from_connection_string(
            self.connection_string, eventhub_name=name, retry_total=0, keep_alive=0
        )
        return await self.stack.enter_async_context(client)

    @asynccontextmanager
    async def reading(self, group: str = "$Default", **options: Any) -> AsyncIterator[Reading]:
        """Read the rig's partition in the background until the end of the `with`."""
        start = "-1" if self.after < 0 else self.after
        options = {"partition_id": self.partition_id, "starting_position": start} | options
        reading, string = Reading(), self.connection_string
        async with EventHubConsumerClient.from_connection_string(
            string, group, **CONSUMER
        ) as client:
            work = client.receive(reading.on_event, on_error=reading.on_error, **options)
            task = asyncio.create_task(work)
            try:
                yield reading
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def hub_rig(stack: AsyncExitStack) -> HubRig:
    clock = VirtualClock(NOON)
    return HubRig(await stack.enter_async_context(a_partition(clock)), clock, stack)


def scenario(work: Any) -> Test:
    """A test that runs a scenario with clients of Event Hubs."""
    return side_by_side_test(work, hub_rig)


async def send(client: Any, *texts: str, **options: Any) -> None:
    """Send texts in one batch."""
    batch = await client.create_batch(**options)
    for text in texts:
        batch.add(EventData(text))
    await client.send_batch(batch)


@scenario
async def test_events_arrive_in_order_with_sequence_number_offset_and_time(rig: HubRig) -> None:
    sender = await rig.producer()
    event = EventData("a")
    event.properties = {"k": 1}
    await sender.send_event(event, partition_id=rig.partition_id)
    await send(sender, "b", "c", partition_id=rig.partition_id)
    async with rig.reading() as reader:
        assert await reader.wait_for(3) == ["a", "b", "c"]
    numbers = [each.sequence_number or 0 for each in reader.events]
    assert [number - rig.after for number in numbers] == [1, 2, 3]
    offsets = [int(each.offset or "") for each in reader.events]
    assert offsets == sorted(set(offsets))
    assert reader.events[0].properties == {b"k": 1}
    assert all(each.enqueued_time and rig.is_now(each.enqueued_time) for each in reader.events)


@scenario
async def test_a_partition_key_chooses_the_partition_and_is_delivered(rig: HubRig) -> None:
    chosen_by = rig.inside().broker
    sender = await rig.producer()
    for text in ("a", "b", "c"):
        await send(sender, text, partition_key="key")
    await sender.send_event(EventData("d"), partition_key="key")
    chosen = chosen_by.hub("telemetry").choose("key").id
    async with rig.reading(partition_id=chosen) as reader:
        assert await reader.wait_for(4) == ["a", "b", "c", "d"]
    assert {each.partition_key for each in reader.events} == {b"key"}


@scenario
async def test_the_client_reads_the_properties_of_a_hub_and_a_partition(rig: HubRig) -> None:
    sender = await rig.producer()
    properties = await sender.get_eventhub_properties()
    assert properties["eventhub_name"] == "telemetry"
    assert rig.partition_id in properties["partition_ids"]
    empty = await sender.get_partition_properties(rig.partition_id)
    assert empty["is_empty"] == (rig.after < 0)
    await send(sender, "a", "b", partition_id=rig.partition_id)
    full = await sender.get_partition_properties(rig.partition_id)
    assert not full["is_empty"]
    assert full["beginning_sequence_number"] <= rig.after + 1
    assert full["last_enqueued_sequence_number"] == rig.after + 2
    assert rig.is_now(full["last_enqueued_time_utc"])
    async with rig.reading() as reader:
        await reader.wait_for(2)
    assert full["last_enqueued_offset"] == reader.events[1].offset


@scenario
async def test_reading_begins_at_the_requested_position(rig: HubRig) -> None:
    rig.inside()
    sender = await rig.producer()
    for text in "abc":
        await send(sender, text, partition_id="0")
        rig.advance(timedelta(minutes=1))
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
        await rig.attached(len(cases))
        await send(sender, "d", partition_id="0")
        for reader, expected in readers:
            assert await reader.wait_for(len(expected)) == list(expected)


@scenario
async def test_events_older_than_the_retention_are_not_delivered(rig: HubRig) -> None:
    rig.inside()
    sender = await rig.producer()
    await send(sender, "old", partition_id="0")
    rig.advance(timedelta(hours=23))
    await send(sender, "new", partition_id="0")
    rig.advance(timedelta(hours=1))
    async with rig.reading() as reader:
        assert await reader.wait_for(1) == ["new"]
    properties = await sender.get_partition_properties("0")
    assert properties["beginning_sequence_number"] == 1


@scenario
async def test_a_higher_owner_level_takes_over_the_partition(rig: HubRig) -> None:
    await send(await rig.producer(), "a", partition_id=rig.partition_id)
    async with rig.reading(owner_level=1) as old:
        await old.wait_for(1)
        async with rig.reading(owner_level=2) as new:
            assert await new.wait_for(1) == ["a"]
            assert "stolen" in str(await old.error())
            async with rig.reading(owner_level=1) as late:
                assert "stolen" in str(await late.error())
            assert new.errors == []


@scenario
async def test_a_missing_hub_is_reported_as_an_error(rig: HubRig) -> None:
    sender = await rig.producer("none")
    with pytest.raises(EventHubError):
        await sender.get_eventhub_properties()
    with pytest.raises(EventHubError):
        await sender.send_event(EventData("a"))


@scenario
async def test_an_event_above_the_size_limit_is_refused(rig: HubRig) -> None:
    rig.inside().broker.declare_hub("small", HubProperties(max_event_bytes=1000))
    sender = await rig.producer("small")
    assert (await sender.create_batch()).max_size_in_bytes == 1000
    with pytest.raises(EventDataSendError):
        await sender.send_event(EventData("x" * 1000))
