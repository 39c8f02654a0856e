"""Reads and writes an event hub directly with azure-eventhub. The reader has no epoch, so it needs
a consumer group of its own beside the trigger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient, PartitionContext
from azure.eventhub.exceptions import EventHubError

from shared.ingestion.errors import HubMissing, HubUnavailable, NotFound
from shared.ingestion.hub.received import aware, to_event
from shared.ingestion.hub.receiver import EventHubReceiver, client_of, consumer_client, told
from shared.ingestion.model import Event, HubState, Span, Stream
from shared.ingestion.ports import HubPartitions, ReadBack
from shared.settings.connections import EventHubConnection
from shared.values.redaction import redacting

NOT_FOUND = "not-found"
TAKEN = ("link:stolen", "resource-limit-exceeded")
"""AMQP errors of a consumer group that exists, but admits no further reader without an epoch."""

READ_EVENTS_MAX = 1000
READ_BYTES_MAX = 8 * 1024 * 1024
"""The limits of one call."""


@redacting
class EventHubReader:
    """Reads events back. Each call opens a connection, because calls are rare."""

    def __init__(
        self,
        connection: EventHubConnection,
        consumer_group: str,
        timeout_seconds: float = 30,
        read_events_max: int = READ_EVENTS_MAX,
    ) -> None:
        self._connection = connection
        self._consumer_group = consumer_group
        self._timeout_seconds = timeout_seconds
        self._read_events_max = read_events_max

    async def partition_ids(self) -> tuple[str, ...]:
        async with self._asking("partitions") as client:
            return tuple(await client.get_partition_ids())

    async def check_group(self, consumer_group: str, partition_id: str) -> None:
        """See HubReader. The reader has no epoch, so it drives out no other reader."""
        hub = self._connection.hub
        try:
            async with self._asking(partition_id, consumer_group, retries=0) as client:
                await _open_reader(client, consumer_group, partition_id)
        except HubUnavailable as error:
            condition = getattr(error.__cause__, "error", "")
            if condition == NOT_FOUND:
                raise NotFound(
                    f"event hub {hub} has no consumer group {consumer_group!r}: create it, or "
                    "correct its name in the settings"
                ) from error
            if condition not in TAKEN:
                raise

    async def state(self, stream: Stream) -> HubState:
        async with self._asking(stream.partition_id) as client:
            hub = await client.get_eventhub_properties()
            partition = await client.get_partition_properties(stream.partition_id)
        last_enqueued = int(partition["last_enqueued_sequence_number"])
        newest_at = None if partition["is_empty"] else aware(partition["last_enqueued_time_utc"])
        return HubState(aware(hub["created_at"]), last_enqueued, newest_at)

    async def read_back(self, stream: Stream, span: Span) -> ReadBack:
        async with self._asking(stream.partition_id) as client:
            partition = await client.get_partition_properties(stream.partition_id)
            first = max(span.first, int(partition["beginning_sequence_number"]))
            if partition["is_empty"] or first > span.last:
                return ReadBack((), span.last)
            events = await self._read(stream.partition_id, first, span.last)
            partition = await client.get_partition_properties(stream.partition_id)
            oldest = None if partition["is_empty"] else int(partition["beginning_sequence_number"])
        within = tuple(event for event in events if event.sequence <= span.last)
        done = len(within) < len(events) or within[-1].sequence == span.last
        return ReadBack(within, span.last if done else within[-1].sequence, oldest)

    async def sequence_at(self, stream: Stream, time: datetime) -> int:
        async with self._asking(stream.partition_id) as client:
            partition = await client.get_partition_properties(stream.partition_id)
            newest = int(partition["last_enqueued_sequence_number"])
            if partition["is_empty"] or time > aware(partition["last_enqueued_time_utc"]):
                return newest + 1
            return (await self._read(stream.partition_id, time, 0))[0].sequence

    async def _read(self, partition_id: str, start: int | datetime, last: int) -> list[Event]:
        """The events from a sequence number or time up to ``last``, or up to a limit."""
        events = list[Event]()

        async def keep(batch: Sequence[EventData]) -> None:
            events.extend([to_event(data) for data in batch])
            size_bytes = sum([len(event.body) for event in events])
            enough = len(events) >= self._read_events_max or size_bytes >= READ_BYTES_MAX
            if enough or (events and events[-1].sequence >= last):
                raise _Enough

        most = min(300, self._read_events_max)
        receiver = EventHubReceiver(self._connection, self._consumer_group, batch_max=most)
        with suppress(_Enough):
            await receiver.receive_data(partition_id, start, None, keep, inclusive=True)
        return events

    @asynccontextmanager
    async def _asking(
        self, what: str, consumer_group: str = "", retries: int = 1
    ) -> AsyncIterator[EventHubConsumerClient]:
        """A client for one call. Raises HubUnavailable if the hub does not answer."""
        group = consumer_group or self._consumer_group
        where = f"{self._connection.hub}/{what}, consumer group {group}"
        try:
            async with asyncio.timeout(self._timeout_seconds):
                async with consumer_client(self._connection, group, retries) as client:
                    yield client
        except TimeoutError as error:
            seconds = self._timeout_seconds
            raise HubUnavailable(
                f"{where}: no answer within {seconds:g} s. Check that hub and consumer group exist"
            ) from error
        except (EventHubError, OSError) as error:
            is_missing = getattr(error, "error", "") == NOT_FOUND
            kind = HubMissing if is_missing else HubUnavailable
            raise kind(f"{where}: {told(error, self._connection)}") from error


class _Enough(Exception):
    """Ends the reading of events."""


async def _open_reader(
    client: EventHubConsumerClient, consumer_group: str, partition_id: str
) -> None:
    """Open a link. The service opens one that it refuses, and closes it in the next frame."""

    async def nothing(_context: PartitionContext, _event: EventData | None) -> None: ...

    reader: Any = client._create_consumer(consumer_group, partition_id, "@latest", nothing)
    try:
        await reader._open_with_retry()
        try:
            await reader._handler.do_work_async()
        except Exception as error:
            raise await reader._handle_exception(error) from error
    finally:
        await reader.close()


@redacting
@dataclass(slots=True)
class KnownPartitions:
    """Returns a hub's partitions, or the last known ones if it does not answer in time."""

    hub: HubPartitions
    timeout_seconds: float
    known: tuple[str, ...] = ()

    async def partition_ids(self) -> tuple[str, ...]:
        """The ids of the partitions. Raises HubUnavailable while none are known yet."""
        try:
            async with asyncio.timeout(self.timeout_seconds if self.known else None):
                self.known = await self.hub.partition_ids()
        except (HubUnavailable, TimeoutError):
            if not self.known:
                raise
        return self.known


SECONDS_MAX = 30


async def send_event(
    connection: EventHubConnection, body: bytes, seconds_max: float = SECONDS_MAX
) -> None:
    """Send one event. Raises HubUnavailable, also if the hub has not accepted it in time."""
    try:
        client = client_of(EventHubProducerClient, connection, retry_total=1)
        async with asyncio.timeout(seconds_max), client:
            await client.send_event(EventData(body))
    except TimeoutError as error:
        text = f"event hub {connection.hub}: no answer within {seconds_max:g} s"
        raise HubUnavailable(text) from error
    except (EventHubError, OSError) as error:
        text = told(error, connection, "Sender")
        raise HubUnavailable(f"{connection.hub}: {text}") from error
