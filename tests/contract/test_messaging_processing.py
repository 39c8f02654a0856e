"""One message per data set and period over real AMQP, with days that pass in a moment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus.aio import ServiceBusClient

from local.amqp import AmqpStandIn, VirtualClock
from local.amqp.model.properties import QueueProperties
from local.stand_ins.service_bus_admin import ServiceBusAdminStandIn
from shared.adapters.claims_memory import MemoryClaims, RecordingRecompute
from shared.adapters.messaging_queues import ServiceBusQueueReader
from shared.adapters.messaging_sender import batch_sender
from shared.connections import ServiceBusConnection
from shared.messaging.entities import QueueFacts
from shared.messaging.errors import LinkFailed
from shared.messaging.flows import check_queues, process_dataset
from shared.messaging.model import Order
from shared.messaging.periods import Period
from shared.messaging.processing import decode_work, schedule_processing

DAILY = Period()
WINDOW = DAILY.memory + timedelta(hours=12)
MORNING = datetime(2051, 3, 1, 5, tzinfo=UTC)
"""In times to come: the client asks the machine's clock whether a lock still holds."""

HOUR = timedelta(hours=1)


class Town:
    """The two queues, the functions around them, and a clock."""

    def __init__(self, bus: AmqpStandIn, clock: VirtualClock) -> None:
        self.bus, self.clock = bus, clock
        self.claims = MemoryClaims()
        self.recompute = RecordingRecompute()
        self.connection = ServiceBusConnection("Bus", bus.connection_string)
        self.sender = batch_sender(self.connection, "processing", clock)
        bus.namespace.declare_queue("working", QueueProperties(requires_session=True))
        forwarding = QueueProperties(duplicate_window=WINDOW, forward_to="working")
        bus.namespace.declare_queue("processing", forwarding)

    async def observe(self, *datasets: str, observed_at: datetime | None = None) -> None:
        """One observation of each."""
        now = self.clock()
        messages = [schedule_processing(d, DAILY, now, observed_at) for d in datasets]
        await self.sender.send(messages, Order.KEPT_PER_KEY)

    async def restart(self) -> None:
        """Everything that the sender remembers is gone."""
        await self.sender.link.close()
        self.sender = batch_sender(self.connection, "processing", self.clock)

    async def process(self, *datasets: str) -> list[str]:
        """All that has come to the working queue for these; answers the ids of the messages."""
        ids: list[str] = []
        async with ServiceBusClient.from_connection_string(self.bus.connection_string) as client:
            for dataset in datasets:
                async with client.get_queue_receiver("working", session_id=dataset) as receiver:
                    for message in await receiver.receive_messages(10, max_wait_time=0.5):
                        work = decode_work(b"".join(message.body))
                        holder = str(message.sequence_number)
                        await process_dataset.run(
                            work, holder, self.claims, self.recompute, self.clock
                        )
                        await receiver.complete_message(message)
                        ids.append(str(message.message_id))
        return ids

    @property
    def processed(self) -> list[str]:
        return [work.message_id for work in self.recompute.calls]


@pytest.fixture
async def town() -> AsyncIterator[Town]:
    clock = VirtualClock(MORNING)
    async with AmqpStandIn(clock=clock) as bus:
        town = Town(bus, clock)
        yield town
        await town.sender.link.close()


async def test_ten_observations_in_a_day_make_one_message_that_comes_after_the_day(
    town: Town,
) -> None:
    for number in range(10):
        await town.observe("sales", "stock")
        town.clock.advance(HOUR)
        if number == 4:
            await town.restart()
    counts = town.bus.namespace.counts("processing", town.clock())
    assert counts.scheduled == 2
    town.clock.advance(timedelta(hours=9, minutes=59))
    assert town.bus.namespace.counts("working", town.clock()).active == 0
    town.clock.advance(timedelta(minutes=2))
    assert await town.process("sales", "stock") == ["sales:2051-03-01", "stock:2051-03-01"]
    assert town.processed == ["sales:2051-03-01", "stock:2051-03-01"]


@pytest.mark.parametrize(("after", "count"), [(-HOUR, 1), (HOUR, 2)])
async def test_what_slips_past_the_window_finds_the_work_done(
    town: Town, after: timedelta, count: int
) -> None:
    await town.observe("sales")
    town.clock.advance(WINDOW + after)
    await town.observe("sales", observed_at=MORNING)
    town.clock.advance(HOUR)
    assert await town.process("sales") == ["sales:2051-03-01"] * count
    assert town.processed == ["sales:2051-03-01"]


async def test_what_queues_are_like_is_read_from_the_service() -> None:
    async with ServiceBusAdminStandIn() as admin:
        admin.declare_queue(
            "processing",
            RequiresDuplicateDetection="true",
            DuplicateDetectionHistoryTimeWindow="P1DT13H",
            ForwardTo="sb://shop.servicebus.windows.net/working",
        )
        admin.declare_queue("working", RequiresSession="true")
        reader = ServiceBusQueueReader(ServiceBusConnection("Bus", admin.connection_string))
        try:
            assert await reader.facts("processing") == QueueFacts(
                "processing", timedelta(hours=37), requires_session=False, forward_to="working"
            )
            await check_queues.run("processing", "working", [DAILY], reader)
            with pytest.raises(LinkFailed, match="queue none does not exist"):
                await reader.facts("none")
        finally:
            await reader.close()
