"""azure-servicebus with and without an event loop, both behind one protocol."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from azure.servicebus import ServiceBusClient as WaitingClient
from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus import ServiceBusSender as WaitingSender
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

from shared.adapters.azure.credentials import credential_for
from shared.settings.connections import ServiceBusConnection
from shared.values.redaction import redacting

ATTEMPT_SECONDS = 20.0
"""Patience with the service: to open a link, or to take a batch. Without it a client waits for ever
for an answer that a network has swallowed. The client ignores ``idle_timeout``."""


@redacting
class AioSender:
    """Lets others run while it waits."""

    def __init__(self, sender: ServiceBusSender) -> None:
        self._sender = sender

    async def create_message_batch(self) -> ServiceBusMessageBatch:
        return await self._sender.create_message_batch()

    async def send_messages(self, batch: ServiceBusMessageBatch) -> None:
        await self._sender.send_messages(batch)

    async def look_again(self) -> None:
        if handler := getattr(self._sender, "_handler", None):
            try:
                await handler.do_work_async()
            except Exception as error:
                handled = await self._sender._handle_exception(error)  # type: ignore[no-untyped-call]
                raise handled from error

    async def close(self) -> None:
        await self._sender.close()


@redacting
class BlockingSender:
    """Blocks while it waits: its coroutines never suspend."""

    def __init__(self, sender: WaitingSender, attempt_seconds: float) -> None:
        self._sender, self._attempt_seconds = sender, attempt_seconds

    async def create_message_batch(self) -> ServiceBusMessageBatch:
        with _broken_after(self._attempt_seconds, self._sender):
            return self._sender.create_message_batch()

    async def send_messages(self, batch: ServiceBusMessageBatch) -> None:
        self._sender.send_messages(batch)

    async def look_again(self) -> None:
        if handler := getattr(self._sender, "_handler", None):
            try:
                handler.do_work()
            except Exception as error:
                raise self._sender._handle_exception(error) from error

    async def close(self) -> None:
        self._sender.close()


@redacting
class AioClient:
    """Opens senders that let others run."""

    def __init__(
        self,
        connection: ServiceBusConnection,
        entity: str,
        *,
        topic: bool,
        attempt_seconds: float = ATTEMPT_SECONDS,
    ) -> None:
        self._client = _aio(connection, _options(attempt_seconds))
        self._entity, self._topic = entity, topic

    def sender(self) -> AioSender:
        if self._topic:
            return AioSender(self._client.get_topic_sender(self._entity))
        return AioSender(self._client.get_queue_sender(self._entity))

    async def close(self) -> None:
        await self._client.close()


@redacting
class BlockingClient:
    """Opens senders that block."""

    def __init__(
        self,
        connection: ServiceBusConnection,
        entity: str,
        *,
        topic: bool,
        attempt_seconds: float = ATTEMPT_SECONDS,
    ) -> None:
        self._client = _waiting(connection, _options(attempt_seconds))
        self._entity, self._topic = entity, topic
        self._attempt_seconds = attempt_seconds

    def sender(self) -> BlockingSender:
        get = self._client.get_topic_sender if self._topic else self._client.get_queue_sender
        return BlockingSender(get(self._entity), self._attempt_seconds)

    async def close(self) -> None:
        self._client.close()


def _options(attempt_seconds: float) -> dict[str, Any]:
    """Attempts are counted and repeated by the sender, see BatchSender."""
    return {"retry_total": 0, "try_timeout": attempt_seconds}


@contextmanager
def _broken_after(seconds: float, sender: WaitingSender) -> Iterator[None]:
    """End the connection of a client that blocks: it waits for the greeting of the service with a
    socket that has no time-out, whatever its ``try_timeout`` says."""

    def break_off() -> None:
        with suppress(AttributeError, OSError):  # not connected yet, or no longer
            handler: Any = sender._handler
            handler._connection._transport.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, break_off)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _aio(connection: ServiceBusConnection, options: dict[str, Any]) -> ServiceBusClient:
    if connection.connection_string:
        return ServiceBusClient.from_connection_string(connection.connection_string, **options)
    credential = credential_for(connection.namespace, connection.client_id)
    return ServiceBusClient(connection.namespace, credential, **options)


def _waiting(connection: ServiceBusConnection, options: dict[str, Any]) -> WaitingClient:
    if connection.connection_string:
        return WaitingClient.from_connection_string(connection.connection_string, **options)
    from azure.identity import DefaultAzureCredential  # noqa: PLC0415  heavy to import

    chosen = {"managed_identity_client_id": connection.client_id} if connection.client_id else {}
    return WaitingClient(connection.namespace, DefaultAzureCredential(**chosen), **options)
