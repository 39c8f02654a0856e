"""The store of checkpoints, of the outcomes of events, and of the outbox, on any engine of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from shared.ingestion.errors import (
    AccountingBroken,
    CommitRefused,
    Fenced,
    RowChanged,
    RowUnreadable,
)
from shared.ingestion.model import (
    Checkpoint,
    Commit,
    DeadLetter,
    Effect,
    Gap,
    Mark,
    OutboxMessage,
    Stream,
    set_aside_among,
)
from shared.ingestion.store.rows import (
    CHECKPOINT,
    DEAD,
    EFFECT,
    GAP,
    MARK,
    OUTBOX,
    WORKING,
    CommitLimits,
    Insert,
    Put,
    QueuedMessage,
    Remove,
    Row,
    RowEngine,
    Working,
    Write,
)
from shared.values.metering import Measurement, Meter, no_meter

NUMBER_MAX = 2**63 - 1
WriteInTransaction = Callable[[Any, Stream, Sequence[Effect]], None]
"""A function that writes further results of effects to the user's own tables. The function runs in
the transaction that writes the outcomes of the events. So the outcomes and the user's rows are
committed together, or not at all. The function must neither commit nor roll back. If the function
raises an error, the transaction is rolled back, and the function is called for fewer effects.
"""


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


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """A dead letter as it was read. ``version`` is its row's ETag or version number."""

    stream: Stream
    letter: DeadLetter
    version: Any


