"""Event hubs: partitions, positions to read from, and the rules for competing readers.

Sources:
- learn.microsoft.com/azure/event-hubs/event-hubs-features: partitions, partition keys, offsets,
  sequence numbers, retention.
- learn.microsoft.com/archive/blogs/gyan/event-hubs-receiver-epoch: which reader may read.
"""

import zlib
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from itertools import islice
from typing import TypeVar

from local.amqp_broker.model.errors import (
    EntityNotFound,
    InvalidArgument,
    ReceiverDisconnected,
    TooManyReceivers,
)
from local.amqp_broker.model.properties import HubProperties

RECEIVERS_WITHOUT_LEVEL_MAX = 5

Mark = TypeVar("Mark", int, datetime)


@dataclass(frozen=True, slots=True)
class EventContent:
    """An event as its sender sent it."""

    payload: bytes
    partition_key: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """A stored event. `offset` is the number of bytes that precede it in its partition."""

    sequence_number: int
    offset: int
    enqueued_at: datetime
    content: EventContent


class PositionKind(Enum):
    """How a reader states where to begin."""

    OFFSET = "offset"
    SEQUENCE_NUMBER = "sequence-number"
    ENQUEUED_TIME = "enqueued-time"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Position:
    """Read the events after `value`. `inclusive` also includes the event at `value`."""

    kind: PositionKind
    value: int | datetime = -1
    inclusive: bool = False


START = Position(PositionKind.OFFSET, -1)


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The answer to `get_partition_properties`. Without events: numbers -1 and time None."""

    begin_sequence_number: int
    last_sequence_number: int
    last_offset: int
    last_enqueued_at: datetime | None
    is_empty: bool


@dataclass(slots=True, eq=False)
class Reader:
    """One receiver of a consumer group on a partition. Readers compare by identity."""

    consumer_group: str
    owner_level: int | None
    next_number: int


@dataclass(slots=True)
class Partition:
    """A log of events that removes those older than `retention`."""

    id: str
    retention: timedelta
    _events: deque[Event] = field(default_factory=deque)
    _next_number: int = 0
    _next_offset: int = 0
    _last: Event | None = None
    _readers: list[Reader] = field(default_factory=list)

    @property
    def reader_count(self) -> int:
        return len(self._readers)

    def append(self, content: EventContent, now: datetime) -> Event:
        event = Event(self._next_number, self._next_offset, now, content)
        self._next_number += 1
        self._next_offset += max(1, len(content.payload))
        self._events.append(event)
        self._last = event
        return event

    def forget(self, now: datetime) -> None:
        while self._events and self._events[0].enqueued_at + self.retention <= now:
            self._events.popleft()

    def facts(self, now: datetime) -> PartitionFacts:
        self.forget(now)
        begin = self._events[0].sequence_number if self._events else self._next_number
        if self._last is None:
            return PartitionFacts(0, -1, -1, None, is_empty=True)
        last = self._last
        return PartitionFacts(
            begin, last.sequence_number, last.offset, last.enqueued_at, is_empty=not self._events
        )

    def attach(
        self, group: str, position: Position, owner_level: int | None, now: datetime
    ) -> tuple[Reader, list[Reader]]:
        """Add a reader. Return it with the readers that it disconnects.

        A reader with an owner level disconnects readers with an equal, a lower or no level. A
        reader without a level is refused if another reader has one.
        """
        present = [reader for reader in self._readers if reader.consumer_group == group]
        levels = [reader.owner_level for reader in present if reader.owner_level is not None]
        if levels and (owner_level is None or owner_level < max(levels)):
            raise ReceiverDisconnected(f"A receiver with epoch {max(levels)} already exists.")
        if owner_level is None and len(present) >= RECEIVERS_WITHOUT_LEVEL_MAX:
            raise TooManyReceivers(
                f"{RECEIVERS_WITHOUT_LEVEL_MAX} receivers already read partition {self.id}."
            )
        next_number = self.resolve(position, now)
        driven_out = present if owner_level is not None else []
        for reader in driven_out:
            self._readers.remove(reader)
        reader = Reader(group, owner_level, next_number)
        self._readers.append(reader)
        return reader, driven_out

    def detach(self, reader: Reader) -> None:
        """Remove a reader, unless it was already disconnected."""
        if reader in self._readers:
            self._readers.remove(reader)

    def read(self, reader: Reader, limit: int, now: datetime) -> list[Event]:
        """Return the next events, and move the reader past them."""
        self.forget(now)
        if not self._events:
            return []
        skip = max(0, reader.next_number - self._events[0].sequence_number)
        events = list(islice(self._events, skip, skip + max(0, limit)))
        if events:
            reader.next_number = events[-1].sequence_number + 1
        return events

    def resolve(self, position: Position, now: datetime) -> int:
        """The number of the first event to read. Raises InvalidArgument beyond the last event."""
        self.forget(now)
        self._check_within(position)
        if position.kind is PositionKind.LATEST:
            return self._next_number
        for event in self._events:
            if _is_after(event, position):
                return event.sequence_number
        return self._next_number

    def _check_within(self, position: Position) -> None:
        """Refuse a position beyond the last event: the reader may mean another hub."""
        if isinstance(position.value, datetime) or position.kind is PositionKind.LATEST:
            return
        last = -1 if self._last is None else _place(self._last, position.kind)
        if position.value > last:
            name = position.kind.value.replace("-", " ")
            raise InvalidArgument(
                f"The supplied {name} '{position.value}' is invalid. "
                f"The last {name} in the system is '{last}'."
            )


class Hub:
    """An event hub."""

    def __init__(self, name: str, properties: HubProperties, created_at: datetime) -> None:
        self.name = name
        self.properties = properties
        self.created_at = created_at
        self.partitions = tuple(
            Partition(str(number), properties.retention)
            for number in range(properties.partition_count)
        )
        self._turn = 0

    def partition(self, partition_id: str) -> Partition:
        for partition in self.partitions:
            if partition.id == partition_id:
                return partition
        raise InvalidArgument(f"'{partition_id}' is not a partition of '{self.name}'.")

    def check_group(self, group: str) -> None:
        if group.lower() not in {each.lower() for each in self.properties.consumer_groups}:
            raise EntityNotFound(
                f"The messaging entity '{self.name}/ConsumerGroups/{group}' could not be found."
            )

    def choose(self, partition_key: str | None) -> Partition:
        """Choose by hash of the key. Without a key, the partitions take turns."""
        if partition_key is not None:
            number = zlib.crc32(partition_key.encode())
        else:
            number = self._turn
            self._turn += 1
        return self.partitions[number % len(self.partitions)]


def _is_after(event: Event, position: Position) -> bool:
    if isinstance(position.value, datetime):
        return _beyond(event.enqueued_at, position.value, position.inclusive)
    return _beyond(_place(event, position.kind), position.value, position.inclusive)


def _place(event: Event, kind: PositionKind) -> int:
    return event.offset if kind is PositionKind.OFFSET else event.sequence_number


def _beyond(mark: Mark, bound: Mark, inclusive: bool) -> bool:
    return mark >= bound if inclusive else mark > bound
