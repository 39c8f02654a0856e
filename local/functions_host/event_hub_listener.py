"""The Event Hub trigger: partitions side by side, each in order.

As the extension does, a checkpoint is written after each batch whether the function succeeded or
not; only a retry policy holds a partition. None is written once the host stops or another has
taken the partition over: such a batch is read again. Checkpoints and owners of partitions are
blobs in the container of the real host, in its form.

Simpler than the real host: partitions are balanced by azure-eventhub's own client, with owner
level 0; a batch is what has come, `minEventBatchSize` and `maxWaitTime` are not looked at.

Source: `EventHubListener.PartitionProcessor` of the Event Hubs extension.
"""

import asyncio
import logging
from collections.abc import Sequence

from azure.core.exceptions import ResourceExistsError
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient, PartitionContext
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore
from azure.storage.blob.aio import ContainerClient

from local.functions_host.app_settings import DEFAULT_CONNECTION as STORAGE
from local.functions_host.event_hub_invocation import (
    DEFAULT_GROUP,
    PartitionPlace,
    batch_invocation,
    event_invocation,
)
from local.functions_host.functions import Function
from local.functions_host.logs import log_event
from local.functions_host.retries import invoke_with_retries
from local.functions_host.services import Services
from local.functions_host.stopping import stops_within
from local.functions_host.worker import Invocation

DEFAULT_CONNECTION = "EventHub"
CONTAINER = "azure-webjobs-eventhub"
START, END = "-1", "@latest"
PAUSE_SECONDS = 2.0
"""After a failure to begin, before the next try."""


class EventHubListener:
    """Reads all partitions of a hub and runs the function on what comes."""

    def __init__(self, services: Services, function: Function) -> None:
        trigger, name = function.trigger, function.name
        settings = services.settings
        connection = trigger.text("connection", DEFAULT_CONNECTION)
        self._connection_string = settings.connection_string(connection, function=name)
        self._storage = settings.connection_string(STORAGE, function=name)
        self._services = services
        self._options = services.config.event_hubs
        self._function = function
        self._stopping = asyncio.Event()
        self._batches: dict[asyncio.Task[None], asyncio.Event] = {}
        self._uncheckpointed: dict[str, int] = {}
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to read."""
        self._loop = asyncio.create_task(self._run(), name=f"event hub {self._function.name}")

    async def stop(self) -> None:
        """Read no more and wait for the batches in work, without further retries."""
        self._stopping.set()
        for given_up in self._batches.values():
            given_up.set()
        if self._loop is not None:
            await self._loop

    async def _run(self) -> None:
        """Whatever breaks, begin again."""
        while not self._stopping.is_set():
            try:
                await self._make_container()
                await self._read()
            except Exception as error:
                self._log("receive_failed", repr(error))
                await stops_within(self._stopping, PAUSE_SECONDS)

    async def _read(self) -> None:
        """Until the host stops; by then no batch runs any more."""
        store = BlobCheckpointStore.from_connection_string(self._storage, CONTAINER)
        async with store, self._client(store) as client:
            reading = asyncio.create_task(
                client.receive_batch(
                    self._on_batch,
                    on_error=self._on_error,
                    max_batch_size=self._options.max_event_batch_size,
                    prefetch=self._options.prefetch_count,
                    starting_position=START if self._options.from_start else END,
                )
            )
            stopping = asyncio.ensure_future(self._stopping.wait())
            try:
                await asyncio.wait([reading, stopping], return_when=asyncio.FIRST_COMPLETED)
                await asyncio.gather(*self._batches)
                if reading.done():
                    reading.result()
            finally:
                stopping.cancel()
                await client.close()
                reading.cancel()  # it sleeps until partitions are to be balanced again
                await asyncio.gather(reading, return_exceptions=True)

    def _client(self, store: BlobCheckpointStore) -> EventHubConsumerClient:
        trigger = self._function.trigger
        return EventHubConsumerClient.from_connection_string(
            self._connection_string,
            trigger.text("consumerGroup") or DEFAULT_GROUP,
            eventhub_name=trigger.text("eventHubName"),
            checkpoint_store=store,
            load_balancing_interval=self._options.load_balancing_seconds,
        )

    async def _on_batch(self, context: PartitionContext, events: Sequence[EventData]) -> None:
        """In a task of its own: the client cancels its own, closed or robbed of a partition."""
        if not events or self._stopping.is_set():
            return
        given_up = asyncio.Event()
        task = asyncio.create_task(self._process(context, events, given_up))
        self._batches[task] = given_up
        task.add_done_callback(self._batches.pop)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            given_up.set()
            raise

    async def _process(
        self, context: PartitionContext, events: Sequence[EventData], given_up: asyncio.Event
    ) -> None:
        for invocation in self._invocations(context, events):
            if not given_up.is_set():
                await invoke_with_retries(
                    self._services.invoker, self._function, invocation, given_up
                )
        if not given_up.is_set():
            await self._checkpoint(context, events[-1])

    def _invocations(
        self, context: PartitionContext, events: Sequence[EventData]
    ) -> list[Invocation]:
        place = PartitionPlace(
            context.fully_qualified_namespace,
            context.eventhub_name,
            context.consumer_group,
            context.partition_id,
        )
        trigger = self._function.trigger
        if trigger.takes_many:
            return [batch_invocation(trigger, place, events)]
        return [event_invocation(trigger, place, event) for event in events]

    async def _checkpoint(self, context: PartitionContext, event: EventData) -> None:
        batches = self._uncheckpointed.get(context.partition_id, 0) + 1
        due = batches >= self._options.batch_checkpoint_frequency
        self._uncheckpointed[context.partition_id] = 0 if due else batches
        if not due:
            return
        try:
            await context.update_checkpoint(event)
        except Exception as error:  # the next batch writes a later one
            self._log("checkpoint_failed", f"partition {context.partition_id}: {error!r}")

    async def _on_error(self, context: PartitionContext | None, error: Exception) -> None:
        where = "" if context is None else f"partition {context.partition_id}: "
        self._log("receive_failed", f"{where}{error!r}")

    async def _make_container(self) -> None:
        async with ContainerClient.from_connection_string(self._storage, CONTAINER) as container:
            try:
                await container.create_container()
            except ResourceExistsError:
                return

    def _log(self, action: str, reason: str) -> None:
        name = self._function.name
        log_event(logging.WARNING, action, f"{name}: {reason}", function=name)
