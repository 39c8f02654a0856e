"""What became of events in a SQL database: one transaction a commit, which others can join."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    insert,
    select,
    true,
    union,
    update,
)
from sqlalchemy.exc import IntegrityError

from shared.adapters.sql.engine import Sql
from shared.adapters.sql.schema import (
    NAMES,
    checkpoints,
    dead_letters,
    effects,
    gaps,
    marks,
    outbox,
    server_now,
    working,
)
from shared.adapters.sql.writing import (
    end_dead_letter,
    insert_commit,
    insert_effects,
    move_checkpoint,
    of_stream,
    where_stream,
)
from shared.ingestion.dead_letters.ports import StoredDeadLetter
from shared.ingestion.errors import CommitRefused
from shared.ingestion.events.accounting import CommitLimits, check_epoch, check_number, check_rows
from shared.ingestion.events.ports import StoredCheckpoint, StoredMessage
from shared.ingestion.model import (
    Checkpoint,
    Commit,
    DeadLetter,
    Effect,
    FailureKind,
    Gap,
    Mark,
    OutboxMessage,
    Stream,
)
from shared.values.redaction import redacting

TakePart = Callable[[Connection, Stream, Sequence[Effect]], None]
"""Writes what else the effects lead to, into tables of its own, in the transaction that accounts
for them: both stand or neither does. It neither commits nor rolls back. What it raises undoes the
transaction and holds the partition."""


_NOW = select(server_now().label("now")).subquery()
_LOAD = select(_NOW.c.now, checkpoints).select_from(
    _NOW.outerjoin(checkpoints, and_(true(), of_stream(checkpoints)))
)
_SENT = delete(outbox).where(
    of_stream(outbox),
    outbox.c.sequence == bindparam("b_sequence"),
    outbox.c.position == bindparam("b_position"),
)


_OUTBOX = select(outbox, server_now().label("now")).where(of_stream(outbox))
_TAKE = (
    update(outbox)
    .where(
        of_stream(outbox),
        outbox.c.sequence == bindparam("b_sequence"),
        outbox.c.position == bindparam("b_position"),
        outbox.c.taken == bindparam("b_taken"),
    )
    .values(waits_since=server_now(), taken=outbox.c.taken + 1)
)
_WORK = update(working).where(of_stream(working)).values(worked_at=server_now())
_IDLE = select(working.c.worked_at, server_now().label("now")).where(of_stream(working))


_MARKS = select(marks).where(of_stream(marks)).order_by(marks.c.at)
_UNMARK = delete(marks).where(of_stream(marks), marks.c.at == bindparam("b_at"))
_OLD = (
    select(effects.c.sequence)
    .where(of_stream(effects), effects.c.sequence <= bindparam("b_up_to"))
    .order_by(effects.c.sequence)
)
_PURGE = delete(effects).where(of_stream(effects), effects.c.sequence <= bindparam("b_up_to"))


@redacting
class SqlIngestionStore:
    """See IngestionStore, DeadLetterStore and RetentionStore. A checkpoint is its own version."""

    limits = CommitLimits(rows_max=10_000, size_bytes_max=32_000_000, row_bytes_max=16_000_000)

    def __init__(self, sql: Sql, take_part: TakePart | None = None) -> None:
        self._sql = sql
        self._take_part = take_part

    async def load(self, stream: Stream) -> StoredCheckpoint:
        row = await self._sql.read(lambda c: c.execute(_LOAD, where_stream(stream)).one())
        if row.txid is None:
            return StoredCheckpoint(None, row.now)
        checkpoint = Checkpoint(*[getattr(row, name) for name in Checkpoint.__slots__])
        return StoredCheckpoint(checkpoint, row.now, checkpoint)

    async def commit(
        self, stream: Stream, saved: StoredCheckpoint, commit: Commit
    ) -> StoredCheckpoint:
        check_epoch(saved.checkpoint, commit)
        check_rows(commit.rows, self.limits)

        def work(connection: Connection) -> datetime:
            at = move_checkpoint(connection, stream, saved.version, commit.checkpoint)
            insert_commit(connection, stream, commit)
            self._join(connection, stream, commit.effects)
            return at

        at = await self._sql.write(work)
        return StoredCheckpoint(commit.checkpoint, at, commit.checkpoint)

    async def outbox(self, stream: Stream, limit: int) -> Sequence[StoredMessage]:
        order = (outbox.c.sequence, outbox.c.position)
        rows = await self._select(_OUTBOX, order, stream, limit)
        return [
            StoredMessage(
                OutboxMessage(row.message_id, row.body),
                (row.sequence, row.position),
                row.sequence,
                row.taken,
                row.now - row.waits_since,
            )
            for row in rows
        ]

    async def take(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        def work(connection: Connection) -> None:
            for each in messages:
                guard = {**_place(each), "b_taken": each.taken}
                if connection.execute(_TAKE, {**where_stream(stream), **guard}).rowcount != 1:
                    raise CommitRefused(f"{stream.key}: a message was taken over or sent")

        await self._sql.write(work)

    async def sent(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        if messages:
            places = [{**where_stream(stream), **_place(each)} for each in messages]
            await self._sql.write(lambda c: c.execute(_SENT, places))

    async def mark_at_work(self, stream: Stream) -> None:
        def write(connection: Connection) -> None:
            if connection.execute(_WORK, where_stream(stream)).rowcount == 0:
                values = {**stream.names, "worked_at": server_now()}
                connection.execute(insert(working).values(values))

        with suppress(IntegrityError):  # another noted it at the same time
            await self._sql.write(write)

    async def idle_for(self, stream: Stream) -> timedelta | None:
        row = await self._sql.read(lambda c: c.execute(_IDLE, where_stream(stream)).one_or_none())
        return None if row is None else row.now - row.worked_at

    # --- dead letters ---

    async def streams(self) -> Sequence[Stream]:
        found = union(*[select(*[t.c[n] for n in NAMES]) for t in (checkpoints, dead_letters)])
        rows = await self._sql.read(lambda c: c.execute(found).all())
        return sorted([Stream(*row) for row in rows], key=lambda stream: stream.key)

    async def dead_letters(
        self,
        stream: Stream,
        after: int | None,
        limit: int,
        failed_since: datetime | None = None,
    ) -> Sequence[StoredDeadLetter]:
        c = dead_letters.c
        query = _page(dead_letters, c.sequence, after, c.failed_at, failed_since)
        rows = await self._select(query, (c.sequence,), stream, limit)
        return [_stored(stream, row) for row in rows]

    async def newest_dead_letters(self, stream: Stream, limit: int) -> Sequence[StoredDeadLetter]:
        query = select(dead_letters).where(of_stream(dead_letters))
        rows = await self._select(query, (dead_letters.c.sequence.desc(),), stream, limit)
        return [_stored(stream, row) for row in rows]

    async def dead_letter(self, stream: Stream, sequence: int) -> StoredDeadLetter | None:
        query = select(dead_letters).where(
            of_stream(dead_letters), dead_letters.c.sequence == sequence
        )
        rows = await self._select(query, (dead_letters.c.sequence,), stream, 1)
        return _stored(stream, rows[0]) if rows else None

    async def redrive(self, stored: StoredDeadLetter, effect: Effect) -> None:
        check_number(stored.letter, effect)
        check_rows(1 + effect.rows, self.limits)

        def work(connection: Connection) -> None:
            end_dead_letter(connection, stored)
            insert_effects(connection, stored.stream, [effect])
            self._join(connection, stored.stream, [effect])

        await self._sql.write(work)

    async def remove(self, stored: StoredDeadLetter) -> None:
        await self._sql.write(lambda c: end_dead_letter(c, stored))

    async def gaps(
        self,
        stream: Stream,
        after: int | None,
        limit: int,
        found_since: datetime | None = None,
    ) -> Sequence[Gap]:
        query = _page(gaps, gaps.c.first, after, gaps.c.found_at, found_since)
        rows = await self._select(query, (gaps.c.first,), stream, limit)
        return [Gap(row.first, row.last, row.found_at, row.reason) for row in rows]

    # --- retention ---

    async def marks(self, stream: Stream) -> Sequence[Mark]:
        rows = await self._sql.read(lambda c: c.execute(_MARKS, where_stream(stream)).all())
        return [Mark(row.at, row.sequence) for row in rows]

    async def put_mark(self, stream: Stream, mark: Mark) -> None:
        def work(connection: Connection) -> None:
            connection.execute(_UNMARK, {**where_stream(stream), "b_at": mark.at})
            row = {**stream.names, "at": mark.at, "sequence": mark.sequence}
            connection.execute(insert(marks), row)

        with suppress(IntegrityError):  # another put it at the same time
            await self._sql.write(work)

    async def remove_marks(self, stream: Stream, marks: Sequence[Mark]) -> None:
        gone = [{**where_stream(stream), "b_at": mark.at} for mark in marks]
        if gone:
            await self._sql.write(lambda c: c.execute(_UNMARK, gone))

    async def purge_effects(self, stream: Stream, up_to: int, limit: int) -> int:
        where = where_stream(stream)

        def work(connection: Connection) -> int:
            old = connection.execute(_OLD.limit(limit), {**where, "b_up_to": up_to}).scalars().all()
            if old:
                connection.execute(_PURGE, {**where, "b_up_to": old[-1]})
            return len(old)

        return await self._sql.write(work)

    async def close(self) -> None:
        await self._sql.close()

    def _join(self, connection: Connection, stream: Stream, effects: Sequence[Effect]) -> None:
        if self._take_part is not None and effects:
            self._take_part(connection, stream, effects)

    async def _select(
        self, query: Any, order: Sequence[ColumnElement[Any]], stream: Stream, limit: int
    ) -> Sequence[Row[Any]]:
        ordered = query.order_by(*order).limit(limit)
        rows: Sequence[Row[Any]] = await self._sql.read(
            lambda c: c.execute(ordered, where_stream(stream)).all()
        )
        return rows


def _page(
    table: Table,
    number: Column[Any],
    after: int | None,
    time: Column[Any],
    since: datetime | None,
) -> Select[Any]:
    query = select(table).where(of_stream(table))
    if after is not None:
        query = query.where(number > after)
    return query if since is None else query.where(time >= since)


def _place(of: StoredMessage) -> dict[str, int]:
    return {"b_sequence": of.key[0], "b_position": of.key[1]}


def _stored(stream: Stream, row: Row[Any]) -> StoredDeadLetter:
    kind, error = FailureKind.UNREADABLE, row.error
    if row.kind in set(FailureKind):
        kind = FailureKind(row.kind)
    else:
        place = f"{stream.key}, {row.sequence} in EventHubDeadLetter"
        error = f"row {place} cannot be read (Kind is {row.kind!r}): {row.error}"
    values = {name: getattr(row, name) for name in DeadLetter.__slots__}
    letter = DeadLetter(**{**values, "kind": kind, "error": error})
    return StoredDeadLetter(stream, letter, letter)
