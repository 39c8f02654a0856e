"""One message for each data set and period, over real AMQP with a virtual clock."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient

from local.amqp_broker import AmqpStandIn, VirtualClock
from local.amqp_broker.processing_queues import declare_processing_queues
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn
from local.twins.datasets import MemoryClaims, RecordingRecompute
from shared.settings.connections import ServiceBusConnection
from shared.trends.datasets.arrivals import BlobArrived
from shared.trends.datasets.entities import QueueDescription
from shared.trends.datasets.flows import process_dataset, telemetry_arrived
from shared.trends.datasets.flows.check_queues import CheckOnce
from shared.trends.datasets.periods import Period
from shared.trends.datasets.processing import decode_work
from shared.trends.datasets.queue_settings import ServiceBusQueueReader
from shared.values.messages import LinkFailed
from shared.wiring.batch_sender import batch_sender
from tests.emulators.rig import SERVICE_BUS, Limit, running_bus, skip

DAILY = Period()
WINDOW = DAILY.memory + timedelta(hours=12)
MORNING = datetime(2051, 3, 1, 5, tzinfo=UTC)
"""In the future, because the client compares the expiry of locks with the machine's clock."""

HOUR = timedelta(hours=1)


class ProcessingRig:
    """The two queues, the functions that use them, and a clock."""

    def __init__(self, bus: AmqpStandIn, clock: VirtualClock, window: timedelta) -> None:
        self.bus, self.clock = bus, clock
        self.claims = MemoryClaims(clock)
        self.recompute = RecordingRecompute()
        self.connection = ServiceBusConnection("Bus", bus.connection_string)
        self.sender = batch_sender(self.connection, "processing", clock)
        quick_to_close: dict[str, Any] = {"keep_alive": 0}
        self.client = ServiceBusClient.from_connection_string(
            bus.connection_string, **quick_to_close
        )
        declare_processing_queues(bus.namespace, window=window)

    async def observe(self, *datasets: str, observed_at: datetime | None = None) -> None:
        """Report a new blob of each data set, in the folder of the hour of the observation."""
        filed = f"{observed_at or self.clock():y=%Y/m=%m/d=%d/h=%H}/m=00/PT1H.json"
        for dataset in datasets:
            arrival = BlobArrived(dataset, filed, "event", self.clock())
            await telemetry_arrived.schedule_data_set(
                arrival, [DAILY], self.sender, self.clock(), set()
            )

    async def restart(self) -> None:
        """Replace the sender, which loses its state in memory."""
        await self.sender.link.close()
        self.sender = batch_sender(self.connection, "processing", self.clock)

    async def process(self, *datasets: str) -> list[str]:
        """Process all messages of these data sets in the working queue. Returns their ids."""
        ids, expected = list[str](), self.waiting

        async def work_on(dataset: str) -> None:
            async with self.client.get_queue_receiver("working", session_id=dataset) as receiver:
                while len(ids) < expected:
                    for message in await receiver.receive_messages(10, max_wait_time=0.1):
                        await self._process(message)
                        await receiver.complete_message(message)
                        ids.append(str(message.message_id))

        await asyncio.gather(*map(work_on, datasets))
        return sorted(ids)

    async def _process(self, message: ServiceBusReceivedMessage) -> None:
        work, holder = decode_work(b"".join(message.body)), str(message.sequence_number)
        await process_dataset.process_data_set(
            work, holder, self.claims, self.recompute, self.sender
        )

    @property
    def waiting(self) -> int:
        return self.bus.namespace.counts("working", self.clock()).active

    @property
    def scheduled(self) -> int:
        return self.bus.namespace.counts("processing", self.clock()).scheduled

    @property
    def processed(self) -> list[str]:
        return [work.message_id for work in self.recompute.calls]


@asynccontextmanager
async def processing_rig(
    window: timedelta = WINDOW, start: datetime = MORNING
) -> AsyncIterator[ProcessingRig]:
    if os.environ.get(SERVICE_BUS):
        skip(Limit.INSIDE)
    clock = VirtualClock(start)
    async with AmqpStandIn(clock=clock) as bus:
        rig = ProcessingRig(bus, clock, window)
        yield rig
        await rig.sender.link.close()
        await rig.client.close()


async def test_ten_observations_in_a_day_make_one_message_that_arrives_after_the_day() -> None:
    async with processing_rig() as rig:
        for number in range(10):
            await rig.observe("sales", "stock")
            rig.clock.advance(HOUR)
            if number == 4:
                await rig.restart()
        assert rig.scheduled == 2
        rig.clock.advance(timedelta(hours=9, minutes=59))
        assert rig.waiting == 0
        rig.clock.advance(timedelta(minutes=2))
        assert await rig.process("sales", "stock") == ["sales:2051-03-01", "stock:2051-03-01"]
        assert sorted(rig.processed) == ["sales:2051-03-01", "stock:2051-03-01"]


