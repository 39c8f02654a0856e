"""The nouns of ingestion: what arrives, what becomes of it, and what is written in one go.

Frozen values. Times are aware UTC datetimes; sequence numbers are those of the hub, which counts
the events of a partition without leaving one out; sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

NOTHING: Mapping[str, Any] = MappingProxyType({})

ROW_OVERHEAD_BYTES = 1024
"""Keys, names of properties and headers that a row costs on the wire besides text and body."""

CHARACTER_BYTES_MAX = 12
"""Of any character as escaped JSON: two escapes of six for what is beyond Unicode's first plane."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One partition of a hub as one consumer group reads it."""

    namespace: str
    hub: str
    consumer_group: str
    partition_id: str

    @property
    def key(self) -> str:
        """Names the stream in a store; no part of a name may hold the separator."""
        return "|".join((self.namespace, self.hub, self.consumer_group, self.partition_id))

    @property
    def names(self) -> dict[str, str]:
        """What a store keeps of it."""
        return {
            "namespace": self.namespace,
            "hub": self.hub,
            "consumer_group": self.consumer_group,
            "partition_id": self.partition_id,
        }


@dataclass(frozen=True, slots=True)
class Event:
    """An event as the hub gave it. The offset is text: geo-replicated hubs have no numbers."""

    sequence: int
    offset: str
    enqueued_at: datetime
    body: bytes
    partition_key: str | None = None
    properties: Mapping[str, Any] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True)
class HubState:
    """What a hub says of itself and of one partition: when it was made, and the number of the
    newest event that ever came, gone or not; -1 where none ever did."""

    created_at: datetime
    last_enqueued: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything from ``start`` to ``sequence``, both included, is accounted for; nothing yet where
    ``sequence`` is right before ``start``.

    ``enqueued_at`` is the latest time of any event so far, so that it never goes back; after a
    gap at the end it is when the gap was found, for its events cannot be later.
    ``txid`` names the commit that wrote this, for who lost the reply.
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
    """At that time, by the store's clock, everything up to that number was accounted for."""

    at: datetime
    sequence: int


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    """A message that is to be sent once the commit stands. Its id is the same at every attempt."""

    message_id: str
    body: str

    def __post_init__(self) -> None:
        _check_text(self.message_id)
        _check_text(self.body)


@dataclass(frozen=True, slots=True)
class Effect:
    """What an event led to: a value to keep, messages to send, or nothing worth a row.

    Raises ValueError for text that not every store can keep.
    """

    sequence: int
    value: str | None = None
    messages: tuple[OutboxMessage, ...] = ()
    ignored: int = 0
    """How many things of the event nobody asked for; counted, not kept."""

    def __post_init__(self) -> None:
        value = self.value
        if value is not None and ("\0" in value or not value.isascii()):
            _check_text(value)

    @property
    def rows(self) -> int:
        return (self.value is not None) + len(self.messages)

    @property
    def size_bytes(self) -> int:
        """At most so many bytes on the wire."""
        size_bytes = self.rows * ROW_OVERHEAD_BYTES
        if self.value is not None:
            size_bytes += _text_bytes_max(self.value)
        for message in self.messages:
            size_bytes += _text_bytes_max(message.body)
        return size_bytes

    @property
    def row_bytes_max(self) -> int:
        """At most so many bytes in its largest row, as a store keeps it: in UTF-16."""
        texts = [self.value or "", *[message.body for message in self.messages]]
        return ROW_OVERHEAD_BYTES + max([_stored_bytes_max(text) for text in texts])


class FailureKind(StrEnum):
    """Why an event failed for good."""

    POISON = "poison"  # it fails however often it is tried
    EXHAUSTED = "exhausted"  # it might have worked, but every attempt failed
    TOO_LARGE = "too_large"  # what it leads to does not fit into one transaction
    UNREADABLE = "unreadable"
    """Stands in for a row that this version cannot read; never written."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A failed event: where it stands in the hub, and its body unless that is too large."""

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
        """At most so many bytes on the wire, the body in base64."""
        body_bytes = 4 * (len(self.body or b"") // 3 + 1)
        return _text_bytes_max(self.error) + body_bytes + ROW_OVERHEAD_BYTES

    @property
    def row_bytes_max(self) -> int:
        """At most so many bytes as a store keeps it."""
        return ROW_OVERHEAD_BYTES + _stored_bytes_max(self.error) + len(self.body or b"")


Outcome = Effect | DeadLetter


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that the hub skipped and no longer has, from ``first`` to ``last``, both included."""

    first: int
    last: int
    found_at: datetime
    reason: str

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Commit:
    """One transaction: all of its rows and the checkpoint, or nothing of it.

    ``previous`` is the checkpoint that must still stand; None where there must be none yet.
    """

    previous: Checkpoint | None
    checkpoint: Checkpoint
    effects: tuple[Effect, ...] = ()
    dead_letters: tuple[DeadLetter, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def rows(self) -> int:
        """Rows that the transaction writes, the checkpoint's included."""
        effects = sum([effect.rows for effect in self.effects])
        return 1 + effects + len(self.dead_letters) + len(self.gaps)


def message_id(stream: Stream, sequence: int, index: int | None = None) -> str:
    """The id of an outgoing message; ``index`` where an event leads to more than one."""
    name = f"{stream.hub}:{stream.partition_id}:{sequence}"
    return name if index is None else f"{name}:{index}"


def _text_bytes_max(text: str) -> int:
    """As escaped JSON: of ASCII two bytes, for a quote."""
    return len(text) * (2 if text.isascii() else CHARACTER_BYTES_MAX)


def _stored_bytes_max(text: str) -> int:
    return len(text) * (2 if text.isascii() else 4)


def _check_text(text: str) -> None:
    """Raises ValueError: PostgreSQL keeps no NUL, and nothing writes half a surrogate pair."""
    if "\0" in text:
        raise ValueError(f"NUL at {text.index(chr(0))} in a text that is to be kept")
    if not text.isascii():
        text.encode()


def storable(text: str) -> str:
    """The text with a question mark where it holds what not every store can keep."""
    return text.replace("\0", "?").encode("utf-8", "replace").decode()
