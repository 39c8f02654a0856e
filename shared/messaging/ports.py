"""What senders need from a link to Service Bus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shared.messaging.model import Batch, BatchLimits, EncodedMessage
from shared.messaging.send_state import Outcome
from shared.values.messages import Message


class BatchLink(Protocol):
    """A link to one queue or topic."""

    def prepare(self, messages: Sequence[Message]) -> list[EncodedMessage]:
        """Encode each message once, or at least compute its size. Raises UnsendableMessage."""
        ...

    async def open(self) -> BatchLimits:
        """Open the link, or open it again if it is broken. Returns the limits that the link states.
        Raises LinkFailed if another attempt cannot help, and ConnectionError if another attempt may
        help.
        """
        ...

    async def send(self, batch: Batch) -> Outcome:
        """Send a batch once, without any retry.

        Raises LinkFailed if another attempt cannot help, and ConnectionError if no link is open.
        """
        ...

    async def close(self) -> None: ...
