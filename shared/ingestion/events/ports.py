"""What the flows need from the outside, and no more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from shared.ingestion.breaker.breaker import Breaker
from shared.ingestion.breaker.failure_window import Tally
from shared.ingestion.events.accounting import CommitLimits
from shared.ingestion.events.survey import Span
from shared.ingestion.model import (
    Checkpoint,
    Commit,
    DeadLetter,
    Effect,
    Event,
    Gap,
    HubState,
    Mark,
    OutboxMessage,
    Stream,
)
from shared.ingestion.ownership.balancing import Claim, Ownership

T = TypeVar("T")

Handler = Callable[[Event], Awaitable[Effect]]
"""What an event leads to, without doing it yet. What it raises is classified by ``failures``."""


@dataclass(frozen=True, slots=True)
class Saved:
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


class IngestionStore(Protocol):
    """Remembers each stream's checkpoint, and what became of its events."""

    @property
    def limits(self) -> CommitLimits:
        """What one commit may hold."""
        ...

    async def load(self, stream: Stream) -> Saved:
        """The checkpoint. Raises StoreUnavailable."""
        ...

    async def commit(self, stream: Stream, saved: Saved, commit: Commit) -> Saved:
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

    async def outbox(self, stream: Stream, limit: int) -> Sequence[StoredMessage]:
        """The messages that are still to be sent, those of earlier events first.

        Raises StoreUnavailable.
        """
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
        not matter.

        Raises StoreUnavailable.
        """
        ...

    async def mark_at_work(self, stream: Stream) -> None:
        """Note that somebody is at work on the stream now. Raises StoreUnavailable."""
        ...

    async def idle_for(self, stream: Stream) -> timedelta | None:
        """How long ago that was noted last, by the store's clock; None where it never was.

        Raises StoreUnavailable.
        """
        ...


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """A dead letter as it was read; ``version`` is the store's mark of its row."""

    stream: Stream
    letter: DeadLetter
    version: Any


class DeadLetterStore(Protocol):
    """What became of the events that failed, over all streams. All raise StoreUnavailable."""

    async def streams(self) -> Sequence[Stream]:
        """All that have a checkpoint or a dead letter, by key; perhaps also one whose first commit
        failed."""
        ...

    async def dead_letters(
        self,
        stream: Stream,
        after: int | None,
        limit: int,
        failed_since: datetime | None = None,
    ) -> Sequence[StoredDeadLetter]:
        """The first so many with a number above ``after`` (None: from the start), by number; with
        ``failed_since`` those that failed then or later, and no others are read.

        A row that cannot be read is a letter of the kind ``unreadable``, whose error says why.
        """
        ...

    async def dead_letter(self, stream: Stream, sequence: int) -> StoredDeadLetter | None:
        """The dead letter of this number, if there is one."""
        ...

    async def redrive(self, stored: StoredDeadLetter, effect: Effect) -> None:
        """The dead letter becomes the effect, with its messages, in one transaction.

        Raises AccountingBroken where the effect is of another number or fits into no transaction,
        CommitRefused where the row changed or is gone (of two who redrive, one does), or where the
        client repeated a request whose reply was lost: then the effect is there.
        """
        ...

    async def remove(self, stored: StoredDeadLetter) -> None:
        """Give the event up for good. Raises CommitRefused where the row changed or is gone."""
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


class NewestDeadLetters(Protocol):
    """The dead letters that people look at first. All raise StoreUnavailable."""

    async def streams(self) -> Sequence[Stream]:
        """See DeadLetterStore."""
        ...

    async def newest_dead_letters(self, stream: Stream, limit: int) -> Sequence[StoredDeadLetter]:
        """Those with the highest numbers, the highest first. What is read for that is bounded,
        however many there are."""
        ...


class Accounts(Protocol):
    """Which streams there are, and how far each is."""

    async def streams(self) -> Sequence[Stream]:
        """See DeadLetterStore."""
        ...

    async def load(self, stream: Stream) -> Saved:
        """See IngestionStore."""
        ...


class RetentionStore(Protocol):
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


class DeadLetterSender(Protocol):
    """Sends dead letters to where people or another app deal with them."""

    async def send(self, letters: Sequence[StoredDeadLetter]) -> None:
        """Send all, each under the id of its event. Raises SendingFailed, where any of them may
        have been sent; the ids tell, and a queue that detects duplicates takes each once."""
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


