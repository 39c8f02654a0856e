"""The values of messaging: messages, batches, limits, results and errors.

Times are timezone-aware; sizes are in bytes on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shared.values.messages import NAMED_MAX, Message, MessagingError, Refusal, Result
from shared.values.text import listed

BATCH_MESSAGES_MAX = 4500
"""The most messages, even small ones, that the Standard tier accepts in one batch."""


class EncodedMessage(NamedTuple):
    """A message ready to send: its bytes are ``head`` followed by ``tail``.

    With two parts, a large body is copied only once, into its batch. Both parts are empty if the
    client encodes the message; ``size_bytes`` is known in any case.
    """

    message: Message
    size_bytes: int
    head: bytes = b""
    tail: bytes = b""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of one batch, as far as the sender knows them."""

    link_bytes: int
    """The largest batch that the link accepts."""

    batch_messages: int = BATCH_MESSAGES_MAX
    message_bytes: int = 0
    """The largest message that the link accepts outside a batch, if it is larger than a batch.
    Premium queues accept up to 100 MB, and batches of 1 MB.
    """

    extra_bytes: int = 0
    """The bytes that the service counts per message in addition to the predicted bytes, as learned
    from refusals.
    """

    learned_bytes: int | None = None
    """The limit learned from refusals of whole batches.

    It is an estimate, used only for combining messages. A single message above this limit is still
    sent alone, because only the service can refuse it.
    """

    @property
    def single_bytes(self) -> int:
        """The size up to which a message is sent alone. Nothing larger is ever sent."""
        return max(self.link_bytes, self.message_bytes)

    @property
    def batch_bytes(self) -> int:
        """The size up to which a batch of several messages is filled."""
        return min(self.link_bytes, self.learned_bytes or self.link_bytes)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages that travel in one batch, by their positions, and the size of the batch on the
    wire. A single message travels by itself, without the envelope of a batch."""

    positions: Sequence[int]
    wire_bytes: int


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Everything that one call sends. ``sections`` and ``keys`` correspond to ``encoded`` one to
    one."""

    encoded: Sequence[EncodedMessage]
    sections: Sequence[int]
    """The bytes of each message inside a batch."""

    keys: Sequence[str | None]

    def refusal(self, position: int, reason: str) -> Refusal:
        return Refusal(position, self.encoded[position].message.message_id, reason)


@dataclass(frozen=True, slots=True)
class Batch:
    """A chunk with its messages, which a link can send."""

    encoded: Sequence[EncodedMessage]
    wire_bytes: int


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
    """Sending was given up before all messages were sent. The messages in ``unsent`` can be sent
    again, with the same ids. Those that ``unknown`` names may have arrived nevertheless. ``result``
    describes what was sent.
    """

    def __init__(
        self, reason: str, result: Result, unsent: Sequence[Message], unknown: Sequence[str] = ()
    ) -> None:
        self.result, self.unsent, self.unknown = result, tuple(unsent), tuple(unknown)
        shown = f"; may have arrived: {listed(unknown, NAMED_MAX)}" if unknown else ""
        super().__init__(f"sending stopped with {len(unsent)} message(s) unsent: {reason}{shown}")
