"""Reads one partition under a lease, passes its batches to the function, and stores checkpoints.

Checkpoints are blobs in the container and the format of the real host.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from azure.core.exceptions import ResourceExistsError
from azure.eventhub import EventData
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore

from local.functions_host.connections import Connection, Identities
from local.functions_host.event_hub_invocation import PartitionPlace
from local.functions_host.host_blobs import container_client
from shared.ingestion.hub.receiver import DeliverData
from shared.values.concurrency import pause

CONTAINER = "azure-webjobs-eventhub"


class EventHubCheckpoints:
    """The checkpoints of one hub and consumer group, in a storage account."""

    def __init__(
        self,
        storage: Connection,
        identities: Identities,
        place_of: Callable[[str], PartitionPlace],
    ) -> None:
        self._storage = storage
        self._identities = identities
        self._place_of = place_of
        self._store = _checkpoint_store(storage, identities)

    async def prepare(self) -> None:
        """Create the container if it is missing."""
        async with container_client(self._storage, CONTAINER, self._identities) as container:
            try:
                await container.create_container()
            except ResourceExistsError:
                return

    async def read_up_to(self, partition_id: str) -> int | None:
        """The sequence number of the last processed event; None if there is no checkpoint."""
        place = self._place_of(partition_id)
        checkpoints = await self._store.list_checkpoints(
            place.namespace, place.hub, place.consumer_group
        )
        numbers = {each["partition_id"]: each["sequence_number"] for each in checkpoints}
        number = numbers.get(partition_id)
        return None if number is None else int(number)

    async def write(self, partition_id: str, event: EventData) -> None:
        """Record that all events up to and including this one are processed."""
        place = self._place_of(partition_id)
        await self._store.update_checkpoint(
            {
                "fully_qualified_namespace": place.namespace,
                "eventhub_name": place.hub,
                "consumer_group": place.consumer_group,
                "partition_id": partition_id,
                "sequence_number": event.sequence_number,
                "offset": event.offset,
            }
        )

    async def close(self) -> None:
        await self._store.close()


def _checkpoint_store(storage: Connection, identities: Identities) -> BlobCheckpointStore:
    if string := storage.connection_string:
        return BlobCheckpointStore.from_connection_string(string, CONTAINER)
    credential = identities.credential(storage)
    return BlobCheckpointStore(storage.storage_url("blob"), CONTAINER, credential=credential)


CLOSING_SECONDS_MAX = 20

Receive = Callable[[DeliverData], Awaitable[None]]
"""Delivers the events after the checkpoint. It ends only by failing."""
Process = Callable[[Sequence[EventData], asyncio.Event], Awaitable[None]]
"""Processes a batch. Once the event is set, it starts nothing more and writes no checkpoint."""


class PartitionReading:
    """Implements Reading. After any failure it starts again from the checkpoint."""

    error: BaseException | None = None

    def __init__(
        self,
        receive: Receive,
        process: Process,
        failed: Callable[[Exception], None],
        stopping: asyncio.Event,
    ) -> None:
        self._receive = receive
        self._process = process
        self._failed = failed
        self._stopping = stopping
        self._given_up = asyncio.Event()
        self._batch: asyncio.Future[None] | None = None
        self._failures = 0
        self._task = asyncio.create_task(self._run())

    def cancel(self) -> None:
        self._given_up.set()
        self._task.cancel()

    async def ended(self) -> None:
        """Wait for the end. A host that stops finishes its batch before another host may start.

        A host that lost the partition does not wait for its batch: that would be too late for
        this partition, and could cost the host its other partitions.
        """
        await asyncio.wait([self._task], timeout=CLOSING_SECONDS_MAX)
        if self._batch is not None and self._stopping.is_set():
            await asyncio.wait([self._batch])

    async def _run(self) -> None:
        while True:
            try:
                await self._receive(self._deliver)
            except Exception as error:
                self._failed(error)
                self._failures += 1
                await pause(self._failures)

    async def _deliver(self, events: Sequence[EventData]) -> None:
        """Process a batch in a task of its own, because an invocation must not be cancelled."""
        self._failures = 0
        if events and not self._given_up.is_set():
            work: Any = self._process(events, self._given_up)
            self._batch = batch = asyncio.ensure_future(work)
            await asyncio.shield(batch)
