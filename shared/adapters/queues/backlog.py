"""Storage queues: how many messages wait."""

from __future__ import annotations

from typing import Any

from azure.core.exceptions import ResourceNotFoundError
from azure.storage.queue.aio import QueueServiceClient

from shared.adapters.azure.credentials import credential_for
from shared.adapters.azure.transport import ServerTimeTransport, server_time
from shared.autoscaling.declaring import StorageQueue
from shared.autoscaling.errors import ReadFailed
from shared.autoscaling.measurements import MetricValue
from shared.settings.connections import StorageConnection
from shared.values.redaction import redacting


@redacting
class StorageQueueReader:
    """Reads the lengths of the queues of one storage account."""

    def __init__(self, connection: StorageConnection) -> None:
        self._client = queue_service(connection)

    async def read(self, source: StorageQueue) -> MetricValue:
        try:
            properties = await self._client.get_queue_client(source.queue).get_queue_properties()
        except ResourceNotFoundError as error:
            raise ReadFailed(
                f"queue {source.queue} does not exist ({source.connection})"
            ) from error
        count = properties.approximate_message_count
        if count is None:
            raise ReadFailed(f"queue {source.queue} answered without a count")
        return MetricValue(server_time(), float(count))

    async def close(self) -> None:
        await self._client.close()


def queue_service(connection: StorageConnection, **options: Any) -> QueueServiceClient:
    """A client; ``options`` are those of the SDK, such as how it tries again."""
    options = {"transport": ServerTimeTransport(), "retry_total": 1, **options}
    if connection.connection_string:
        return QueueServiceClient.from_connection_string(connection.connection_string, **options)
    url = connection.queue_url
    return QueueServiceClient(url, credential_for(url, connection.client_id), **options)
