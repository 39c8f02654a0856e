"""The values of messaging: messages, batches, limits and results.

Times are timezone-aware; sizes are in bytes on the wire.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple

Scalar = str | bytes | int | float | bool | uuid.UUID | datetime | None
"""The types of values of properties and annotations. Bytes in a property must be UTF-8, because
they are sent as a string.
"""

BATCH_MESSAGES_MAX = 4500
"""The most messages, even small ones, that the Standard tier accepts in one batch."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A body of AMQP sequences. Each row is a list of scalars, lists and maps."""

    rows: Sequence[list[Any]]


Body = bytes | str | tuple[bytes | str, ...] | Rows | None
"""One data section, several of them, sequences, or nothing."""


class Message(NamedTuple):
    """A message to send. It is a named tuple because hundreds of thousands are created in a second.

    ``time_to_live`` counts in whole seconds, up to 49 days, because AMQP has 32 bits for
    milliseconds. ``annotations`` are message annotations in addition to those of the fields here.
    Their names and ``content_type`` must be ASCII.
    """

    body: Body
    message_id: str | None = None
    session_id: str | None = None
    partition_key: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    subject: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    time_to_live: timedelta | None = None
    scheduled_at: datetime | None = None
    application_properties: Mapping[str, Scalar] | None = None
    annotations: Mapping[str, Scalar] | None = None

    @property
    def batch_key(self) -> str | None:
        """The key that all messages of a batch must share, because the broker stores a batch in one
        place.
        """
        return self.session_id or self.partition_key


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


class Order(Enum):
    """Whether messages must arrive in the order in which they are given."""

    KEPT = "kept"
    KEPT_PER_KEY = "kept per key"
    """The order is kept only among messages of the same session or partition key. Sessions
    guarantee no more than this.
    """

    FREE = "free"


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
class Refusal:
    """A message that the service does not accept, by its position, and the reason."""

    position: int
    message_id: str | None
    reason: str

    def __str__(self) -> str:
        return f"#{self.position} ({self.message_id}): {self.reason}"


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


@dataclass(frozen=True, slots=True)
class Result:
    """What a call has sent. ``bytes`` are on the wire, and count each batch once."""

    sent: int
    batches: int
    bytes: int
    retries: int
    resent_unknown: int
    """The number of messages that were sent again because it was unknown whether they had arrived.
    They may have arrived twice, unless the queue detected duplicates for all that time."""

    refused: tuple[Refusal, ...]
    """Messages that the service does not accept even alone. The others were sent, also those that
    follow a refused message in the same session."""