@pytest.mark.parametrize(("after", "count"), [(-HOUR, 1), (HOUR, 2)])
async def test_a_duplicate_outside_the_detection_window_finds_the_work_done(
    after: timedelta, count: int
) -> None:
    """The duplicate detection window is shorter than the check at the start allows."""
    too_short = timedelta(hours=10)
    async with processing_rig(too_short) as rig:
        await rig.observe("sales")
        rig.clock.advance(too_short + after)
        await rig.observe("sales")
        assert rig.scheduled == count
        rig.clock.advance(timedelta(days=1))
        assert await rig.process("sales") == ["sales:2051-03-01"] * count
        assert rig.processed == ["sales:2051-03-01"]


LATE = {
    ("sales", 1): (26, 29, 34, 50),
    ("stock", 2): (96, 97, 105),
    ("sales", 3): (24,),
}
"""Late data by data set and day: hours after the start of the day."""


async def test_in_days_with_late_data_every_day_is_processed_after_its_last_data() -> None:
    first_day = MORNING.replace(hour=0)
    received = dict[str, datetime]()
    processed = dict[str, list[datetime]]()
    async with processing_rig(start=first_day) as rig:
        for hour in range(7 * 24):
            now = rig.clock()
            coming = [(dataset, hour // 24) for dataset in ("sales", "stock") if hour % 6 == 0]
            late = [key for key, hours in LATE.items() if hour - 24 * key[1] in hours]
            for dataset, day in [each for each in coming if each[1] < 4] + late:
                observed_at = first_day + timedelta(days=day)
                await rig.observe(dataset, observed_at=observed_at)
                received[f"{dataset}:{observed_at:%Y-%m-%d}"] = now
            rig.clock.advance(HOUR)
            if rig.waiting:
                for message_id in await rig.process("sales", "stock"):
                    day_id, _, _ = message_id.partition(":late-")
                    processed.setdefault(day_id, []).append(rig.clock())
        assert (rig.scheduled, rig.waiting) == (0, 0)
    assert len(received) == 2 * 4
    assert {day: max(times) > received[day] for day, times in processed.items()} == (
        dict.fromkeys(received, True)
    )
    assert len(rig.processed) == len(set(rig.processed)), "no claim was processed twice"
    again = sorted(message_id for message_id in rig.processed if ":late-" in message_id)
    assert again == [
        "sales:2051-03-02:late-1",
        "sales:2051-03-02:late-3",
        "stock:2051-03-03:late-7",
    ]
    on_time = [moment for times in processed.values() for moment in times[:1]]
    assert {moment.hour for moment in on_time} == {1}


async def test_the_properties_of_queues_are_read_as_the_broker_describes_them() -> None:
    async with running_bus() as bus:
        working = await bus.queue(requires_session=True)
        window = timedelta(minutes=5)
        processing = await bus.queue(duplicate_window=window, forward_to=working)
        reader = ServiceBusQueueReader(bus.administration)
        try:
            assert await reader.facts(processing) == QueueDescription(
                processing, window, requires_session=False, forward_to=working
            )
            assert (await reader.facts(working)).requires_session
        finally:
            await reader.close()


@pytest.mark.parametrize(
    ("forward_to", "path"),
    [
        ("sb://shop.servicebus.windows.net/working", "working"),
        ("sb://shop.servicebus.chinacloudapi.cn/working", "working"),
        ("https://shop.servicebus.usgovcloudapi.net:443/Working/", "Working"),
        ("working", "working"),
    ],
)
async def test_the_properties_of_queues_are_read_in_any_azure_cloud(
    forward_to: str, path: str
) -> None:
    async with ServiceBusAdminStandIn() as admin:
        admin.declare_queue(
            "processing",
            RequiresDuplicateDetection="true",
            DuplicateDetectionHistoryTimeWindow="P1DT13H",
            ForwardTo=forward_to,
        )
        unused = {"DuplicateDetectionHistoryTimeWindow": "PT10M"}
        admin.declare_queue("working", RequiresSession="true", **unused)
        reader = ServiceBusQueueReader(ServiceBusConnection("Bus", admin.connection_string))
        try:
            assert await reader.facts("processing") == QueueDescription(
                "processing", timedelta(hours=37), requires_session=False, forward_to=path
            )
            assert await reader.facts("working") == QueueDescription(
                "working", None, requires_session=True, forward_to=None
            )
            await CheckOnce("processing", "working", [DAILY], reader).check()
            with pytest.raises(LinkFailed, match="queue none does not exist"):
                await reader.facts("none")
        finally:
            await reader.close()
