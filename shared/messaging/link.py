"""Sends batches to a queue or topic of Service Bus with the asynchronous client, whose own retries
are off: it would not report them, nor wait as long as the service asks."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from azure.servicebus import TransportType
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from shared.azure.credentials import credential_for
from shared.azure.refusals import Access, service_bus_access
from shared.messaging.encoder import client_message, encode_all, fill
from shared.messaging.model import Batch, BatchLimits, EncodedMessage
from shared.messaging.send_state import (
    Accepted,
    BatchRefused,
    Disconnected,
    Outcome,
    ServerBusy,
    SizeExceeded,
)
from shared.settings.connections import ServiceBusConnection
from shared.values.messages import LinkFailed, Message
from shared.values.redaction import redacting
from shared.values.text import one_line

log = logging.getLogger(__name__)

Clock = Callable[[], datetime]

ATTEMPT_SECONDS = 20.0
"""Time limit of one attempt. The client would wait for ever for a reply that was lost."""

PERMANENT_ERRORS = (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusQuotaExceededError,
)
PASSING_CONDITIONS = (
    "amqp:client-error",
    "amqp:unknown-error",
    "amqp:socket-error",
    "amqp:internal-error",
    "amqp:illegal-state",
    "amqp:resource-",
    "amqp:connection:",
    "amqp:session:",
    "amqp:link:",
    "com.microsoft:timeout",
    "com.microsoft:operation-cancelled",
    "com.microsoft:container-close",
)
"""The beginnings of conditions that say nothing about the message."""

BLAMES_MESSAGE = (
    "amqp:not-allowed",
    "amqp:not-implemented",
    "amqp:decode-error",
    "amqp:invalid-field",
    "com.microsoft:argument-error",
    "com.microsoft:argument-out-of-range",
)
PAUSE = re.compile(r"wait\s+([0-9]+)\s+seconds?", re.IGNORECASE)
"""The pause of a throttled namespace: ``Please wait 2 seconds and try again.``"""


@redacting
class ServiceBusLink:
    """See BatchLink."""

    def __init__(
        self,
        connection: ServiceBusConnection,
        entity: str,
        now: Clock,
        *,
        topic: bool = False,
        attempt_seconds: float = ATTEMPT_SECONDS,
    ) -> None:
        self._access = service_bus_access(
            connection, f"{'topic' if topic else 'queue'} {entity}", "Sender"
        )
        self._client = _client(connection, attempt_seconds)
        get = self._client.get_topic_sender if topic else self._client.get_queue_sender
        self._new_sender = partial(get, entity)
        self._now = now
        self._sender: ServiceBusSender | None = None

    def prepare(self, messages: Sequence[Message]) -> list[EncodedMessage]:
        return encode_all(messages, int(self._now().timestamp() * 1000))

    async def open(self) -> BatchLimits:
        await self._close_sender()
        self._sender = self._new_sender()
        try:
            batch = await self._sender.create_message_batch()
            await _read_refusal(self._sender)
        except ServiceBusError as error:
            raise not_opened(error, self._access) from error
        stated = getattr(self._sender, "_max_message_size_on_link", 0)
        return BatchLimits(batch.max_size_in_bytes, message_bytes=stated)

    async def send(self, batch: Batch) -> Outcome:
        if self._sender is None:
            raise ConnectionError("the link is not open")
        link = getattr(getattr(self._sender, "_handler", None), "_link", None)
        try:
            if len(batch.encoded) == 1:
                await self._sender.send_messages(client_message(batch.encoded[0].message))
                return Accepted()
            filled = await self._sender.create_message_batch()
            fill(filled, batch)
            await self._sender.send_messages(filled)
        except ServiceBusError as error:
            outcome = outcome_of(error, self._access, _closed_because(link))
            if isinstance(outcome, Disconnected):
                # After a timeout, the client would use the same broken connection again.
                await self._close_sender()
            return outcome
        return Accepted()

    async def close(self) -> None:
        await self._close_sender()
        await self._client.close()

    async def _close_sender(self) -> None:
        sender, self._sender = self._sender, None
        if sender is None:
            return
        try:
            await sender.close()
        except Exception as error:  # noqa: BLE001, RUF100 - a broken link may fail to close
            log.debug("closing a broken link: %s", error)


async def _read_refusal(sender: ServiceBusSender) -> None:
    """Read pending frames: the service opens a refused link and then closes it."""
    if handler := getattr(sender, "_handler", None):
        try:
            await handler.do_work_async()
        except Exception as error:
            handled = await sender._handle_exception(error)  # type: ignore[no-untyped-call]
            raise handled from error


def _closed_because(link: object) -> str:
    """The condition with which the service closed the link; the client's error lacks it."""
    condition = getattr(getattr(link, "_error", None), "condition", None) or b""
    return condition.decode() if isinstance(condition, bytes) else str(condition)


def _client(connection: ServiceBusConnection, attempt_seconds: float) -> ServiceBusClient:
    """A client without retries, because BatchSender counts and repeats the attempts."""
    options: dict[str, Any] = {"retry_total": 0, "try_timeout": attempt_seconds}
    options |= connection.transport.options(TransportType)
    if connection.connection_string:
        return ServiceBusClient.from_connection_string(connection.connection_string, **options)
    credential = credential_for(connection.namespace, connection.identity)
    return ServiceBusClient(connection.namespace, credential, **options)


def outcome_of(error: ServiceBusError, access: Access, closed_because: str = "") -> Outcome:
    """The outcome of sending a batch. Raises LinkFailed if another attempt would not help."""
    text = _text(error, access)
    if isinstance(error, PERMANENT_ERRORS):
        raise LinkFailed(text) from error
    if isinstance(error, MessageSizeExceededError):
        return SizeExceeded()
    if isinstance(error, ServiceBusServerBusyError):
        pause = PAUSE.search(str(error))
        return ServerBusy(float(pause[1]) if pause else None)
    if _is_certain_refusal(error, closed_because):
        return BatchRefused(f"{text.rstrip('.')} {closed_because}".rstrip())
    # After any other error it is unknown whether the batch arrived and whether the link works.
    return Disconnected(text)


def _is_certain_refusal(error: ServiceBusError, closed_because: str) -> bool:
    """Whether the service never accepts these messages: it rejected them without a passing fault,
    or closed the link with a condition that blames them."""
    if closed_because:
        return closed_because in BLAMES_MESSAGE
    condition = getattr(error, "_condition", None) or PASSING_CONDITIONS[0]
    return type(error) is ServiceBusError and not condition.startswith(PASSING_CONDITIONS)


def not_opened(error: ServiceBusError, access: Access) -> Exception:
    """The error to raise if a link could not be opened."""
    kind = LinkFailed if isinstance(error, PERMANENT_ERRORS) else ConnectionError
    return kind(_text(error, access))


def _text(error: ServiceBusError, access: Access) -> str:
    refusal = access.refusal(error)
    return refusal or f"{type(error).__name__}: {one_line(error)}"
