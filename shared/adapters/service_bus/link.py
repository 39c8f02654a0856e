"""A link to a queue or topic of Service Bus, by either client: the one that waits or the aio one.

The client's own retries are off: it would repeat a batch without saying so, and wait as long as it
likes where the service says how long.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.exceptions import ServiceBusError

from shared.adapters.service_bus.loading import Loader
from shared.adapters.service_bus.outcome import not_opened, outcome_of
from shared.messaging.model import Batch, Message, Parcel
from shared.messaging.sending import Accepted, Disconnected, Outcome
from shared.values.redaction import redacting

log = logging.getLogger(__name__)


class ClientSender(Protocol):
    """The part of the client's senders that a link uses."""

    async def create_message_batch(self) -> ServiceBusMessageBatch: ...

    async def send_messages(self, batch: ServiceBusMessageBatch) -> None: ...

    async def look_again(self) -> None:
        """Read what else has come. Raises ServiceBusError."""
        ...

    async def close(self) -> None: ...


class Client(Protocol):
    """Opens senders to one queue or topic."""

    def sender(self) -> ClientSender: ...

    async def close(self) -> None: ...


@redacting
class ServiceBusLink:
    """See BatchLink."""

    def __init__(self, client: Client, loader: Loader) -> None:
        self._client = client
        self._loader = loader
        self._sender: ClientSender | None = None

    def prepare(self, messages: Sequence[Message]) -> list[Parcel]:
        return self._loader.prepare(messages)

    async def open(self) -> int:
        await self._close_sender()
        self._sender = self._client.sender()
        try:
            batch = await self._sender.create_message_batch()
            # A refused link opens and closes at once, with the reason in the second frame: a
            # client that has read only the first one takes it for open.
            await self._sender.look_again()
        except ServiceBusError as error:
            raise not_opened(error) from error
        return batch.max_size_in_bytes

    async def send(self, batch: Batch) -> Outcome:
        if self._sender is None:
            raise ConnectionError("the link is not open")
        try:
            filled = await self._sender.create_message_batch()
            if refused := self._loader.fill(filled, batch):
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
