"""What the handling of events needs from the outside, and no more."""

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
"""What an event leads to, without doing it yet. What it raises is classified by ``failures``."""


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A stream's checkpoint as it was read: ``read_at`` is the store's clock, ``version`` its
    mark. Both the checkpoint and its version are None where the stream has none yet."""

    checkpoint: Checkpoint | None
    read_at: datetime
    version: Any = None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message that is still to be sent; ``key`` is the store's name for its row, ``version`` its
    mark of it, and ``sequence`` the number of its event.

    ``waited`` is how long ago it was committed or taken over last, by the store's clock, and
    ``taken`` how often it was taken over.
    """

    message: OutboxMessage
    key: Any
    sequence: int
    taken: int = 0
    waited: timedelta = field(default=timedelta(0), compare=False)
    version: Any = field(default=None, compare=False)


class CheckpointReader(Protocol):
    """How far a stream is."""

    async def load(self, stream: Stream) -> StoredCheckpoint:
        """The checkpoint. Raises StoreUnavailable."""
        ...


class CheckpointStore(CheckpointReader, Protocol):
    """Each stream's checkpoint, and the transactions that move it."""

    @property
    def limits(self) -> CommitLimits:
        """What one commit may hold."""
        ...

    async def commit(
        self, stream: Stream, saved: StoredCheckpoint, commit: Commit
    ) -> StoredCheckpoint:
        """Write all of a commit or nothing; answers the checkpoint as it stands then.

        Raises Fenced where ``saved`` has a higher epoch than the commit, whatever stands by now;
        then AccountingBroken where the commit has more rows than ``limits`` allow; then
        CommitRefused where the checkpoint is not of ``saved.version`` any more; then
        AccountingBroken where an effect with a value, a message, a dead letter or a gap has a row
        of its kind already or comes twice, or where the store never takes such a row. Raises
        StoreUnavailable where it is not known whether the commit was written.

        A client may repeat a request whose reply was lost. Then this call may raise CommitRefused
        although it succeeded: ``fate`` tells by the ``txid``.
        """
        ...


class OutboxStore(Protocol):
    """The messages that commits left to be sent. All raise StoreUnavailable."""

    async def outbox(self, stream: Stream, limit: int) -> Sequence[StoredMessage]:
        """The messages that are still to be sent, those of earlier events first."""
        ...

    async def take(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        """Take up to a hundred messages over from whoever was to send them: they wait anew.

        Raises CommitRefused where one was taken over or sent since it was read; then none is
        taken, unless the client repeated a request whose reply was lost: then this call took them.
        Raises StoreUnavailable.
        """
        ...

    async def sent(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        """Forget messages that were sent; those that are forgotten already, or are given twice, do
        not matter."""
        ...


class ActivityStore(Protocol):
    """Whether somebody is at work on a stream. Both raise StoreUnavailable."""

    async def mark_at_work(self, stream: Stream) -> None:
        """Note that somebody is at work on the stream now."""
        ...

    async def idle_for(self, stream: Stream) -> timedelta | None:
        """How long ago that was noted last, by the store's clock; None where it never was."""
        ...


class IngestionStore(CheckpointStore, OutboxStore, ActivityStore, Protocol):
    """What a consumer keeps: one class serves all of it."""


class AccountReader(CheckpointReader, Protocol):
    """Which streams there are, how far each is, and what of it is gone. All raise
    StoreUnavailable."""

    async def streams(self) -> Sequence[Stream]:
        """All that have a checkpoint or a dead letter, by key; perhaps also one whose first commit
        failed."""
        ...

    async def gaps(
        self,
        stream: Stream,
        after: int | None,
        limit: int,
        found_since: datetime | None = None,
    ) -> Sequence[Gap]:
        """The first so many that begin above ``after`` (None: from the start), by number; with
        ``found_since`` those that were found then or later."""
        ...


class RetentionStore(AccountReader, Protocol):
    """How old what handlers kept is, and its end. All raise StoreUnavailable."""

    async def marks(self, stream: Stream) -> Sequence[Mark]:
        """All of the stream, by time."""
        ...

    async def put_mark(self, stream: Stream, mark: Mark) -> None:
        """Write it over the one of the same time; once more is the same. Of two at the same time
        either stays."""
        ...

    async def remove_marks(self, stream: Stream, marks: Sequence[Mark]) -> None:
        """Those that are gone already, or are given twice, do not matter."""
        ...

    async def purge_effects(self, stream: Stream, up_to: int, limit: int) -> int:
        """Remove the first so many effects up to and with that number; answers how many.

        Nothing else: messages that are still to be sent stay, and so do dead letters and gaps.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReadBack:
    """The events of a span that the hub still has, up to and with number ``complete_to``.

    A number up to there that has no event is gone for good. A reader may stop before the end of
    a long span, but not before its first number.
    """

    events: tuple[Event, ...]
    complete_to: int


class HubReader(Protocol):
    """Reads events directly, apart from whoever delivers them."""

    async def read_back(self, stream: Stream, span: Span) -> ReadBack:
        """Raises HubUnavailable where it cannot tell what the hub has."""
        ...

    async def state(self, stream: Stream) -> HubState:
        """What the hub says of the partition right now. Raises HubUnavailable."""
        ...

    async def sequence_at(self, stream: Stream, time: datetime) -> int:
        """The number of the first event that is there and came at that time or later; the number
        after the newest where none did. Raises HubUnavailable."""
        ...


class OutboxSender(Protocol):
    """Sends messages to where the outbox leads."""

    async def send(self, messages: Sequence[OutboxMessage]) -> None:
        """Send all. Where it raises, any of them may have been sent; their ids tell."""
        ...
