"""Receives the events of partitions with azure-eventhub, each with its own owner level. A client
that reports an error is closed, because it would start again from its first position. So is one
that delivers no batch for too long, because a refused client reconnects without end, silently."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from azure.eventhub import EventData, TransportType
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient

from shared.azure.credentials import credential_for
from shared.azure.refusals import event_hub_access
from shared.ingestion.errors import HubSilent, HubUnavailable
from shared.ingestion.hub.received import to_event
from shared.ingestion.model import Event
from shared.settings.connections import EventHubConnection
from shared.values.redaction import redacting
from shared.values.text import one_line

Deliver = Callable[[Sequence[Event]], Awaitable[None]]
DeliverData = Callable[[Sequence[EventData]], Awaitable[None]]
Client = TypeVar("Client", EventHubConsumerClient, EventHubProducerClient)
FROM_THE_START = "-1"
CLOSE_SECONDS_MAX = 10
IDLE_SECONDS_MAX = 20.0
"""A connection without a frame for so long is closed as broken; otherwise the client would wait for
ever on a network that drops packets. It asks for a frame twice in this time."""

BACKOFF_FACTOR = 0.1
"""A client retries after this many seconds times 2, 4, 8 and so on."""


@redacting
@dataclass(frozen=True, slots=True)
class EventHubReceiver:
    """See PartitionReceiver. Each call opens a client for one partition, without retries."""

    connection: EventHubConnection
    consumer_group: str
    batch_max: int = 300
    wait_seconds: float = 5
    """After this many seconds without an event, an empty batch is delivered."""
    prefetch: int = 300
    silent_seconds_max: float = 20
    """After this many seconds without even an empty batch, the hub counts as silent."""
    idle_seconds: float = IDLE_SECONDS_MAX

    async def receive(
        self, partition_id: str, after: int | None, epoch: int, deliver: Deliver
    ) -> None:
        """See PartitionReceiver."""

        async def deliver_events(batch: Sequence[EventData]) -> None:
            await deliver([to_event(data) for data in batch])

        position = FROM_THE_START if after is None or after < 0 else after
        await self.receive_data(partition_id, position, epoch, deliver_events)

    async def receive_data(
        self,
        partition_id: str,
        position: int | str | datetime,
        epoch: int | None,
        deliver: DeliverData,
        *,
        inclusive: bool = False,
    ) -> None:
        """Like ``receive``, but for the client's own events after a number, offset or time. The
        batch in progress is finished first, because a slow handler may cause the hub's error."""
        client = consumer_client(self.connection, self.consumer_group, 0, self.idle_seconds)
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        delivery = _Delivery(deliver, failed, partial(_attached, client))
        receiving = asyncio.create_task(
            client.receive_batch(
                on_event_batch=delivery.on_batch,
                on_error=self._reporting(partition_id, failed),
                partition_id=partition_id,
                owner_level=epoch,
                starting_position=position,
                starting_position_inclusive=inclusive,
                max_batch_size=self.batch_max,
                max_wait_time=self.wait_seconds,
                prefetch=self.prefetch,
            )
        )
        receiving.add_done_callback(lambda ended: _fail(failed, _ending(ended)))
        watching = asyncio.create_task(self._watch(partition_id, delivery))
        try:
            await failed
        except HubUnavailable:
            await delivery.resting.wait()
            raise
        finally:
            watching.cancel()
            receiving.cancel()
            await asyncio.wait([receiving], timeout=CLOSE_SECONDS_MAX)
            await asyncio.wait([asyncio.create_task(client.close())], timeout=CLOSE_SECONDS_MAX)

    def _reporting(
        self, partition_id: str, failed: asyncio.Future[None]
    ) -> Callable[[Any, Exception], Awaitable[None]]:
        async def on_error(_context: Any, error: Exception) -> None:
            text = told(error, self.connection)
            _fail(failed, HubUnavailable(f"partition {partition_id}: {text}"))

        return on_error

    async def _watch(self, partition_id: str, delivery: _Delivery) -> None:
        """End the delivery with HubSilent if no batch arrives for too long."""
        while delivery.silent_seconds < self.silent_seconds_max:  # noqa: ASYNC110  polls the time
            await asyncio.sleep(self.silent_seconds_max - delivery.silent_seconds)
        seconds, hub = self.silent_seconds_max, self.connection.hub
        text = (
            f"partition {partition_id}: the hub sent neither a batch nor an error for {seconds:g} "
            f"s: check that consumer group {self.consumer_group!r} of hub {hub!r} exists and that "
            "this process may read it"
        )
        _fail(delivery.failed, HubSilent(text))


@dataclass(slots=True)
class _Delivery:
    """Passes batches to a handler until one fails, and measures the time without a batch."""

    deliver: DeliverData
    failed: asyncio.Future[None]
    attached: Callable[[], bool]
    resting: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no batch is being handled."""
    rests_since: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.resting.set()

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last batch was handled; 0 while one is being handled."""
        return time.monotonic() - self.rests_since if self.resting.is_set() else 0

    async def on_batch(self, _context: Any, batch: list[EventData]) -> None:
        if self.failed.done() or not (batch or self.attached()):
            return
        self.resting.clear()
        try:
            await self.deliver(batch)
        except Exception as error:
            _fail(self.failed, error)
        finally:
            self.rests_since = time.monotonic()
            self.resting.set()


def _attached(client: EventHubConsumerClient) -> bool:
    """Whether the link is open. Only internals of the client show that."""
    processors = client._event_processors.values()
    return any(each.running for processor in processors for each in processor._consumers.values())


def _ending(ended: asyncio.Task[None]) -> Exception:
    error = None if ended.cancelled() else ended.exception()
    name = type(error).__name__
    return HubUnavailable(f"the client stopped receiving: {name}: {one_line(error)}")


def _fail(failed: asyncio.Future[None], error: Exception) -> None:
    if not failed.done():
        failed.set_exception(error)


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
    """A client that receives. Its pauses are short, because it also retries what never succeeds."""
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
    options |= connection.transport.options(TransportType)
    if connection.connection_string:
        return kind.from_connection_string(connection.connection_string, **options)
    credential = credential_for(connection.namespace, connection.identity)
    return kind(connection.namespace, credential=credential, **options)
