"""The Event Hub trigger: partitions run in parallel, and each is processed in order.

As in the extension, a checkpoint is written after each batch, whether or not the function
succeeded. Only a retry policy delays a partition. No checkpoint is written once the host stops or
another host has taken the partition over, so such a batch is read again. Checkpoints are blobs in
the container and the format of the real host.

Unlike in the real host, the table ``Ownership`` records which host reads which partition
(`event_hub_balancer`). Each partition has its own receiver, whose owner level increases with each
change of ownership. A batch holds the events that have arrived; `minEventBatchSize` and
`maxWaitTime` are ignored.

Source: `EventHubListener.PartitionProcessor` of the Event Hubs extension.
"""

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import Sequence

from azure.eventhub import EventData

from local.functions_host.connections import DEFAULT_CONNECTION as STORAGE
from local.functions_host.connections import Connection
from local.functions_host.errors import HostStartFailed
from local.functions_host.event_hub_balancer import (
    RENEWALS,
    HostBalancer,
    Lifetime,
    PartitionReader,
)
from local.functions_host.event_hub_invocation import (
    DEFAULT_GROUP,
    PartitionPlace,
    batch_invocation,
    event_invocation,
)
from local.functions_host.event_hub_reading import EventHubCheckpoints, PartitionReading
from local.functions_host.functions import Function
from local.functions_host.logs import log_event
from local.functions_host.retries import invoke_with_retries
from local.functions_host.services import Services
from local.functions_host.waiting import stops_within
from local.functions_host.worker import Invocation
from shared.ingestion.hub.client import EventHubReader, KnownPartitions
from shared.ingestion.hub.receiver import DeliverData, EventHubReceiver
from shared.ingestion.model import Ownership
from shared.ingestion.ownership.read_partition import RepeatedFailures
from shared.ingestion.store.owners import OwnershipStore
from shared.ingestion.store.tables import TableRows
from shared.settings.connections import EventHubConnection, StorageConnection, event_hub_connection

DEFAULT_CONNECTION = "EventHub"
START, END = "-1", "@latest"
PAUSE_SECONDS = 2.0
"""The pause between a failure and the next attempt."""


class EventHubListener:
    """Reads a share of a hub's partitions and runs the function on their events."""

    def __init__(self, services: Services, function: Function) -> None:
        settings = services.settings
        self._hub = _connection(services, function)
        self._group = function.trigger.text("consumerGroup") or DEFAULT_GROUP
        storage = settings.connection(STORAGE, function=function.name)
        self._services = services
        self._options = services.config.event_hubs
        self._function = function
        self._stopping = asyncio.Event()
        self._uncheckpointed: dict[str, int] = {}
        self._checkpoints = EventHubCheckpoints(storage, services.identities, self._place)
        self._owners = OwnershipStore(
            TableRows(_tables(storage)), self._hub.namespace, self._hub.hub, self._group
        )
        self._receiver = EventHubReceiver(
            self._hub,
            self._group,
            self._options.max_event_batch_size,
            prefetch=self._options.prefetch_count,
        )
        self._loop: asyncio.Task[None] | None = None
        self._failures = RepeatedFailures()

    async def start(self) -> None:
        """Start reading."""
        self._loop = asyncio.create_task(self._run(), name=f"event hub {self._function.name}")

    async def stop(self) -> None:
        """Stop reading and wait for running batches, without further retries. Then release the
        partitions."""
        self._stopping.set()
        if self._loop is not None:
            await self._loop

    async def _run(self) -> None:
        """Start again after any failure."""
        seconds = self._options.load_balancing_seconds
        try:
            while not self._stopping.is_set():
                try:
                    await self._checkpoints.prepare()
                    await self._reader().run(self._stopping, seconds)
                except Exception as error:
                    self._failed("receive_failed", repr(error))
                    await stops_within(self._stopping, PAUSE_SECONDS)
        finally:
            await self._checkpoints.close()
            await self._owners.close()

    def _reader(self) -> PartitionReader:
        lifetime = Lifetime(self._options.ownership_expiration_seconds)
        partitions = KnownPartitions(
            EventHubReader(self._hub, self._group), lifetime.seconds / RENEWALS
        )
        name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        return PartitionReader(
            HostBalancer(name, self._owners, lifetime),
            partitions.partition_ids,
            self._reading,
            self._balancing_failed,
            lifetime,
        )

    def _reading(self, lease: Ownership) -> PartitionReading:
        partition_id = lease.partition_id

        async def receive(deliver: DeliverData) -> None:
            done = await self._checkpoints.read_up_to(partition_id)
            beginning = START if self._options.from_start else END
            position = beginning if done is None else done
            await self._receiver.receive_data(partition_id, position, lease.epoch, deliver)

        async def process(events: Sequence[EventData], given_up: asyncio.Event) -> None:
            await self._process(partition_id, events, given_up)

        def failed(error: Exception) -> None:
            self._failed("receive_failed", f"partition {partition_id}: {error!r}")

        return PartitionReading(receive, process, failed, self._stopping)

    async def _process(
        self, partition_id: str, events: Sequence[EventData], given_up: asyncio.Event
    ) -> None:
        for invocation in self._invocations(partition_id, events):
            if not given_up.is_set():
                await invoke_with_retries(
                    self._services.invoker, self._function, invocation, given_up
                )
        if not given_up.is_set():
            await self._checkpoint(partition_id, events[-1])

    def _invocations(self, partition_id: str, events: Sequence[EventData]) -> list[Invocation]:
        trigger, place = self._function.trigger, self._place(partition_id)
        if trigger.takes_many:
            return [batch_invocation(trigger, place, events)]
        return [event_invocation(trigger, place, event) for event in events]

    def _place(self, partition_id: str) -> PartitionPlace:
        return PartitionPlace(self._hub.namespace, self._hub.hub, self._group, partition_id)

    async def _checkpoint(self, partition_id: str, event: EventData) -> None:
        batches = self._uncheckpointed.get(partition_id, 0) + 1
        due = batches >= self._options.batch_checkpoint_frequency
        self._uncheckpointed[partition_id] = 0 if due else batches
        if not due:
            return
        try:
            await self._checkpoints.write(partition_id, event)
        except Exception as error:  # The next batch writes a later checkpoint.
            self._failed("checkpoint_failed", f"partition {partition_id}: {error!r}")

    def _balancing_failed(self, error: Exception) -> None:
        if self._failures.should_log("balancing", repr(error), time.monotonic()):
            self._failed("balancing_failed", repr(error))

    def _failed(self, action: str, reason: str) -> None:
        self._log(logging.WARNING, action, reason)

    def _log(self, level: int, action: str, reason: str) -> None:
        name = self._function.name
        log_event(level, action, f"{name}: {reason}", function=name)


def _connection(services: Services, function: Function) -> EventHubConnection:
    trigger = function.trigger
    name = trigger.text("connection", DEFAULT_CONNECTION)
    found = services.settings.connection(name, function=function.name)
    hub = trigger.text("eventHubName")
    if not found.connection_string:
        return EventHubConnection(name, hub, found.namespace.lower(), identity=found.identity)
    connection = event_hub_connection({name: found.connection_string}, name, hub)
    if not isinstance(connection, EventHubConnection):
        raise HostStartFailed(f"function {function.name}: {connection or f'{name} is empty'}")
    return connection


def _tables(storage: Connection) -> StorageConnection:
    if storage.connection_string:
        return StorageConnection(STORAGE, storage.connection_string)
    url = storage.storage_url("table")
    return StorageConnection(STORAGE, table_url=url, identity=storage.identity)