class EventStore:
    """Each stream's checkpoint, the outcomes of its events, and the messages to send.

    ``write_in_transaction`` is called in the transaction of each commit and redrive that has
    effects. ``limits`` are those of one transaction. All methods raise StoreUnavailable, after
    which a write may have been made.
    """

    def __init__(
        self,
        rows: RowEngine,
        write_in_transaction: WriteInTransaction | None = None,
        meter: Meter = no_meter,
    ) -> None:
        self._rows = rows
        self._meter = meter
        self._write_in_transaction = write_in_transaction
        self.limits = rows.limits
        self.close = rows.close

    async def load(self, stream: Stream) -> StoredCheckpoint:
        """The position up to which each event has an outcome."""
        page = await self._rows.read(CHECKPOINT, stream.place)
        if page.first is None:
            return StoredCheckpoint(None, page.read_at)
        return StoredCheckpoint(page.first.value, page.read_at, page.first.version)

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

        A client may repeat a request whose reply was lost. Then this call may raise CommitRefused
        although it succeeded; ``commit_status`` compares the ``txid`` to find out.
        """
        check_epoch(saved.checkpoint, commit)
        check_rows(commit.rows, self.limits)
        writes = commit_writes(commit, saved.version)
        refusal = f"{stream.key}: the checkpoint changed since it was read"
        row = await self._write(stream, writes, refusal, commit.effects)
        assert row is not None
        self._meter(of_commit(stream, commit, row.written_at))
        return StoredCheckpoint(commit.checkpoint, row.written_at, row.version)

    async def outbox(self, stream: Stream, limit: int) -> Sequence[StoredMessage]:
        """The messages that have not been sent yet, in the order of their events."""
        page = await self._rows.read(OUTBOX, stream.place, limit=limit)
        return [
            StoredMessage(
                OutboxMessage(row.value.message_id, row.value.body),
                (row.value.sequence, row.value.position),
                row.value.sequence,
                row.value.taken or 0,
                page.read_at - row.written_at,
                row.version,
            )
            for row in page.rows
        ]

    async def take(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        """Take over up to 100 messages from the process that has the lease on them.

        Their waiting time starts anew. Raises CommitRefused if one of them was taken over or sent
        since it was read. In that case no message is taken over, with one exception: if the client
        repeated a request whose reply was lost, this call did take the messages over.
        """
        writes = [
            Put(OUTBOX, _queued(each, each.taken + 1), each.version, ("taken",))
            for each in messages
        ]
        refusal = f"{stream.key}: another instance took over or sent a message of the outbox"
        await self._write(stream, writes, refusal)

    async def sent(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        """Delete messages that were sent. Messages that are already deleted, or are given twice,
        are ignored."""
        await self._rows.delete(OUTBOX, stream.place, [_queued(each) for each in messages])

    async def mark_at_work(self, stream: Stream) -> None:
        """Record that a process is working on the stream now."""
        await self._rows.overwrite(WORKING, stream.place, Working())

    async def idle_for(self, stream: Stream) -> timedelta | None:
        """The time since the last such record, by the store's clock; None if there is none."""
        page = await self._rows.read(WORKING, stream.place)
        return page.read_at - page.first.written_at if page.first else None

    # --- dead letters and gaps ---

    async def streams(self) -> Sequence[Stream]:
        """All streams that have a checkpoint or a dead letter, in the order of their keys. A stream
        whose first commit failed may be among them."""
        places = await self._rows.places(CHECKPOINT, DEAD)
        return sorted([Stream(*place) for place in places], key=lambda stream: stream.key)

    async def dead_letters(
        self,
        stream: Stream,
        after: int | None,
        limit: int,
        failed_since: datetime | None = None,
    ) -> Sequence[StoredDeadLetter]:
        """The first ``limit`` dead letters with a number above ``after`` (None: from the start), in
        the order of their numbers. With ``failed_since``, only those that failed at that time or
        later; others are not even read.

        A row that cannot be read is returned as a dead letter of the kind ``unreadable``, whose
        error says why.
        """
        page = await self._rows.read(
            DEAD, stream.place, after=after, limit=limit, since=failed_since
        )
        return _letters(stream, page.rows)

    async def newest_dead_letters(self, stream: Stream, limit: int) -> Sequence[StoredDeadLetter]:
        """The dead letters with the highest numbers, the highest first. The number of rows that are
        read is bounded, however many dead letters there are.
        """
        try:
            checkpoint = (await self.load(stream)).checkpoint
            within = (checkpoint.start, checkpoint.sequence) if checkpoint else (0, 0)
        except RowUnreadable:
            within = (0, NUMBER_MAX)
        return _letters(stream, (await self._rows.newest(DEAD, stream.place, limit, within)).rows)

    async def dead_letter(self, stream: Stream, sequence: int) -> StoredDeadLetter | None:
        """The dead letter of this number; None if there is none."""
        page = await self._rows.read(DEAD, stream.place, (sequence,))
        return next(iter(_letters(stream, page.rows)), None)

    async def redrive(self, stored: StoredDeadLetter, effect: Effect) -> None:
        """Replace the dead letter by the effect and its messages, in one transaction.

        Raises AccountingBroken if the effect has another number or does not fit into a transaction.
        Raises CommitRefused if the row changed or is gone, so that of two concurrent redrives only
        one succeeds. A client may also repeat a request whose reply was lost; then CommitRefused is
        raised although the effect was written.
        """
        check_number(stored.letter, effect)
        check_rows(1 + effect.rows, self.limits)
        await self._end(stored, [effect])

    async def remove(self, stored: StoredDeadLetter) -> None:
        """Delete the dead letter permanently. Raises CommitRefused if the row changed or is
        gone."""
        await self._end(stored, [])

    async def gaps(
        self,
        stream: Stream,
        after: int | None,
        limit: int,
        found_since: datetime | None = None,
    ) -> Sequence[Gap]:
        """The first ``limit`` gaps that begin above ``after`` (None: from the start), in the order
        of their numbers. With ``found_since``, only gaps that were found at that time or later."""
        page = await self._rows.read(GAP, stream.place, after=after, limit=limit, since=found_since)
        return [row.value for row in page.rows]

    # --- retention ---

    async def marks(self, stream: Stream) -> Sequence[Mark]:
        """All marks of the stream, in the order of their times."""
        return [row.value for row in (await self._rows.read(MARK, stream.place)).rows]

    async def put_mark(self, stream: Stream, mark: Mark) -> None:
        """Write the mark, replacing one of the same time. Writing it again changes nothing. If two
        marks have the same time, either may remain."""
        await self._rows.overwrite(MARK, stream.place, mark)

    async def remove_marks(self, stream: Stream, marks: Sequence[Mark]) -> None:
        """Delete the marks. Marks that are already deleted, or are given twice, are ignored."""
        await self._rows.delete(MARK, stream.place, marks)

    async def purge_effects(self, stream: Stream, up_to: int, limit: int) -> int:
        """Remove the first ``limit`` effects up to and including that number, and return how many
        were removed.

        Nothing else is removed: unsent messages, dead letters and gaps stay.
        """
        return await self._rows.purge(EFFECT, stream.place, up_to, limit)

    async def _end(self, stored: StoredDeadLetter, effects: Sequence[Effect]) -> None:
        """Delete the dead letter, and write the effects that replace it."""
        name = f"{stored.stream.key}: {stored.letter.sequence}"
        await self._write(
            stored.stream,
            [Remove(DEAD, stored.letter, stored.version), *effect_writes(effects)],
            f"{name}: the dead letter was changed or removed",
            effects,
        )

    async def _write(
        self, stream: Stream, writes: Sequence[Write], refusal: str, effects: Sequence[Effect] = ()
    ) -> Row[Any] | None:
        own = self._write_in_transaction
        also = (lambda connection: own(connection, stream, effects)) if own and effects else None
        try:
            return await self._rows.write(stream.place, writes, also)
        except RowChanged as error:
            raise CommitRefused(refusal) from error


