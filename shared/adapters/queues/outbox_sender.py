"""Sends messages to a storage queue, and opens clients of storage queues.

Messages are sent as plain text, because the Functions host passes them on without decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from azure.core.exceptions import AzureError, ResourceExistsError, ResourceNotFoundError
from azure.storage.queue.aio import QueueClient, QueueServiceClient

from shared.adapters.azure.credentials import credential_for
from shared.adapters.azure.refusals import queue_access
from shared.adapters.azure.transport import STORAGE_RETRIES, ServerTimeTransport
from shared.ingestion.concurrency import task_runner
from shared.ingestion.errors import DependencyDown
from shared.ingestion.model import OutboxMessage, split
from shared.settings.connections import StorageConnection
from shared.values.redaction import redacting
from shared.values.text import one_line

AT_ONCE_MAX = 16


@redacting
class StorageQueueSender:
    """Sends texts or outbox messages to one queue, which is created if it does not exist."""

    def __init__(self, connection: StorageConnection, queue: str) -> None:
        self._access = queue_access(connection, queue)
        self._service = queue_service(connection)
        self._queue: QueueClient = self._service.get_queue_client(queue)
        self._run_tasks = task_runner(AT_ONCE_MAX)

    async def send(self, messages: Sequence[OutboxMessage]) -> None:
        """Send all messages. Raises DependencyDown if the queue cannot be reached."""
        await self.send_texts([text for message in messages for text in split(message.body)])

    async def send_texts(self, texts: Sequence[str]) -> None:
        """Send each text as one message. Raises DependencyDown if the queue cannot be reached."""
        try:
            await self._run_tasks([partial(self._send, text) for text in texts])
        except* AzureError as errors:
            name = self._queue.queue_name
            first = errors.exceptions[0]
            reason = self._access.refusal(first) or one_line(first)
            raise DependencyDown(f"sending to queue {name} failed: {reason}") from errors

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


def queue_service(connection: StorageConnection) -> QueueServiceClient:
    """A client of a storage account's queues."""
    options: dict[str, Any] = {"transport": ServerTimeTransport(), **STORAGE_RETRIES}
    if connection.connection_string:
        return QueueServiceClient.from_connection_string(connection.connection_string, **options)
    url = connection.queue_url
    return QueueServiceClient(url, credential_for(url, connection.client_id), **options)
