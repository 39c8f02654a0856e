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

from shared.azure.credentials import credential_for
from shared.azure.refusals import queue_access
from shared.azure.transport import STORAGE_RETRIES, ServerTimeTransport
from shared.settings.connections import StorageConnection
from shared.values.concurrency import task_runner
from shared.values.messages import TextsNotSent
from shared.values.redaction import redacting
from shared.values.text import one_line

AT_ONCE_MAX = 16
TEXT_REFUSED = (400, 413)
"""The status codes of a text that the queue does not take, because of its characters or size."""


@redacting
class StorageQueueSender:
    """Sends texts to one queue, which is created if it does not exist."""

    def __init__(self, connection: StorageConnection, queue: str) -> None:
        self._access = queue_access(connection, queue)
        self._service = queue_service(connection)
        self._queue: QueueClient = self._service.get_queue_client(queue)
        self._run_tasks = task_runner(AT_ONCE_MAX)

    async def send_texts(self, texts: Sequence[str]) -> None:
        """Send each text as one message. Raises TextsNotSent if some were not: after an error that
        does not blame the text itself, no further text is sent."""
        sent, errors = set[int](), list[AzureError]()

        async def send(place: int) -> None:
            if all(getattr(error, "status_code", None) in TEXT_REFUSED for error in errors):
                try:
                    await self._send(texts[place])
                    sent.add(place)
                except AzureError as error:
                    errors.append(error)

        await self._run_tasks([partial(send, place) for place in range(len(texts))])
        if errors:
            reason = self._access.refusal(errors[0]) or one_line(errors[0])
            name = self._queue.queue_name
            raise TextsNotSent(
                f"sending to queue {name} failed: {reason}", frozenset(sent)
            ) from errors[0]

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
    options: dict[str, Any] = {"transport": ServerTimeTransport(), **STORAGE_RETRIES}
    if connection.connection_string:
        return QueueServiceClient.from_connection_string(connection.connection_string, **options)
    url = connection.queue_url
    return QueueServiceClient(url, credential_for(url, connection.identity), **options)
