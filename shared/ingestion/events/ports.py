"""What the handling of events needs from stores, the hub and the message queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from shared.ingestion.events.accounting import CommitLimits
from shared.ingestion.events.survey import Span
from shared.ingestion.model import (
    Checkpoint,
    Commit,
    Effect,
    Event,
    Gap,
    HubState,
    Mark,
    OutboxMessage,
    Stream,
)

T = TypeVar("T")


Handler = Callable[[Event], Awaitable[Effect]]
"""Returns the effect of an event without carrying it out. Errors that it raises are classified by
``failure_cause``."""


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A stream's checkpoint as it was read.

    ``read_at`` is the store's time; ``version`` is the row's ETag or version number. Both the
    checkpoint and its version are None if the stream has none yet.
    """

    checkpoint: Checkpoint | None
    read_at: datetime
    version: Any = None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message that has not been sent yet. ``key`` is the store's name for its row, ``version``
    the row's ETag or version number, and ``sequence`` the sequence number of its event.

    ``waited`` is the time since it was committed or last taken over, by the store's clock.
    ``taken`` is how often it was taken over.
    """

    message: OutboxMessage
    key: Any
    sequence: int
    taken: int = 0
    waited: timedelta = field(default=timedelta(0), compare=False)
    version: Any = field(default=None, compare=False)


class CheckpointReader(Protocol):
    """Reads the checkpoint of a stream: the position up to which each event has an outcome."""

    async def load(self, stream: Stream) -> StoredCheckpoint:
        """The checkpoint. Raises StoreUnavailable."""
        ...


class CheckpointStore(CheckpointReader, Protocol):
    """Each stream's checkpoint, and the transactions that advance it."""

    @property
    def limits(self) -> CommitLimits:
        """The limits of one commit."""
        ...

    async def commit(
        self, stream: Stream, saved: StoredCheckpoint, commit: Commit
    ) -> StoredCheckpoint:
        """Write all of a commit or nothing, and return the checkpoint as it is stored then.

        The checks are made in this order. Raises Fenced if ``saved`` has a higher epoch than the
        commit, whatever the store contains by now; AccountingBroken if the commit has more rows
        than ``limits`` allow; CommitRefused if the stored checkpoint no longer has
        ``saved.version``; AccountingBroken if the row of an effect with a value, a message, a dead
        letter or a gap exists already or occurs twice; RowRefused if the store can never take such
        a row. Errors of the user's own tables are raised unchanged.
        Raises StoreUnavailable if it is unknown whether the commit was written.

        A client may repeat a request whose reply was lost. Then this call may raise CommitRefused
        although it succeeded; ``commit_status`` compares the ``txid`` to find out.
        """
        ...


class OutboxStore(Protocol):
    """The messages that commits left to be sent. All methods raise StoreUnavailable."""

    async def outbox(self, stream: Stream, limit: int) -> Sequence[StoredMessage]:
        """The messages that have not been sent yet, in the order of their events."""
        ...

    async def take(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        """Take over up to 100 messages from the process that has the lease on them.

        Their waiting time starts anew. Raises CommitRefused if one of them was taken over or sent
        since it was read. In that case no message is taken over, with one exception: if the client
        repeated a request whose reply was lost, this call did take the messages over. Raises
        StoreUnavailable.
        """
        ...

    async def sent(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        """Delete messages that were sent. Messages that are already deleted, or are given twice,
        are ignored."""
        ...


class ActivityStore(Protocol):
    """Records whether a process is working on a stream. Both methods raise StoreUnavailable."""

    async def mark_at_work(self, stream: Stream) -> None:
        """Record that a process is working on the stream now."""
        ...

    async def idle_for(self, stream: Stream) -> timedelta | None:
        """The time since the last such record, by the store's clock; None if there is none."""
        ...


class IngestionStore(CheckpointStore, OutboxStore, ActivityStore, Protocol):
    """Everything that a consumer stores; one class implements it."""


class AccountReader(CheckpointReader, Protocol):
    """Which streams exist, how far each is accounted for, and which events are gone. All methods
    raise StoreUnavailable."""

    async def streams(self) -> Sequence[Stream]:
        """All streams that have a checkpoint or a dead letter, in the order of their keys. A stream
        whose first commit failed may be among them."""
        ...

    async def gaps(
        self,
        stream: Stream,
        after: int | None,
        limit: int,
        found_since: datetime | None = None,
    ) -> Sequence[Gap]:
        """The first ``limit`` gaps that begin above ``after`` (None: from the start), in the order
        of their numbers. With ``found_since``, only gaps that were found at that time or later."""
        ...


class RetentionStore(AccountReader, Protocol):
    """The age of stored effects, and their removal. All methods raise StoreUnavailable."""

    async def marks(self, stream: Stream) -> Sequence[Mark]:
        """All marks of the stream, in the order of their times."""
        ...

    async def put_mark(self, stream: Stream, mark: Mark) -> None:
        """Write the mark, replacing one of the same time. Writing it again changes nothing. If two
        marks have the same time, either may remain."""
        ...

    async def remove_marks(self, stream: Stream, marks: Sequence[Mark]) -> None:
        """Delete the marks. Marks that are already deleted, or are given twice, are ignored."""
        ...

    async def purge_effects(self, stream: Stream, up_to: int, limit: int) -> int:
        """Remove the first ``limit`` effects up to and including that number, and return how many
        were removed.

        Nothing else is removed: unsent messages, dead letters and gaps stay.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReadBack:
    """The events of a span that the hub still has, up to and including the number ``complete_to``.

    If a number up to ``complete_to`` has no event here, its event is gone permanently. A reader may
    stop before the end of a long span, but not before its first number.
    """

    events: tuple[Event, ...]
    complete_to: int
    oldest: int | None = None
    """The number of the oldest event that the hub still had after these were read. Retention has
    removed no event with a higher number. None if it is unknown or the partition is empty."""


class HubReader(Protocol):
    """Reads events directly from the hub, independently of their delivery."""

    async def read_back(self, stream: Stream, span: Span) -> ReadBack:
        """Raises HubUnavailable if it is unknown which events the hub has."""
        ...

    async def state(self, stream: Stream) -> HubState:
        """The current state of the hub and the partition. Raises HubUnavailable."""
        ...

    async def sequence_at(self, stream: Stream, time: datetime) -> int:
        """The number of the first event in the hub that was enqueued at that time or later; if
        there is none, the number after the newest. Raises HubUnavailable."""
        ...


class OutboxSender(Protocol):
    """Sends outgoing messages to their destination."""

    async def send(self, messages: Sequence[OutboxMessage]) -> None:
        """Send all messages.

        Raises SentInPart with those that were sent. With any other error, each of them may have
        been sent; receivers recognize repetitions by their ids.
        """
        ...
