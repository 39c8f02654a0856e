"""A link to a queue or topic of Service Bus, by the asynchronous client.

The client's own retries are off: it would repeat a batch without saying so, and wait as long as it
likes where the service says how long.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from azure.servicebus import __version__
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

from shared.adapters.azure.credentials import credential_for
from shared.adapters.service_bus.encoder import encode_all
from shared.adapters.service_bus.filling import filling_for
from shared.messaging.errors import LinkFailed
from shared.messaging.model import Batch, Message, Parcel
from shared.messaging.sending import Accepted, Disconnected, Outcome, ServerBusy, SizeExceeded
from shared.settings.connections import ServiceBusConnection
from shared.values.redaction import redacting

log = logging.getLogger(__name__)

Clock = Callable[[], datetime]

ATTEMPT_SECONDS = 20.0
"""The time limit of one attempt: to open a link, or to send a batch. Without it the client waits
for ever for an answer that a network has swallowed. It ignores ``idle_timeout``."""

FOR_GOOD = (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusQuotaExceededError,
)
PAUSE = re.compile(r"wait\s+(\d+)\s+seconds?", re.IGNORECASE)
"""A throttled namespace says: "… Error code : 50009. Please wait 2 seconds and try again." """


@redacting
class ServiceBusLink:
    """See BatchLink. ``version`` is that of the client, see ``filling_for``."""

    def __init__(
        self,
        connection: ServiceBusConnection,
        entity: str,
        now: Clock,
        *,
        topic: bool = False,
        attempt_seconds: float = ATTEMPT_SECONDS,
        version: str = __version__,
    ) -> None:
        self._client = _client(connection, attempt_seconds)
        get = self._client.get_topic_sender if topic else self._client.get_queue_sender
        self._new_sender = partial(get, entity)
        self._now = now
        self._fill = filling_for(version)
        self._sender: ServiceBusSender | None = None

    def prepare(self, messages: Sequence[Message]) -> list[Parcel]:
        return encode_all(messages, int(self._now().timestamp() * 1000))

    async def open(self) -> int:
        await self._close_sender()
        self._sender = self._new_sender()
        try:
            batch = await self._sender.create_message_batch()
            await _read_refusal(self._sender)
        except ServiceBusError as error:
            raise not_opened(error) from error
        return batch.max_size_in_bytes

    async def send(self, batch: Batch) -> Outcome:
        if self._sender is None:
            raise ConnectionError("the link is not open")
        try:
            filled = await self._sender.create_message_batch()
            if refused := self._fill(filled, batch):
                return refused
            await self._sender.send_messages(filled)
        except ServiceBusError as error:
            outcome = outcome_of(error)
            if isinstance(outcome, Disconnected):
                # The client keeps a connection on which it waited in vain, for the next call too.
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
        except Exception as error:  # noqa: BLE001, RUF100 - it is closed because it is broken
            log.debug("closing a broken link: %s", error)


async def _read_refusal(sender: ServiceBusSender) -> None:
    """Read what else has come. Raises ServiceBusError.

    A refused link opens and closes at once, with the reason in the second frame: a client that has
    read only the first one takes it for open.
    """
    if handler := getattr(sender, "_handler", None):
        try:
            await handler.do_work_async()
        except Exception as error:
            handled = await sender._handle_exception(error)  # type: ignore[no-untyped-call]
            raise handled from error


def _client(connection: ServiceBusConnection, attempt_seconds: float) -> ServiceBusClient:
    """Attempts are counted and repeated by the sender, see BatchSender."""
    options: dict[str, Any] = {"retry_total": 0, "try_timeout": attempt_seconds}
    if connection.connection_string:
        return ServiceBusClient.from_connection_string(connection.connection_string, **options)
    credential = credential_for(connection.namespace, connection.client_id)
    return ServiceBusClient(connection.namespace, credential, **options)


def outcome_of(error: ServiceBusError) -> Outcome:
    """What became of a batch. Raises LinkFailed where trying again would not help."""
    text = _text(error)
    if isinstance(error, FOR_GOOD):
        raise LinkFailed(text) from error
    if isinstance(error, MessageSizeExceededError):
        return SizeExceeded()
    if isinstance(error, ServiceBusServerBusyError):
        pause = PAUSE.search(text)
        return ServerBusy(float(pause[1]) if pause else None)
    # Of any other error nobody knows what it left behind: the batch, or a broken link.
    return Disconnected(text)


def not_opened(error: ServiceBusError) -> Exception:
    """What to raise where a link could not be opened: LinkFailed or ConnectionError."""
    return (
        LinkFailed(_text(error)) if isinstance(error, FOR_GOOD) else ConnectionError(_text(error))
    )


def _text(error: ServiceBusError) -> str:
    return f"{type(error).__name__}: {error}"
