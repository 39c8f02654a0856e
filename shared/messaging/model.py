"""A message as a sender describes it. Times are aware; sizes are bytes on the wire."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple

Scalar = str | bytes | int | float | bool | uuid.UUID | datetime | None
"""What properties and annotations can hold. Bytes in a property must be UTF-8: it is a string."""

BATCH_MESSAGES_MAX = 4500
"""Messages that the Standard tier takes in one batch, however small they are."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A body of AMQP sequences: each row a list of scalars, lists and maps."""

    rows: Sequence[list[Any]]


Body = bytes | str | tuple[bytes | str, ...] | Rows | None
"""One data section, several of them, sequences, or none at all."""


class Message(NamedTuple):
    """A message to send. A named tuple, for hundreds of thousands are made in a second.

    ``time_to_live`` counts in whole seconds, up to 49 days (AMQP has 32 bits for milliseconds).
    ``annotations`` are further message annotations beside those of the fields here; their names
    and ``content_type`` are ASCII.
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
        """What all messages of one batch must share: the broker files a batch in one place."""
        return self.session_id or self.partition_key


class EncodedMessage(NamedTuple):
    """A message ready to go: its bytes are ``head`` and ``tail`` together.

    Two parts, for a large body is then copied once only, into its batch. Both are empty where
    the client encodes by itself; ``size_bytes`` is known in any case.
    """

    message: Message
    size_bytes: int
    head: bytes = b""
    tail: bytes = b""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What one batch may hold, as far as its sender knows by now."""

    link_bytes: int
    """What the link states: what is larger is not even tried."""

    batch_messages: int = BATCH_MESSAGES_MAX
    extra_bytes: int = 0
    """What the service was seen to count per message beyond the bytes that are foretold."""

    learned_bytes: int | None = None
    """What refusals of whole batches taught. A guess: it says what goes together, but what is
    larger by itself is tried alone, for only the service can refuse it."""

    @property
    def batch_bytes(self) -> int:
        """How far a batch of several messages is filled."""
        return min(self.link_bytes, self.learned_bytes or self.link_bytes)


class Order(Enum):
    """How far messages must arrive in the order in which they are given."""

    KEPT = "kept"
    KEPT_PER_KEY = "kept per key"
    """Only among messages of one session or partition key, which is all that sessions promise."""

    FREE = "free"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages that travel in one batch, by their positions, and the batch's bytes on the wire."""

    positions: Sequence[int]
    wire_bytes: int


@dataclass(frozen=True, slots=True)
class SendRequest:
    """All that one call sends. ``sections`` and ``keys`` belong to the encoded, one by one."""

    encoded: Sequence[EncodedMessage]
    sections: Sequence[int]
    """Bytes of each message inside a batch."""

    keys: Sequence[str | None]

    def names(self, positions: Sequence[int]) -> list[str]:
        """What people know the messages by: the position, and the id where there is one."""
        ids = [self.encoded[position].message.message_id for position in positions]
        return [f"#{place} ({name})" for place, name in zip(positions, ids, strict=True)]


@dataclass(frozen=True, slots=True)
class Batch:
    """A chunk with its messages, as a link takes it."""

    encoded: Sequence[EncodedMessage]
    wire_bytes: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a call has come."""

    sent: int
    total: int
    batches: int


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a call. ``bytes`` count on the wire, each batch once."""

    sent: int
    batches: int
    bytes: int
    retries: int
    resent_unknown: int
    """Messages sent again because nobody could tell whether they had arrived: without duplicate
    detection they may be there twice."""

    refused: tuple[str, ...]
    """Messages that the service took in no batch, however small."""
