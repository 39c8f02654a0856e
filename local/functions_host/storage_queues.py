"""Queue clients that share connections, the encoding of messages, and sending."""

import base64
import binascii
from enum import Enum
from typing import Any

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.core.pipeline.transport import AioHttpTransport
from azure.storage.queue.aio import QueueClient, QueueServiceClient

from local.functions_host.connections import Connection, Identities


class UndecodableMessage(ValueError):
    """The text of a message is not base64, although host.json requires base64."""


class MessageEncoding(Enum):
    """host.json's `extensions.queues.messageEncoding`."""

    BASE64 = "base64"
    NONE = "none"

    def decode(self, text: str) -> str:
        """The body for the function. Raises `UndecodableMessage`."""
        if self is MessageEncoding.NONE:
            return text
        try:
            # .NET skips white space inside base64 and replaces invalid UTF-8.
            return base64.b64decode("".join(text.split()), validate=True).decode(errors="replace")
        except (binascii.Error, ValueError) as error:
            raise UndecodableMessage(str(error)) from error


# The SDK waits 15 s before its first retry. On one machine, that only hides a stopped emulator.
_RETRY_AFTER_SECONDS = 1


class StorageQueues:
    """Queue clients by connection and name, with one connection pool for each connection."""

    def __init__(self, identities: Identities | None = None) -> None:
        self._identities = identities or Identities()
        self._services: dict[Connection, QueueServiceClient] = {}
        self._clients: dict[tuple[Connection, str], QueueClient] = {}

    def client(self, connection: Connection, queue: str) -> QueueClient:
        """The client of a queue. The queue need not exist."""
        key = (connection, queue)
        if key not in self._clients:
            self._clients[key] = self._service(connection).get_queue_client(queue)
        return self._clients[key]

    async def close(self) -> None:
        """Close every connection."""
        for service in self._services.values():
            await service.close()
        self._services.clear()
        self._clients.clear()

    def _service(self, connection: Connection) -> QueueServiceClient:
        if connection not in self._services:
            self._services[connection] = self._open(connection)
        return self._services[connection]

    def _open(self, connection: Connection) -> QueueServiceClient:
        options: dict[str, Any] = {
            "initial_backoff": _RETRY_AFTER_SECONDS,
            "increment_base": 2,
            # Loopback needs no proxy, and looking for one costs a thread for each request.
            "transport": AioHttpTransport(use_env_settings=False),
        }
        if string := connection.connection_string:
            return QueueServiceClient.from_connection_string(string, **options)
        credential = self._identities.credential(connection)
        return QueueServiceClient(connection.storage_url("queue"), credential, **options)


async def send(queue: QueueClient, text: str) -> None:
    """Send a message's text unchanged. Creates the queue if it is missing."""
    try:
        await queue.send_message(text)
    except ResourceNotFoundError:
        await _create(queue)
        await queue.send_message(text)


async def _create(queue: QueueClient) -> None:
    try:
        await queue.create_queue()
    except ResourceExistsError:
        return  # Another invocation created it first.
