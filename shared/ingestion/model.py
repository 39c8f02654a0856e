"""The values of ingestion. All are immutable. Times are in UTC, sizes in bytes. Sequence numbers
are those of the hub, which numbers the events of a partition consecutively."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from shared.ingestion.errors import BadEffect, MessageTooLarge

MESSAGE_BYTES_MAX = 65_536
"""The most bytes of a queue message, in UTF-8."""
UNSENDABLE = re.compile("[\x01-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""Characters that XML cannot carry, in which the queue takes its messages."""

NOTHING: Mapping[str, Any] = MappingProxyType({})

REPLAY_SEPARATOR = "~"
"""Separates the consumer group and the name of a replay. No consumer group's name contains it."""

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)

ROW_OVERHEAD_BYTES = 1024
"""The bytes of a row on the wire besides its text and body."""

CHARACTER_BYTES_MAX = 12
"""The most bytes of one character in escaped JSON: two escapes of six bytes."""


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
        return "|".join(self.place)

    @property
    def is_replay(self) -> bool:
        return REPLAY_SEPARATOR in self.consumer_group

    @property
    def place(self) -> tuple[str, str, str, str]:
        return (self.namespace, self.hub, self.consumer_group, self.partition_id)

    @property
    def names(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Event:
    """An event as the hub delivered it. Geo-replicated hubs use offsets that are not numbers."""

    sequence: int
    offset: str
    enqueued_at: datetime
    body: bytes
    partition_key: str | None = None
    properties: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    unreadable: str = ""
    """Why the body, which is not bytes, cannot be handled. ``body`` is a readable form of it."""


@dataclass(frozen=True, slots=True)
class HubState:
    """A hub and one of its partitions. ``last_enqueued`` is the newest event's number, even if it
    has expired (-1: none); ``newest_at`` is when the newest one left was enqueued."""

    created_at: datetime
    last_enqueued: int
    newest_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All events from ``start`` to ``sequence`` (``start - 1``: none) are accounted for, the latest
    from ``enqueued_at``, or when the gap at the end was found. ``txid`` identifies the commit."""

    start: int
    sequence: int
    offset: str
    enqueued_at: datetime
    epoch: int = 0
    owner: str = ""
    txid: str = ""
    set_aside: int = 0
    """How many of the events were not meant for the handler."""


@dataclass(frozen=True, slots=True)
class Mark:
    """All events up to ``sequence`` were accounted for at ``at``, by the store's clock."""

    at: datetime
    sequence: int


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    """A message to send after the commit, always under the same id; several if a JSON array."""

    message_id: str
    body: str

    def __post_init__(self) -> None:
        _check_text(self.message_id)
        _check_text(self.body)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message in the outbox, which an event has at this position. ``taken`` is how often it was
    taken over from another process, ``waited`` the time since then, or since it was committed."""

    sequence: int
    position: int
    message_id: str
    body: str
    taken: int = 0
    waited: timedelta = field(default=timedelta(0), compare=False)
    version: Any = field(default=None, compare=False)

    @property
    def message(self) -> OutboxMessage:
        return OutboxMessage(self.message_id, self.body)


@dataclass(frozen=True, slots=True)
class Effect:
    """The result of handling an event: a value to keep, messages to send, or nothing that needs a
    row. Raises BadEffect for text that some store cannot keep, or that can never be sent."""

    sequence: int
    value: str | None = None
    messages: tuple[OutboxMessage, ...] = ()
    ignored: int = 0
    """How many items of the event no metric subscribes to."""
    set_aside: str = ""
    """What the event is, if it is not meant for the handler, such as a log. It is only counted, and
    is neither a success nor a failure for the circuit breaker."""

    def __post_init__(self) -> None:
        value = self.value
        if value is not None and ("\0" in value or not value.isascii()):
            _check_text(value)
        for message in self.messages:
            if not message.body.isprintable() or _text_bytes_max(message.body) > MESSAGE_BYTES_MAX:
                _check_sendable(message)

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
    TOO_LARGE = "too_large"  # the effect fits into no transaction, or a message into no queue
    NOT_BYTES = "not_bytes"  # the body is not bytes; a readable form of it is kept
    UNREADABLE = "unreadable"
    """Shown for a row that this version of the app cannot read. It is never written."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that failed permanently, with its body unless that is too large."""

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
class Span:
    """Sequence numbers from ``first`` to ``last``, both included."""

    first: int
    last: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1


LOST = "skipped by the host and no longer in the hub"
COMPACTED = "replaced by newer events with the same key, because the hub compacts its events"


@dataclass(frozen=True, slots=True)
class Gap(Span):
    """Events that were never delivered and that the hub no longer has. ``reason`` is COMPACTED or
    says why they are lost."""

    found_at: datetime
    reason: str

    @property
    def is_loss(self) -> bool:
        return self.reason != COMPACTED


@dataclass(frozen=True, slots=True)
class Commit:
    """One transaction: all of its rows and the checkpoint, or nothing. ``previous`` is the
    checkpoint that it replaces; None if there is none yet."""

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


@dataclass(frozen=True, slots=True)
class Ownership:
    """The ownership row of one partition, as it was read at the store's time, or as a claim to be
    written in place of the row of this version (None: if there is none)."""

    partition_id: str
    owner: str
    """Empty if the last owner released the partition."""
    epoch: int
    version: Any = None
    reason: str = ""
    modified_at: datetime = LONG_AGO


def in_one_case(name: str) -> str:
    """The name in lower case, because Azure compares namespaces, hubs and groups without case.
    ``$Default`` stays as Azure writes it, and the name of a replay keeps its case."""
    azure, separator, replay = name.partition(REPLAY_SEPARATOR)
    azure = "$Default" if azure.lower() == "$default" else azure.lower()
    return f"{azure}{separator}{replay}"


def message_id(stream: Stream, sequence: int, index: int | None = None) -> str:
    """The id of an outgoing message. ``index`` numbers the messages of one event."""
    name = f"{stream.hub}:{stream.partition_id}:{sequence}"
    return name if index is None else f"{name}:{index}"


def _text_bytes_max(text: str) -> int:
    """The bytes of the text as escaped JSON. An ASCII character takes at most two."""
    return len(text) * (2 if text.isascii() else CHARACTER_BYTES_MAX)


def _stored_bytes_max(text: str) -> int:
    return len(text) * (2 if text.isascii() else 4)


def _check_text(text: str) -> None:
    """Raises BadEffect for a NUL, which PostgreSQL cannot keep, and for half a surrogate pair."""
    if "\0" in text:
        raise BadEffect(
            f"the text holds a NUL at character {text.index(chr(0))}, which not every store can "
            "keep; remove it"
        )
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        raise BadEffect(f"the text cannot be stored: {error}") from error


def split(body: str) -> Iterator[str]:
    """The texts of the queue messages that the body of one outbox message contains."""
    elements = None
    if body.startswith("["):
        with suppress(ValueError, RecursionError):
            elements = json.loads(body)
    if elements is None:
        yield body
        return
    for element in elements:
        yield json.dumps(element, separators=(",", ":"))


def _check_sendable(message: OutboxMessage) -> None:
    for text in split(message.body):
        size_bytes = len(text.encode())
        if size_bytes > MESSAGE_BYTES_MAX:
            raise MessageTooLarge(
                f"message {message.message_id} has {size_bytes} bytes, but the queue takes at most "
                f"{MESSAGE_BYTES_MAX}; send less, or several messages"
            )
        if found := UNSENDABLE.search(text):
            raise BadEffect(
                f"message {message.message_id} holds the character U+{ord(found[0]):04X}, which "
                "the queue refuses; remove or escape it"
            )


def set_aside_among(outcomes: Sequence[Outcome | Gap]) -> int:
    return len([each for each in outcomes if isinstance(each, Effect) and each.set_aside])


def storable(text: str) -> str:
    """The text with each character that some store cannot keep replaced by a question mark."""
    return text.replace("\0", "?").encode("utf-8", "replace").decode()
