"""How far a consumer group was read: blobs in the container of the real host, in its form."""

from collections.abc import Callable

from azure.core.exceptions import ResourceExistsError
from azure.eventhub import EventData
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore
from azure.storage.blob.aio import ContainerClient

from local.functions_host.event_hub_invocation import PartitionPlace

CONTAINER = "azure-webjobs-eventhub"


class EventHubCheckpoints:
    """The checkpoints of one hub and consumer group, in a storage account."""

    def __init__(self, storage: str, place_of: Callable[[str], PartitionPlace]) -> None:
        self._storage = storage
        self._place_of = place_of
        self._store = BlobCheckpointStore.from_connection_string(storage, CONTAINER)

    async def prepare(self) -> None:
        """Make the container where it is missing."""
        async with ContainerClient.from_connection_string(self._storage, CONTAINER) as container:
            try:
                await container.create_container()
            except ResourceExistsError:
                return

    async def read_up_to(self, partition_id: str) -> int | None:
        """The sequence number of the last event that is done with; None where there is none."""
        place = self._place_of(partition_id)
        found = await self._store.list_checkpoints(place.namespace, place.hub, place.consumer_group)
        numbers = {each["partition_id"]: each["sequence_number"] for each in found}
        number = numbers.get(partition_id)
        return None if number is None else int(number)

    async def write(self, partition_id: str, event: EventData) -> None:
        """All up to and with this event is done with."""
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
