"""The store of checkpoints, of the outcomes of events, and of the outbox, on any engine of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from shared.ingestion.errors import AccountingBroken, Fenced, RowUnreadable
from shared.ingestion.model import (
    Checkpoint,
    Commit,
    DeadLetter,
    Effect,
    Gap,
    Mark,
    StoredMessage,
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
    Remove,
    Row,
    RowEngine,
    Working,
    Write,
)
from shared.values.metering import Measurement, Meter, no_meter

NUMBER_MAX = 2**63 - 1
WriteInTransaction = Callable[[Any, Stream, Sequence[Effect]], None]
"""Writes further results of effects to the user's own tables, in the transaction that writes the
outcomes of the events. It must neither commit nor roll back. If it raises an error, the transaction
is rolled back, and the function is called for fewer effects."""


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint as read, at the store's time. It and its version are None if there is none."""

    checkpoint: Checkpoint | None
    read_at: datetime
    version: Any = None


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """A dead letter as it was read. ``version`` is its row's ETag or version number."""

    stream: Stream
    letter: DeadLetter
    version: Any


class EventStore:
    """Each stream's checkpoint, the outcomes of its events, and the messages to send. All methods
    raise StoreUnavailable, after which a write may have been made."""

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
        """Write all of a commit or nothing, and return the checkpoint as it is stored then. Raises
        Fenced if ``saved`` has a higher epoch; RowChanged if the checkpoint no longer has
        ``saved.version``, perhaps because a repeated request wrote it; AccountingBroken if a row
        exists, occurs twice or exceeds ``limits``; RowRefused if the store can never take one; and
        errors of the user's tables."""
        check_epoch(saved.checkpoint, commit.checkpoint.epoch)
        check_rows(commit.rows, self.limits)
        writes = commit_writes(commit, saved.version)
        row = await self._write(stream, writes, commit.effects)
        assert row is not None
        self._meter(of_commit(stream, commit, row.written_at))
        return StoredCheckpoint(commit.checkpoint, row.written_at, row.version)

    async def outbox(self, stream: Stream, limit: int) -> Sequence[StoredMessage]:
        """The messages that have not been sent yet, in the order of their events."""
        page = await self._rows.read(OUTBOX, stream.place, limit=limit)
        return [
            replace(row.value, waited=page.read_at - row.written_at, version=row.version)
            for row in page.rows
        ]

    async def take(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        """Take over up to 100 messages, all or none, from another process. Raises RowChanged if one
        was taken over or sent since it was read, perhaps by a repeated request."""
        writes = [
            Put(OUTBOX, replace(each, taken=each.taken + 1), each.version, ("taken",))
            for each in messages
        ]
        await self._write(stream, writes)

    async def sent(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        """Delete messages that were sent, also if some are deleted already or given twice."""
        await self._rows.delete(OUTBOX, stream.place, messages)

    async def mark_at_work(self, stream: Stream) -> None:
        """Record that a process is working on the stream now."""
        await self._rows.overwrite(WORKING, stream.place, Working())

    async def idle_for(self, stream: Stream) -> timedelta | None:
        """The time since the last such record, by the store's clock; None if there is none."""
        page = await self._rows.read(WORKING, stream.place)
        return page.read_at - page.first.written_at if page.first else None

    # --- dead letters and gaps ---

    async def streams(self) -> Sequence[Stream]:
        """All streams with a checkpoint or a dead letter, by key, and perhaps begun ones."""
        places = await self._rows.places(CHECKPOINT, DEAD)
        return sorted([Stream(*place) for place in places], key=lambda stream: stream.key)

    async def dead_letters(
        self,
        stream: Stream,
        after: int | None,
        limit: int,
        failed_since: datetime | None = None,
    ) -> Sequence[StoredDeadLetter]:
        """The first dead letters above ``after``, by number, if they failed at ``failed_since`` or
        later. One that cannot be read is of the kind ``unreadable``."""
        page = await self._rows.read(
            DEAD, stream.place, after=after, limit=limit, since=failed_since
        )
        return _letters(stream, page.rows)

    async def newest_dead_letters(self, stream: Stream, limit: int) -> Sequence[StoredDeadLetter]:
        """Those with the highest numbers, the highest first, read with few requests."""
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
        """Replace the dead letter by the effect and its messages. Raises AccountingBroken if the
        effect has another number or does not fit, and RowChanged if the row changed or is gone."""
        check_number(stored.letter, effect)
        check_rows(1 + effect.rows, self.limits)
        await self._end(stored, [effect])

    async def remove(self, stored: StoredDeadLetter) -> None:
        """Delete the dead letter permanently. Raises RowChanged if the row changed or is gone."""
        await self._end(stored, [])

    async def gaps(
        self,
        stream: Stream,
        after: int | None,
        limit: int,
        found_since: datetime | None = None,
    ) -> Sequence[Gap]:
        """The first gaps above ``after``, by number, if found at ``found_since`` or later."""
        page = await self._rows.read(GAP, stream.place, after=after, limit=limit, since=found_since)
        return [row.value for row in page.rows]

    # --- retention ---

    async def marks(self, stream: Stream) -> Sequence[Mark]:
        """All marks of the stream, in the order of their times."""
        return [row.value for row in (await self._rows.read(MARK, stream.place)).rows]

    async def put_mark(self, stream: Stream, mark: Mark) -> None:
        """Write the mark, replacing one of the same time."""
        await self._rows.overwrite(MARK, stream.place, mark)

    async def remove_marks(self, stream: Stream, marks: Sequence[Mark]) -> None:
        """Delete the marks, also if some are deleted already or given twice."""
        await self._rows.delete(MARK, stream.place, marks)

    async def purge_effects(self, stream: Stream, up_to: int, limit: int) -> int:
        """Remove the first ``limit`` effects up to and including that number; return how many."""
        return await self._rows.purge(EFFECT, stream.place, up_to, limit)

    async def _end(self, stored: StoredDeadLetter, effects: Sequence[Effect]) -> None:
        writes = [Remove(DEAD, stored.letter, stored.version), *effect_writes(effects)]
        await self._write(stored.stream, writes, effects)

    async def _write(
        self, stream: Stream, writes: Sequence[Write], effects: Sequence[Effect] = ()
    ) -> Row[Any] | None:
        own = self._write_in_transaction
        also = (lambda connection: own(connection, stream, effects)) if own and effects else None
        return await self._rows.write(stream.place, writes, also)


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
        StoredMessage(each.sequence, position, message.message_id, message.body)
        for each in effects
        if each.messages
        for position, message in enumerate(each.messages)
    ]
    values = [each for each in effects if each.value is not None]
    return [Insert(EFFECT, values), Insert(OUTBOX, messages)]


def _letters(stream: Stream, rows: Sequence[Row[DeadLetter]]) -> list[StoredDeadLetter]:
    return [StoredDeadLetter(stream, row.value, row.version) for row in rows]


def check_epoch(stored: Checkpoint | None, epoch: int) -> None:
    """Raises Fenced if the stored checkpoint has a higher epoch."""
    if stored is not None and stored.epoch > epoch:
        raise Fenced(
            f"epoch {epoch} is over, because the stored checkpoint has epoch {stored.epoch}; "
            "another processor owns the partition"
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
