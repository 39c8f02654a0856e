"""The values of ingestion: streams, events, outcomes of events, and commits.

All of them are immutable. Times are timezone-aware and in UTC; sizes are in bytes. Sequence numbers
are those of the hub, which numbers the events of a partition consecutively.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

NOTHING: Mapping[str, Any] = MappingProxyType({})

REPLAY_SEPARATOR = "~"
"""Separates the consumer group and the name of a replay. No consumer group's name contains it."""

ROW_OVERHEAD_BYTES = 1024
"""The bytes that a row takes on the wire besides its text and body, for keys, property names and
headers.
"""

CHARACTER_BYTES_MAX = 12
"""The most bytes of one character in escaped JSON: a character outside Unicode's basic plane
becomes two escapes of six bytes each.
"""


@dataclass(frozen=True, slots=True)
class Stream:
    """One partition of an event hub, as read by one consumer group."""

    namespace: str
    hub: str
    consumer_group: str
    partition_id: str

    @property
    def key(self) -> str:
        """The stream's key in a store. None of the four names may contain the separator."""
        return "|".join((self.namespace, self.hub, self.consumer_group, self.partition_id))

    @property
    def is_replay(self) -> bool:
        return REPLAY_SEPARATOR in self.consumer_group

    @property
    def names(self) -> dict[str, str]:
        """The four names, as a store keeps them in columns of their own."""
        return {
            "namespace": self.namespace,
            "hub": self.hub,
            "consumer_group": self.consumer_group,
            "partition_id": self.partition_id,
        }


@dataclass(frozen=True, slots=True)
class Event:
    """An event as the hub delivered it. The offset is text, because geo-replicated hubs use offsets
    that are not numbers."""

    sequence: int
    offset: str
    enqueued_at: datetime
    body: bytes
    partition_key: str | None = None
    properties: Mapping[str, Any] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True)
class HubState:
    """The state of a hub and one of its partitions. ``created_at`` is when the hub was created.
    ``last_enqueued`` is the sequence number of the newest event that the partition ever received,
    even if that event has expired since; -1 if it never received one.
    """

    created_at: datetime
    last_enqueued: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a stream is accounted for: all events from ``start`` to ``sequence``, both included.

    Nothing is accounted for yet if ``sequence`` is ``start - 1``.

    ``enqueued_at`` is the latest enqueued time of all events so far, so it never goes back. If the
    checkpoint is at the end of a gap, ``enqueued_at`` is the time at which the gap was found,
    because the missing events cannot be newer. ``txid`` identifies the commit that wrote this
    checkpoint; a client whose reply was lost compares it to find out whether its commit was
    written.
    """

    start: int
    sequence: int
    offset: str
    enqueued_at: datetime
    epoch: int = 0
    owner: str = ""
    txid: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """Records that all events up to ``sequence`` were accounted for at the time ``at``, by the
    store's clock.
    """

    at: datetime
    sequence: int


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    """A message to send after the commit. It has the same id in each attempt to send it."""

    message_id: str
    body: str

    def __post_init__(self) -> None:
        _check_text(self.message_id)
        _check_text(self.body)


@dataclass(frozen=True, slots=True)
class Effect:
    """The result of handling an event: a value to keep, messages to send, or nothing that needs a
    row.

    Raises ValueError for text that some store cannot keep.
    """

    sequence: int
    value: str | None = None
    messages: tuple[OutboxMessage, ...] = ()
    ignored: int = 0
    """The number of items in the event that no metric subscribes to. They are counted, but not
    kept."""

    def __post_init__(self) -> None:
        value = self.value
        if value is not None and ("\0" in value or not value.isascii()):
            _check_text(value)

    @property
    def rows(self) -> int:
        return (self.value is not None) + len(self.messages)

    @property
    def size_bytes(self) -> int:
        """An upper bound of the bytes on the wire."""
        size_bytes = self.rows * ROW_OVERHEAD_BYTES
        if self.value is not None:
            size_bytes += _text_bytes_max(self.value)
        for message in self.messages:
            size_bytes += _text_bytes_max(message.body)
        return size_bytes

    @property
    def row_bytes_max(self) -> int:
        """An upper bound of the bytes of the largest row, as a store keeps it, in UTF-16."""
        texts = [self.value or "", *[message.body for message in self.messages]]
        return ROW_OVERHEAD_BYTES + max([_stored_bytes_max(text) for text in texts])


class FailureKind(StrEnum):
    """Why an event was dead-lettered."""

    POISON = "poison"  # retrying would be useless
    EXHAUSTED = "exhausted"  # the failure looked transient, but all attempts failed
    TOO_LARGE = "too_large"  # the effect does not fit into one transaction
    UNREADABLE = "unreadable"
    """Shown for a row that this version of the app cannot read. It is never written."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that failed permanently, with its position in the hub. Its body is included unless
    it is too large.
    """

    sequence: int
    offset: str
    enqueued_at: datetime
    failed_at: datetime
    kind: FailureKind
    error: str
    attempts: int = 1
    partition_key: str | None = None
    body: bytes | None = None

    @property
    def rows(self) -> int:
        return 1

    @property
    def size_bytes(self) -> int:
        """An upper bound of the bytes on the wire, with the body in base64."""
        body_bytes = 4 * (len(self.body or b"") // 3 + 1)
        return _text_bytes_max(self.error) + body_bytes + ROW_OVERHEAD_BYTES

    @property
    def row_bytes_max(self) -> int:
        """An upper bound of the bytes of the dead letter's row, as a store keeps it."""
        return ROW_OVERHEAD_BYTES + _stored_bytes_max(self.error) + len(self.body or b"")


Outcome = Effect | DeadLetter


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that were never delivered and that the hub no longer has, from ``first`` to ``last``,
    both included."""

    first: int
    last: int
    found_at: datetime
    reason: str

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Commit:
    """One transaction: a store writes all of its rows and the checkpoint, or nothing.

    ``previous`` is the checkpoint that the commit replaces, or None if the stream has none yet. A
    store refuses the commit if another checkpoint is stored.
    """

    previous: Checkpoint | None
    checkpoint: Checkpoint
    effects: tuple[Effect, ...] = ()
    dead_letters: tuple[DeadLetter, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows that the transaction writes, including the checkpoint's row."""
        effects = sum([effect.rows for effect in self.effects])
        return 1 + effects + len(self.dead_letters) + len(self.gaps)


def message_id(stream: Stream, sequence: int, index: int | None = None) -> str:
    """The id of an outgoing message. ``index`` numbers the messages of an event that has
    several."""
    name = f"{stream.hub}:{stream.partition_id}:{sequence}"
    return name if index is None else f"{name}:{index}"


def _text_bytes_max(text: str) -> int:
    """The bytes of the text as escaped JSON. An ASCII character takes at most two: an escaped
    quote."""
    return len(text) * (2 if text.isascii() else CHARACTER_BYTES_MAX)


def _stored_bytes_max(text: str) -> int:
    return len(text) * (2 if text.isascii() else 4)


def _check_text(text: str) -> None:
    """Raises ValueError for a NUL, which PostgreSQL cannot keep, and for half a surrogate pair,
    which cannot be encoded."""
    if "\0" in text:
        raise ValueError(
            f"the text holds a NUL at character {text.index(chr(0))}, which not every store can "
            "keep; remove it"
        )
    if not text.isascii():
        text.encode()


def storable(text: str) -> str:
    """The text with each character that some store cannot keep replaced by a question mark."""
    return text.replace("\0", "?").encode("utf-8", "replace").decode()
