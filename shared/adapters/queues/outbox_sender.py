"""Sends the outbox to a storage queue, as text: the host hands it over as it is. And the client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from azure.core.exceptions import AzureError, ResourceExistsError, ResourceNotFoundError
from azure.storage.queue.aio import QueueClient, QueueServiceClient

from shared.adapters.azure.credentials import credential_for
from shared.adapters.azure.transport import ServerTimeTransport
from shared.ingestion.concurrency import task_runner
from shared.ingestion.errors import DependencyDown
from shared.ingestion.model import OutboxMessage
from shared.settings.connections import StorageConnection
from shared.values.redaction import redacting

AT_ONCE_MAX = 16
SOON_AGAIN = {
    "retry_total": 2,
    "initial_backoff": 0.2,
    "increment_base": 1,
    "random_jitter_range": 0,
}
"""By itself the client would wait for 15 s, and a partition with it."""


@redacting
class StorageQueueSender:
    """An outbox message that is a JSON array goes out as one queue message an element."""

    def __init__(self, connection: StorageConnection, queue: str) -> None:
        self._service = queue_service(connection, **SOON_AGAIN)
        self._queue: QueueClient = self._service.get_queue_client(queue)
        self._run_tasks = task_runner(AT_ONCE_MAX)

    async def send(self, messages: Sequence[OutboxMessage]) -> None:
        """Raises DependencyDown where the queue cannot be reached."""
        texts = [text for message in messages for text in split(message.body)]
        try:
            await self._run_tasks([partial(self._send, text) for text in texts])
        except* AzureError as errors:
            name = self._queue.queue_name
            raise DependencyDown(f"queue {name}: {errors.exceptions[0]}") from errors

    async def close(self) -> None:
        await self._service.close()

    async def _send(self, text: str) -> None:
        try:
            await self._queue.send_message(text)
        except ResourceNotFoundError:
            await self._create()
            await self._queue.send_message(text)

    async def _create(self) -> None:
        with suppress(ResourceExistsError):
            await self._queue.create_queue()


def split(body: str) -> Iterator[str]:
    """The messages that a body of the outbox stands for."""
    if not body.startswith("["):
        yield body
        return
    for each in json.loads(body):
        yield json.dumps(each, separators=(",", ":"))


def queue_service(connection: StorageConnection, **options: Any) -> QueueServiceClient:
    """A client; ``options`` are those of the SDK, such as how it tries again."""
    options = {"transport": ServerTimeTransport(), "retry_total": 1, **options}
    if connection.connection_string:
        return QueueServiceClient.from_connection_string(connection.connection_string, **options)
    url = connection.queue_url
    return QueueServiceClient(url, credential_for(url, connection.client_id), **options)
