"""What senders need from the outside, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shared.messaging.model import Batch, EncodedMessage, Message, Order, Result
from shared.messaging.send_state import Outcome


class BatchLink(Protocol):
    """A way to one queue or topic."""

    def prepare(self, messages: Sequence[Message]) -> list[EncodedMessage]:
        """Encode each message once, or at least weigh it. Raises UnsendableMessage."""
        ...

    async def open(self) -> int:
        """Open the link, again where it is broken; answers the bytes that a batch may have.

        Raises LinkFailed where trying again would not help, ConnectionError where it may.
        """
        ...

    async def send(self, batch: Batch) -> Outcome:
        """Send once, without any retry.

        Raises LinkFailed where trying again would not help, ConnectionError where no link is open.
        """
        ...

    async def close(self) -> None: ...


class MessageSender(Protocol):
    """Sends messages, each exactly once."""

    async def send(self, messages: Sequence[Message], order: Order = ...) -> Result:
        """Raises MessagingError."""
        ...
