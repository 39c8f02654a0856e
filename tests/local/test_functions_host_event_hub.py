"""Reading a partition under a lease, and a batch that is in progress when the lease ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from azure.eventhub import EventData

from local.functions_host import event_hub_reading
from local.functions_host.event_hub_reading import PartitionReading
from shared.ingestion.errors import HubUnavailable
from shared.ingestion.hub.receiver import DeliverData

BATCH = [EventData("a")]
SECONDS_MAX = 60.0


@dataclass
class World:
    """A hub that delivers one batch for each receiver, and a function that waits for the test."""

    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    checkpoints: int = 0
    received: int = 0
    failures: list[str] = field(default_factory=list)
    breaks: bool = False

    def reading(self) -> PartitionReading:
        return PartitionReading(self.receive, self.process, self.failed, self.stopping)

    async def receive(self, deliver: DeliverData) -> None:
        self.received += 1
        if self.breaks and self.received == 1:
            raise HubUnavailable("no answer")
        await deliver(BATCH)
        await asyncio.Event().wait()

    async def process(self, events: Sequence[EventData], given_up: asyncio.Event) -> None:
        assert events == BATCH
        self.begun.set()
        await self.may_end.wait()
        self.checkpoints += not given_up.is_set()

    def failed(self, error: Exception) -> None:
        self.failures.append(str(error))


@pytest.fixture
def world() -> World:
    return World()


async def test_a_host_that_lost_a_partition_does_not_wait_and_writes_no_checkpoint(
    world: World,
) -> None:
    reading = world.reading()
    await world.begun.wait()
    reading.cancel()
    await asyncio.wait_for(reading.ended(), SECONDS_MAX)
    world.may_end.set()
    await asyncio.sleep(0)
    assert world.checkpoints == 0


async def test_a_stopping_host_finishes_the_batch_before_it_releases_the_partition(
    world: World,
) -> None:
    reading = world.reading()
    await world.begun.wait()
    world.stopping.set()
    reading.cancel()
    ended = asyncio.create_task(reading.ended())
    _, waiting = await asyncio.wait([ended], timeout=0.05)
    assert waiting, "the function still runs"
    world.may_end.set()
    await asyncio.wait_for(ended, SECONDS_MAX)
    assert world.checkpoints == 0, "a batch that a stop interrupts is read again"


async def test_reading_starts_again_after_a_failure(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[int] = []

    async def pause(failures: int) -> None:
        pauses.append(failures)

    monkeypatch.setattr(event_hub_reading, "pause", pause)
    world.breaks = True
    world.may_end.set()
    reading = world.reading()
    await world.begun.wait()
    await asyncio.sleep(0)
    assert (world.failures, pauses, world.checkpoints) == (["no answer"], [1], 1)
    reading.cancel()
    await reading.ended()