def commit_writes(commit: Commit, version: Any) -> list[Write]:
    return [
        Put(CHECKPOINT, commit.checkpoint, version),
        *effect_writes(commit.effects),
        Insert(DEAD, commit.dead_letters),
        Insert(GAP, commit.gaps),
    ]


def effect_writes(effects: Sequence[Effect]) -> list[Write]:
    """One row for each value, and one for each message."""
    messages = [
        QueuedMessage(each.sequence, position, message.message_id, message.body)
        for each in effects
        if each.messages
        for position, message in enumerate(each.messages)
    ]
    values = [each for each in effects if each.value is not None]
    return [Insert(EFFECT, values), Insert(OUTBOX, messages)]


def _queued(stored: StoredMessage, taken: int | None = None) -> QueuedMessage:
    sequence, position = stored.key
    return QueuedMessage(sequence, position, stored.message.message_id, stored.message.body, taken)


def _letters(stream: Stream, rows: Sequence[Row[DeadLetter]]) -> list[StoredDeadLetter]:
    return [StoredDeadLetter(stream, row.value, row.version) for row in rows]


def check_epoch(stored: Checkpoint | None, commit: Commit) -> None:
    """Raises Fenced if the stored checkpoint has a higher epoch than the commit."""
    if stored is not None and stored.epoch > commit.checkpoint.epoch:
        raise Fenced(
            f"epoch {commit.checkpoint.epoch} is over, because the stored checkpoint has epoch "
            f"{stored.epoch}; another processor owns the partition"
        )


def check_rows(rows: int, limits: CommitLimits) -> None:
    """Raises AccountingBroken if a transaction has more rows than the store takes."""
    if rows > limits.rows_max:
        raise AccountingBroken(
            f"the transaction has {rows} rows, but the store takes at most {limits.rows_max}"
        )


def check_number(letter: DeadLetter, effect: Effect) -> None:
    """Raises AccountingBroken if the effect and the dead letter belong to different events."""
    if effect.sequence != letter.sequence:
        raise AccountingBroken(
            f"the effect belongs to event {effect.sequence}, but the dead letter belongs to event "
            f"{letter.sequence}"
        )


def of_commit(stream: Stream, commit: Commit, committed_at: datetime) -> Iterator[Measurement]:
    partition = {"hub": stream.hub, "partition": stream.partition_id}
    lag = (committed_at - commit.checkpoint.enqueued_at).total_seconds()
    yield "autoscaler.ingestion.lag", max(lag, 0), partition
    aside = set_aside_among(commit.effects)
    counts = {
        "effect": len(commit.effects) - aside,
        "set_aside": aside,
        "gap": sum([gap.count for gap in commit.gaps]),
        "dead_letter": len(commit.dead_letters),
    }
    for outcome, count in counts.items():
        if count:
            yield "autoscaler.ingestion.outcomes", count, {**partition, "outcome": outcome}
