"""azure-servicebus with and without an event loop, both behind one protocol."""

from __future__ import annotations

from typing import Any

from azure.servicebus import ServiceBusClient as WaitingClient
from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus import ServiceBusSender as WaitingSender
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

from shared.adapters.credentials import credential_for
from shared.connections import ServiceBusConnection
from shared.redaction import redacting

NO_RETRY: dict[str, Any] = {"retry_total": 0}


@redacting
class AioSender:
    """Lets others run while it waits."""

    def __init__(self, sender: ServiceBusSender) -> None:
        self._sender = sender

    async def create_message_batch(self) -> ServiceBusMessageBatch:
        return await self._sender.create_message_batch()

    async def send_messages(self, batch: ServiceBusMessageBatch, seconds: float) -> None:
        await self._sender.send_messages(batch, timeout=seconds)

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

    def __init__(self, sender: WaitingSender) -> None:
        self._sender = sender

    async def create_message_batch(self) -> ServiceBusMessageBatch:
        return self._sender.create_message_batch()

    async def send_messages(self, batch: ServiceBusMessageBatch, seconds: float) -> None:
        self._sender.send_messages(batch, timeout=seconds)

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

    def __init__(self, connection: ServiceBusConnection, entity: str, *, topic: bool) -> None:
        self._client = _aio(connection)
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

    def __init__(self, connection: ServiceBusConnection, entity: str, *, topic: bool) -> None:
        self._client = _waiting(connection)
        self._entity, self._topic = entity, topic

    def sender(self) -> BlockingSender:
        if self._topic:
            return BlockingSender(self._client.get_topic_sender(self._entity))
        return BlockingSender(self._client.get_queue_sender(self._entity))

    async def close(self) -> None:
        self._client.close()


def _aio(connection: ServiceBusConnection) -> ServiceBusClient:
    if connection.connection_string:
        return ServiceBusClient.from_connection_string(connection.connection_string, **NO_RETRY)
    credential = credential_for(connection.namespace, connection.client_id)
    return ServiceBusClient(connection.namespace, credential, **NO_RETRY)


def _waiting(connection: ServiceBusConnection) -> WaitingClient:
    if connection.connection_string:
        return WaitingClient.from_connection_string(connection.connection_string, **NO_RETRY)
    from azure.identity import DefaultAzureCredential  # noqa: PLC0415  heavy to import

    chosen = {"managed_identity_client_id": connection.client_id} if connection.client_id else {}
    return WaitingClient(connection.namespace, DefaultAzureCredential(**chosen), **NO_RETRY)
