"""Receives partitions with azure-eventhub, each under an owner level of its own.

The client's own balancing and checkpoints are not used: who reads what, and from where, is said
from outside. A client that reports an error is given up; it would start again where it began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from azure.eventhub import EventData

from shared.adapters.event_hubs import consumer_client, to_event
from shared.connections import EventHubConnection
from shared.ingestion.errors import HubUnavailable
from shared.ingestion.model import Event

Deliver = Callable[[Sequence[Event]], Awaitable[None]]
DeliverData = Callable[[Sequence[EventData]], Awaitable[None]]
FROM_THE_START = "-1"
CLOSE_SECONDS_MAX = 10


@dataclass(frozen=True, slots=True)
class EventHubReceiver:
    """One client for each partition that is read, without retries of its own."""

    connection: EventHubConnection
    consumer_group: str
    batch_max: int = 300
    wait_seconds: float = 5
    """An empty batch is delivered after so long without an event."""
    prefetch: int = 300

    async def receive(
        self, partition_id: str, after: int | None, epoch: int, deliver: Deliver
    ) -> None:
        """See PartitionReceiver."""

        async def deliver_events(batch: Sequence[EventData]) -> None:
            await deliver([to_event(data) for data in batch])

        position = FROM_THE_START if after is None or after < 0 else after
        await self.receive_data(partition_id, position, epoch, deliver_events)

    async def receive_data(
        self, partition_id: str, position: int | str, epoch: int, deliver: DeliverData
    ) -> None:
        """The client's own events behind a number or place, otherwise like ``receive``.

        Closing takes the client up to a second or two.
        """
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        client = consumer_client(self.connection, self.consumer_group, 0)
        receiving = asyncio.create_task(
            client.receive_batch(
                on_event_batch=_delivering(deliver, failed),
                on_error=_reporting(partition_id, failed),
                partition_id=partition_id,
                owner_level=epoch,
                starting_position=position,
                max_batch_size=self.batch_max,
                max_wait_time=self.wait_seconds,
                prefetch=self.prefetch,
            )
        )
        receiving.add_done_callback(lambda ended: _fail(failed, _ending(ended)))
        try:
            await failed
        finally:
            receiving.cancel()
            await asyncio.wait([receiving], timeout=CLOSE_SECONDS_MAX)
            await asyncio.wait([asyncio.create_task(client.close())], timeout=CLOSE_SECONDS_MAX)


def _delivering(
    deliver: DeliverData, failed: asyncio.Future[None]
) -> Callable[[Any, list[EventData]], Awaitable[None]]:
    async def on_batch(_context: Any, batch: list[EventData]) -> None:
        if failed.done():
            return
        try:
            await deliver(batch)
        except Exception as error:
            _fail(failed, error)

    return on_batch


def _reporting(
    partition_id: str, failed: asyncio.Future[None]
) -> Callable[[Any, Exception], Awaitable[None]]:
    async def on_error(_context: Any, error: Exception) -> None:
        _fail(failed, HubUnavailable(f"partition {partition_id}: {type(error).__name__}: {error}"))

    return on_error


def _ending(ended: asyncio.Task[None]) -> Exception:
    error = None if ended.cancelled() else ended.exception()
    return HubUnavailable(f"receiving ended: {type(error).__name__}: {error}")


def _fail(failed: asyncio.Future[None], error: Exception) -> None:
    if not failed.done():
        failed.set_exception(error)