class HubPartitions(Protocol):
    """The partitions that a hub has right now."""

    async def partition_ids(self) -> tuple[str, ...]:
        """Raises HubUnavailable."""
        ...


class PartitionReceiver(Protocol):
    """Delivers a partition's events to one reader, as long as nobody reads under a higher epoch."""

    async def receive(
        self,
        partition_id: str,
        after: int | None,
        epoch: int,
        deliver: Callable[[Sequence[Event]], Awaitable[None]],
    ) -> None:
        """Deliver batch after batch of what follows ``after`` (None: of all there is), the next
        one when the last one is done with; an empty one now and then while nothing comes.

        Never returns. Raises HubUnavailable, also where somebody else took the partition over,
        HubSilent where neither a batch nor an error comes, and whatever ``deliver`` raises.
        """
        ...


class Pause(Protocol):
    """Waits before another attempt, the longer the more of them have failed in a row."""

    async def __call__(self, failures: int) -> None: ...


class Retrying(Protocol):
    """Tries again, a bounded number of times, with growing and random delays."""

    async def __call__(
        self, attempt: Callable[[], Awaitable[T]], worth: Callable[[Exception], bool]
    ) -> T:
        """The first success. Raises the first error not worth another attempt, or the last."""
        ...


class Together(Protocol):
    """Runs several pieces of work at a time, and returns when all have ended."""

    async def __call__(self, work: Iterable[Callable[[], Awaitable[None]]]) -> None:
        """Takes the next piece when there is time for it, and no sooner."""
        ...


Beat = Callable[[], Awaitable[None]]
"""Raises nothing: what it cannot do now it does the next time."""


class Beside(Protocol):
    """Does a piece of work, and beats every few seconds until it has ended."""

    async def __call__(self, work: Awaitable[T], beat: Beat) -> T:
        """What the work answers or raises. Returns when the last beat has ended too."""
        ...


class MessageSender(Protocol):
    """Sends messages to where the outbox leads."""

    async def send(self, messages: Sequence[OutboxMessage]) -> None:
        """Send all. Where it raises, any of them may have been sent; their ids tell."""
        ...


@dataclass(frozen=True, slots=True)
class SeenOwners:
    """All ownership rows as they were read; ``read_at`` is the store's clock."""

    rows: tuple[Ownership, ...]
    read_at: datetime


class OwnershipStore(Protocol):
    """Who owns which partition of one hub and consumer group, by compare-and-swap."""

    async def owners(self) -> SeenOwners:
        """All rows, in no order. Raises StoreUnavailable."""
        ...

    async def write(self, claim: Claim) -> Ownership:
        """Write the row as it is claimed, at the store's time; answers the new row.

        Raises ClaimLost where the row is not of the expected version, StoreUnavailable. After
        either of them the claim may stand, where a reply was lost: ``applied`` tells by the row.
        """
        ...


@dataclass(frozen=True, slots=True)
class SeenBreaker:
    """A breaker's row as it was read: ``read_at`` is the store's clock, ``version`` its mark, None
    where there is no row yet."""

    breaker: Breaker
    read_at: datetime
    version: Any = None


class BreakerStore(Protocol):
    """One breaker's row, and the tallies of all instances. All raise StoreUnavailable."""

    async def load(self) -> SeenBreaker:
        """The row; a closed breaker where there is none yet."""
        ...

    async def replace(self, seen: SeenBreaker, breaker: Breaker) -> SeenBreaker:
        """Write the row. Raises BreakerChanged where it is not of ``seen.version`` any more, also
        where that is by a first attempt of this call whose reply was lost."""
        ...

    async def put_tally(self, tally: Tally) -> None:
        """Write an instance's own row of a bucket, whatever stood there before."""
        ...

    async def tallies(self, since: datetime) -> Sequence[Tally]:
        """The rows of all instances whose bucket began then or later, in no order. Those that are
        older than the newest bucket by ``TALLIES_KEPT`` may be gone."""
        ...


class ConsumptionSwitch(Protocol):
    """Starts and stops the delivery of events, beyond the breaker that holds them."""

    async def turn(self, *, on: bool) -> None:
        """Raises DependencyDown where nobody knows whether that was done."""
        ...


class Announcer(Protocol):
    """Tells people that a breaker opened."""

    async def announce(self, breaker: Breaker) -> None:
        """Tell of the incident. At least once: its epoch makes a repetition known as one.

        Raises AnnouncementFailed.
        """
        ...
