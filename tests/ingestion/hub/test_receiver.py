"""Receiving a partition with an owner level, by the real client.

The broker is the stand-in or Microsoft's emulator.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from shared.ingestion.errors import HubUnavailable
from shared.ingestion.hub.receiver import EventHubReceiver
from shared.ingestion.model import Event
from tests.emulators.rig import Hub, a_partition
from tests.local.polling import until

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

EVENTS = 450
SECONDS_MAX = 20.0


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    """A partition with EVENTS events."""
    async with a_partition() as hub:
        await hub.send(*[f"event {number}" for number in range(EVENTS)])
        yield hub


class Reading:
    """One receiver, the events that it received, and the task that it runs in."""

    def __init__(self, hub: Hub, after: int | None, epoch: int) -> None:
        self.batches: list[Sequence[Event]] = []
        self._first = hub.first
        receiver = EventHubReceiver(hub.connection, "$Default", batch_max=200, wait_seconds=0.2)
        self.task = asyncio.create_task(receiver.receive(hub.partition, after, epoch, self.deliver))

    async def deliver(self, events: Sequence[Event]) -> None:
        self.batches.append(events)

    @property
    def numbers(self) -> list[int]:
        """The events by their place among those of the test."""
        return [event.sequence - self._first for batch in self.batches for event in batch]

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


async def test_events_are_delivered_in_order_and_then_empty_batches_follow(
    hub: Hub,
) -> None:
    whole = Reading(hub, hub.after, 1)
    await until(lambda: len(whole.numbers) == EVENTS and whole.batches[-1] == [], SECONDS_MAX)
    await whole.stop()
    assert whole.numbers == list(range(EVENTS))
    assert max(len(batch) for batch in whole.batches) <= 200
    first = next(batch for batch in whole.batches if batch)
    assert first[0].body == b"event 0"
    rest = Reading(hub, hub.first + EVENTS - 10, 1)
    await until(lambda: len(rest.numbers) == 9, SECONDS_MAX)
    await rest.stop()
    assert rest.numbers == list(range(EVENTS - 9, EVENTS))


async def test_a_receiver_with_a_higher_epoch_ends_and_locks_out_the_lower_one(
    hub: Hub,
) -> None:
    old = Reading(hub, hub.after, 1)
    await until(lambda: bool(old.batches), SECONDS_MAX)
    new = Reading(hub, hub.after, 2)
    with pytest.raises(HubUnavailable, match="higher epoch"):
        await asyncio.wait_for(old.task, SECONDS_MAX)
    await until(lambda: len(new.numbers) == EVENTS, SECONDS_MAX)
    late = Reading(hub, hub.after, 1)
    with pytest.raises(HubUnavailable, match="epoch"):
        await asyncio.wait_for(late.task, SECONDS_MAX)
    await new.stop()


async def test_an_error_of_the_handler_or_a_missing_hub_ends_the_receiver(hub: Hub) -> None:
    async def fail(events: Sequence[Event]) -> None:
        raise ValueError(f"{events[0].sequence}")

    receiver = EventHubReceiver(hub.connection, "$Default")
    receiving = receiver.receive(hub.partition, hub.after, 1, fail)
    with pytest.raises(ValueError, match=rf"^{hub.first}$"):
        await asyncio.wait_for(receiving, SECONDS_MAX)
    gone = EventHubReceiver(replace(hub.connection, hub="nowhere"), "$Default")
    with pytest.raises(HubUnavailable):
        await asyncio.wait_for(gone.receive("0", None, 1, fail), SECONDS_MAX)
