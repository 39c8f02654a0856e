"""Stores the results of ingestion in a SQL database, and reads them back.

Each commit is one transaction. A function that the user supplies can write to the user's own tables
in the same transaction.
"""

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

WriteInTransaction = Callable[[Connection, Stream, Sequence[Effect]], None]
"""A function that writes further results of effects to the user's own tables. The function runs in
the transaction that writes the outcomes of the events. So the outcomes and the user's rows are
committed together, or not at all. The function must neither commit nor roll back. If the function
raises an error, the transaction is rolled back, and the function is called for fewer effects.
"""


_NOW = select(server_now().label("now")).subquery()
_LOAD = select(_NOW.c.now, checkpoints).select_from(
    _NOW.outerjoin(checkpoints, and_(true(), of_stream(checkpoints)))
)
_DELETE_SENT = delete(outbox).where(
    of_stream(outbox),
    outbox.c.sequence == bindparam("b_sequence"),
    outbox.c.position == bindparam("b_position"),
)


_OUTBOX = select(outbox, server_now().label("now")).where(of_stream(outbox))
_TAKE_OVER = (
    update(outbox)
    .where(
        of_stream(outbox),
        outbox.c.sequence == bindparam("b_sequence"),
        outbox.c.position == bindparam("b_position"),
        outbox.c.taken == bindparam("b_taken"),
    )
    .values(waits_since=server_now(), taken=outbox.c.taken + 1)
)
_UPDATE_WORKED_AT = update(working).where(of_stream(working)).values(worked_at=server_now())
_READ_WORKED_AT = select(working.c.worked_at, server_now().label("now")).where(of_stream(working))


_MARKS = select(marks).where(of_stream(marks)).order_by(marks.c.at)
_DELETE_MARK = delete(marks).where(of_stream(marks), marks.c.at == bindparam("b_at"))
_OLD_EFFECTS = (
    select(effects.c.sequence)
    .where(of_stream(effects), effects.c.sequence <= bindparam("b_up_to"))
    .order_by(effects.c.sequence)
)
_DELETE_OLD_EFFECTS = delete(effects).where(
    of_stream(effects), effects.c.sequence <= bindparam("b_up_to")
)


@redacting
class SqlIngestionStore:
    """See IngestionStore, DeadLetterStore and RetentionStore.

    Checkpoints have no version number. The whole checkpoint that was read serves as its version: a
    commit succeeds only if the stored checkpoint is still the same. ``write_in_transaction`` is
    called in the transaction of each commit and redrive that has effects.
    """

    limits = CommitLimits(rows_max=10_000, size_bytes_max=32_000_000, row_bytes_max=16_000_000)

    def __init__(self, sql: Sql, write_in_transaction: WriteInTransaction | None = None) -> None:
        self._sql = sql
        self._write_in_transaction = write_in_transaction

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
            self._write_user_tables(connection, stream, commit.effects)
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
                if connection.execute(_TAKE_OVER, {**where_stream(stream), **guard}).rowcount != 1:
                    raise CommitRefused(
                        f"{stream.key}: another instance took over or sent a message of the outbox"
                    )

        await self._sql.write(work)

    async def sent(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        if messages:
            places = [{**where_stream(stream), **_place(each)} for each in messages]
            await self._sql.write(lambda c: c.execute(_DELETE_SENT, places))

    async def mark_at_work(self, stream: Stream) -> None:
        def write(connection: Connection) -> None:
            if connection.execute(_UPDATE_WORKED_AT, where_stream(stream)).rowcount == 0:
                values = {**stream.names, "worked_at": server_now()}
                connection.execute(insert(working).values(values))

        with suppress(IntegrityError):  # another instance inserted the row at the same time
            await self._sql.write(write)

    async def idle_for(self, stream: Stream) -> timedelta | None:
        row = await self._sql.read(
            lambda c: c.execute(_READ_WORKED_AT, where_stream(stream)).one_or_none()
        )
        return None if row is None else row.now - row.worked_at

    # --- dead letters ---

    async def streams(self) -> Sequence[Stream]:
        query = union(*[select(*[t.c[n] for n in NAMES]) for t in (checkpoints, dead_letters)])
        rows = await self._sql.read(lambda c: c.execute(query).all())
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
            self._write_user_tables(connection, stored.stream, [effect])

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
            connection.execute(_DELETE_MARK, {**where_stream(stream), "b_at": mark.at})
            row = {**stream.names, "at": mark.at, "sequence": mark.sequence}
            connection.execute(insert(marks), row)

        with suppress(IntegrityError):  # another instance inserted the same mark at the same time
            await self._sql.write(work)

    async def remove_marks(self, stream: Stream, marks: Sequence[Mark]) -> None:
        gone = [{**where_stream(stream), "b_at": mark.at} for mark in marks]
        if gone:
            await self._sql.write(lambda c: c.execute(_DELETE_MARK, gone))

    async def purge_effects(self, stream: Stream, up_to: int, limit: int) -> int:
        where = where_stream(stream)

        def work(connection: Connection) -> int:
            old = (
                connection.execute(_OLD_EFFECTS.limit(limit), {**where, "b_up_to": up_to})
                .scalars()
                .all()
            )
            if old:
                connection.execute(_DELETE_OLD_EFFECTS, {**where, "b_up_to": old[-1]})
            return len(old)

        return await self._sql.write(work)

    async def close(self) -> None:
        await self._sql.close()

    def _write_user_tables(
        self, connection: Connection, stream: Stream, effects: Sequence[Effect]
    ) -> None:
        if self._write_in_transaction is not None and effects:
            self._write_in_transaction(connection, stream, effects)

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


def _place(message: StoredMessage) -> dict[str, int]:
    return {"b_sequence": message.key[0], "b_position": message.key[1]}


def _stored(stream: Stream, row: Row[Any]) -> StoredDeadLetter:
    kind, error = FailureKind.UNREADABLE, row.error
    if row.kind in set(FailureKind):
        kind = FailureKind(row.kind)
    else:
        place = f"{stream.key}, table EventHubDeadLetter"
        error = (
            f"the dead letter of event {row.sequence} ({place}) has the unknown Kind {row.kind!r}. "
            f"Its error: {row.error}"
        )
    values = {name: getattr(row, name) for name in DeadLetter.__slots__}
    letter = DeadLetter(**{**values, "kind": kind, "error": error})
    return StoredDeadLetter(stream, letter, letter)
