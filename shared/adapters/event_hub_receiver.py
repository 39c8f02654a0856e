"""Receives partitions with azure-eventhub, each under an owner level of its own.

The client's own balancing and checkpoints are not used: who reads what, and from where, is said
from outside. A client that reports an error is given up; it would start again where it began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient
from azure.eventhub.exceptions import EventHubError

from shared.adapters.event_hub_events import event_of
from shared.ingestion.errors import HubUnavailable
from shared.ingestion.model import Event, Stream
from shared.ingestion.ports import ReadBack
from shared.ingestion.survey import Span

OpenClient = Callable[[], EventHubConsumerClient]
Deliver = Callable[[Sequence[Event]], Awaitable[None]]
FROM_THE_START = "-1"
CLOSE_SECONDS_MAX = 10


@dataclass(frozen=True, slots=True)
class EventHubReceiver:
    """``open_client`` gives a new client at each call, without retries of its own."""

    open_client: OpenClient
    batch_max: int = 300
    wait_seconds: float = 5
    """An empty batch is delivered after so long without an event."""

    async def receive(
        self, partition_id: str, after: int | None, epoch: int, deliver: Deliver
    ) -> None:
        """See PartitionReceiver. Closing takes the client up to a second or two."""
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        client = self.open_client()
        receiving = asyncio.create_task(
            client.receive_batch(
                on_event_batch=_delivering(deliver, failed),
                on_error=_reporting(partition_id, failed),
                partition_id=partition_id,
                owner_level=epoch,
                starting_position=FROM_THE_START if after is None else after,
                max_batch_size=self.batch_max,
                max_wait_time=self.wait_seconds,
                prefetch=self.batch_max,
            )
        )
        receiving.add_done_callback(lambda ended: _fail(failed, _ending(ended)))
        try:
            await failed
        finally:
            receiving.cancel()
            await asyncio.wait([receiving], timeout=CLOSE_SECONDS_MAX)
            await asyncio.wait([asyncio.create_task(client.close())], timeout=CLOSE_SECONDS_MAX)


@dataclass(slots=True)
class EventHubFacts:
    """What a hub tells without a receiver, which an owner level of another would keep out."""

    open_client: OpenClient
    doubted: dict[Stream, int] = field(default_factory=dict)
    _client: EventHubConsumerClient | None = None

    async def partition_ids(self) -> tuple[str, ...]:
        return tuple(await self._ask(lambda client: client.get_partition_ids()))

    async def last_enqueued(self, stream: Stream) -> int:
        return int((await self._properties(stream))["last_enqueued_sequence_number"])

    async def read_back(self, stream: Stream, span: Span) -> ReadBack:
        """What is missing before an event that the receiver delivered.

        Numbers before the hub's first one are gone. Others are read again from the checkpoint on
        by way of HubUnavailable; what is missing once more then is not in the hub, for events
        come in order.
        """
        first = int((await self._properties(stream))["beginning_sequence_number"])
        if span.first < first:
            return ReadBack((), min(span.last, first - 1))
        if self.doubted.get(stream) == span.first:
            return ReadBack((), span.last)
        self.doubted[stream] = span.first
        raise HubUnavailable(f"{span.first} to {span.last} did not come: read again")

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _properties(self, stream: Stream) -> dict[str, Any]:
        partition_id = stream.partition_id
        told = await self._ask(lambda client: client.get_partition_properties(partition_id))
        return dict(told)

    async def _ask(self, question: Callable[[EventHubConsumerClient], Awaitable[Any]]) -> Any:
        self._client = self._client or self.open_client()
        try:
            return await question(self._client)
        except (EventHubError, OSError) as error:
            await self.close()
            raise HubUnavailable(f"{type(error).__name__}: {error}") from error


def _delivering(
    deliver: Deliver, failed: asyncio.Future[None]
) -> Callable[[Any, list[EventData]], Awaitable[None]]:
    async def on_batch(_context: Any, batch: list[EventData]) -> None:
        if failed.done():
            return
        try:
            await deliver([event_of(data) for data in batch])
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
