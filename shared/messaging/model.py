"""The values of messaging. Times are timezone-aware; sizes are in bytes on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shared.values.messages import NAMED_MAX, Message, MessagingError, Result
from shared.values.text import listed

BATCH_MESSAGES_MAX = 4500
"""The most messages, even small ones, that the Standard tier accepts in one batch."""


class EncodedMessage(NamedTuple):
    """A message ready to send, and its place in the call."""

    place: int
    message: Message
    size_bytes: int
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of one batch, as far as the sender knows them."""

    link_bytes: int
    """The largest batch that the link accepts."""

    batch_messages: int = BATCH_MESSAGES_MAX
    message_bytes: int = 0
    """The largest message outside a batch. Premium queues take up to 100 MB, batches of 1 MB."""

    learned_bytes: int | None = None
    """Learned from refusals of whole batches. A larger single message is still sent alone."""

    @property
    def single_bytes(self) -> int:
        """The size up to which a message is sent alone."""
        return max(self.link_bytes, self.message_bytes)

    @property
    def batch_bytes(self) -> int:
        """The size up to which a batch of several messages is filled."""
        return min(self.link_bytes, self.learned_bytes or self.link_bytes)


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that are sent as one, and their size on the wire. A single one has no envelope."""

    encoded: Sequence[EncodedMessage]
    wire_bytes: int

    @property
    def places(self) -> list[int]:
        return [each.place for each in self.encoded]


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of a call has been sent."""

    sent: int
    total: int
    batches: int


class BadLines(MessagingError):
    """Some lines do not describe a message; nothing was sent."""

    def __init__(self, shown: Sequence[str], count: int) -> None:
        more = f"\n… and {count - len(shown)} more" if count > len(shown) else ""
        super().__init__("\n".join(shown) + more)


class UnsendableMessage(MessagingError):
    """Service Bus cannot accept a message: a field is too long, or has a type that AMQP lacks."""


class SendingStopped(MessagingError):
    """Sending was given up. The messages in ``unsent`` can be sent again, with the same ids; those
    that ``unknown`` names may have arrived. ``result`` describes what was sent."""

    def __init__(
        self, reason: str, result: Result, unsent: Sequence[Message], unknown: Sequence[str] = ()
    ) -> None:
        self.result, self.unsent, self.unknown = result, tuple(unsent), tuple(unknown)
        shown = f"; may have arrived: {listed(unknown, NAMED_MAX)}" if unknown else ""
        super().__init__(f"sending stopped with {len(unsent)} message(s) unsent: {reason}{shown}")
