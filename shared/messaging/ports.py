"""What the flows need from the outside, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shared.datasets.claims import Claim
from shared.datasets.entities import QueueFacts
from shared.datasets.processing import Work
from shared.messaging.model import Batch, Message, Order, Parcel, Result
from shared.messaging.sending import Outcome


class BatchLink(Protocol):
    """A way to one queue or topic."""

    def prepare(self, messages: Sequence[Message]) -> list[Parcel]:
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


class ClaimStore(Protocol):
    """Remembers who processes which data set for which period. Its clock is the one that counts."""

    async def take(self, work: Work, holder: str) -> Claim:
        """Insert a claim where there is none; answers the one that stands, own or another's.

        Data set and turn name a claim. The one answered carries the work that was asked for.
        """
        ...

    async def change(self, claim: Claim, holder: str, *, done: bool) -> Claim:
        """Write the claim anew, taken or done now.

        Raises ClaimTaken where it has changed or was deleted since it was read.
        """
        ...

    async def close(self) -> None: ...


class Recompute(Protocol):
    """Processes a data set for a period; doing it twice must be harmless."""

    async def run(self, work: Work) -> None: ...


class QueueReader(Protocol):
    """Reads what queues are like."""

    async def facts(self, queue: str) -> QueueFacts:
        """Raises LinkFailed where there is no such queue, FactsHidden without the right to ask."""
        ...

    async def close(self) -> None: ...
