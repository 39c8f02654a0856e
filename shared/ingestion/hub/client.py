"""Reads and writes an event hub directly with azure-eventhub, independently of the trigger.

The trigger reads with an epoch. The service then admits no reader without an epoch to the same
consumer group, so this reader needs a consumer group of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from azure.eventhub import EventData, TransportType
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient, PartitionContext
from azure.eventhub.exceptions import EventHubError

from shared.azure.amqp import amqp_options
from shared.azure.credentials import credential_for
from shared.azure.refusals import event_hub_access
from shared.ingestion.errors import HubMissing, HubUnavailable, NotFound
from shared.ingestion.hub.received import aware, to_event
from shared.ingestion.model import Event, HubState, Span, Stream
from shared.ingestion.ports import HubPartitions, ReadBack
from shared.settings.connections import EventHubConnection
from shared.values.redaction import redacting
from shared.values.text import one_line

Client = TypeVar("Client", EventHubConsumerClient, EventHubProducerClient)

NOT_FOUND = "not-found"
TAKEN = ("link:stolen", "resource-limit-exceeded")
"""AMQP errors of a consumer group that exists, but admits no further reader without an epoch."""

READ_EVENTS_MAX = 1000
READ_BYTES_MAX = 8 * 1024 * 1024
"""The limits of one call, in events and bytes. The next call continues where it stopped."""

IDLE_SECONDS_MAX = 20.0
"""A connection is closed as broken if no frame arrives for this many seconds. The client asks the
service for a frame twice in this time. Without the limit, the client would wait indefinitely on a
network that drops packets.
"""

BACKOFF_FACTOR = 0.1
"""A client pauses for this many seconds times 2, 4, 8 and so on before it retries a call."""


@redacting
class EventHubReader:
    """Reads events back. Each call opens a connection, because calls are rare, and a connection
    that is kept open for long may break.
    """

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
            events = await self._read(client, stream.partition_id, first, span.last)
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
            return (await self._read(client, stream.partition_id, time, 0))[0].sequence

    async def _read(
        self,
        client: EventHubConsumerClient,
        partition_id: str,
        start: int | datetime,
        last: int,
    ) -> list[Event]:
        """The events from a sequence number or time up to ``last``, or fewer if a limit is
        reached."""
        events = list[Event]()
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def on_batch(_context: PartitionContext, batch: Sequence[EventData]) -> None:
            if ended.done():
                return
            events.extend([to_event(data) for data in batch])
            size_bytes = sum([len(event.body) for event in events])
            enough = len(events) >= self._read_events_max or size_bytes >= READ_BYTES_MAX
            if enough or (events and events[-1].sequence >= last):
                ended.set_result(None)

        async def on_error(_context: PartitionContext | None, error: Exception) -> None:
            if not ended.done():
                ended.set_exception(error)

        receiving = asyncio.ensure_future(
            client.receive_batch(
                on_batch,
                on_error=on_error,
                partition_id=partition_id,
                starting_position=start,
                starting_position_inclusive=True,
                max_batch_size=min(300, self._read_events_max),
            )
        )
        try:
            await asyncio.wait([receiving, ended], return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await receiving  # this raises, because receiving only ends with an error
            await ended
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
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


async def _open_reader(
    client: EventHubConsumerClient, consumer_group: str, partition_id: str
) -> None:
    """Open a link. ``receive`` would not do: it repeats a refused link without reporting that.

    The service opens a link that it refuses, and closes it in the next frame.
    """

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
    """Returns the partitions of a hub, or the last known ones if it does not answer in time.

    Leases must be renewed in time even if the hub does not answer. Otherwise all processors that
    wait for the hub's answer would lose their partitions.
    """

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


def told(error: Exception, connection: EventHubConnection, right: str = "Receiver") -> str:
    """The error of the client in one line, with advice if access was refused."""
    refusal = event_hub_access(connection, right).refusal(error)
    return refusal or f"{type(error).__name__}: {one_line(error)}"


def consumer_client(
    connection: EventHubConnection,
    consumer_group: str,
    retries: int,
    idle_seconds: float = IDLE_SECONDS_MAX,
) -> EventHubConsumerClient:
    """A new client that receives events. It also retries what never succeeds, such as reading a hub
    that was deleted, so its pauses are short."""
    return client_of(
        EventHubConsumerClient,
        connection,
        consumer_group=consumer_group,
        retry_total=retries,
        retry_backoff_factor=BACKOFF_FACTOR,
        idle_timeout=idle_seconds,
    )


def client_of(kind: type[Client], connection: EventHubConnection, **options: Any) -> Client:
    """A new client, with a connection string or the app's identity. It connects on first use."""
    options = {"eventhub_name": connection.hub, "idle_timeout": IDLE_SECONDS_MAX, **options}
    options |= amqp_options(connection.transport, TransportType)
    if connection.connection_string:
        return kind.from_connection_string(connection.connection_string, **options)
    credential = credential_for(connection.namespace, connection.identity)
    return kind(connection.namespace, credential=credential, **options)


SECONDS_MAX = 30


async def send_event(
    connection: EventHubConnection, body: bytes, seconds_max: float = SECONDS_MAX
) -> None:
    """Send one event, and return when the hub has accepted it. Raises HubUnavailable, also if the
    hub has not accepted it within ``seconds_max``.
    """
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
