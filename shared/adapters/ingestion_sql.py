"""What became of events in a SQL database: one transaction a commit, which others can join."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    Row,
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
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.sql.compiler import SQLCompiler

from shared.adapters.ingestion_sql_schema import (
    NAMES,
    checkpoints,
    dead_letters,
    effects,
    gaps,
    outbox,
    server_now,
)
from shared.adapters.sql import Sql, refused
from shared.ingestion.accounting import CommitLimits, check_epoch, check_number
from shared.ingestion.errors import AccountingBroken, CommitRefused
from shared.ingestion.model import (
    Checkpoint,
    Commit,
    DeadLetter,
    Effect,
    FailureKind,
    Gap,
    OutboxMessage,
    Stream,
)
from shared.ingestion.ports import Saved, StoredDeadLetter, StoredMessage

TakePart = Callable[[Connection, Stream, Sequence[Effect]], None]
"""Writes what else the effects lead to, into tables of its own, in the transaction that accounts
for them: both stand or neither does. It neither commits nor rolls back. What it raises undoes the
transaction and holds the partition."""


def _of_stream(table: Table) -> ColumnElement[bool]:
    return and_(*[table.c[name] == bindparam(f"b_{name}") for name in NAMES])


_NOW = select(server_now().label("now")).subquery()
_LOAD = select(_NOW.c.now, checkpoints).select_from(
    _NOW.outerjoin(checkpoints, and_(true(), _of_stream(checkpoints)))
)
_BEGIN = insert(checkpoints).returning(server_now())
_MOVE = (
    update(checkpoints)
    .where(
        _of_stream(checkpoints),
        checkpoints.c.epoch == bindparam("b_epoch"),
        checkpoints.c.sequence == bindparam("b_sequence"),
        checkpoints.c.txid == bindparam("b_txid"),
    )
    .returning(server_now())
)
_SENT = delete(outbox).where(
    _of_stream(outbox),
    outbox.c.sequence == bindparam("b_sequence"),
    outbox.c.position == bindparam("b_position"),
)
_END = delete(dead_letters).where(
    _of_stream(dead_letters),
    dead_letters.c.sequence == bindparam("b_sequence"),
    dead_letters.c.failed_at == bindparam("b_failed_at"),
    dead_letters.c.attempts == bindparam("b_attempts"),
)


class SqlIngestionStore:
    """See IngestionStore and DeadLetterStore. A checkpoint is its own version."""

    limits = CommitLimits(rows_max=10_000, size_bytes_max=32_000_000, row_bytes_max=16_000_000)

    def __init__(self, sql: Sql, take_part: TakePart | None = None) -> None:
        self._sql = sql
        self._take_part = take_part

    async def load(self, stream: Stream) -> Saved:
        row = await self._sql.read(lambda c: c.execute(_LOAD, _where(stream)).one())
        if row.txid is None:
            return Saved(None, row.now)
        checkpoint = Checkpoint(
            row.start, row.sequence, row.offset, row.enqueued_at, row.epoch, row.owner, row.txid
        )
        return Saved(checkpoint, row.now, checkpoint)

    async def commit(self, stream: Stream, saved: Saved, commit: Commit) -> Saved:
        check_epoch(saved.checkpoint, commit)

        def work(connection: Connection) -> datetime:
            at = _move(connection, stream, saved.version, commit.checkpoint)
            _insert_rows(connection, _rows(stream, commit))
            self._join(connection, stream, commit.effects)
            return at

        at = await self._sql.write(work)
        return Saved(commit.checkpoint, at, commit.checkpoint)

    async def outbox(self, stream: Stream, limit: int) -> Sequence[StoredMessage]:
        order = (outbox.c.sequence, outbox.c.position)
        rows = await self._select(select(outbox).where(_of_stream(outbox)), order, stream, limit)
        return [
            StoredMessage(OutboxMessage(row.message_id, row.body), (row.sequence, row.position))
            for row in rows
        ]

    async def sent(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        keys = [{"b_sequence": m.key[0], "b_position": m.key[1]} for m in messages]
        if keys:
            where = _where(stream)
            await self._sql.write(lambda c: c.execute(_SENT, [{**where, **key} for key in keys]))

    # --- dead letters ---

    async def streams(self) -> Sequence[Stream]:
        found = union(*[select(*[t.c[n] for n in NAMES]) for t in (checkpoints, dead_letters)])
        rows = await self._sql.read(lambda c: c.execute(found).all())
        return sorted([Stream(*row) for row in rows], key=lambda stream: stream.key)

    async def dead_letters(
        self, stream: Stream, after: int | None, limit: int
    ) -> Sequence[StoredDeadLetter]:
        query = select(dead_letters).where(_of_stream(dead_letters))
        if after is not None:
            query = query.where(dead_letters.c.sequence > after)
        rows = await self._select(query, (dead_letters.c.sequence,), stream, limit)
        return [_stored(stream, row) for row in rows]

    async def dead_letter(self, stream: Stream, sequence: int) -> StoredDeadLetter | None:
        query = select(dead_letters).where(
            _of_stream(dead_letters), dead_letters.c.sequence == sequence
        )
        rows = await self._select(query, (dead_letters.c.sequence,), stream, 1)
        return _stored(stream, rows[0]) if rows else None

    async def redrive(self, stored: StoredDeadLetter, effect: Effect) -> None:
        check_number(stored.letter, effect)

        def work(connection: Connection) -> None:
            _end(connection, stored)
            _insert_rows(connection, _effect_rows(stored.stream, [effect]))
            self._join(connection, stored.stream, [effect])

        await self._sql.write(work)

    async def remove(self, stored: StoredDeadLetter) -> None:
        await self._sql.write(lambda c: _end(c, stored))

    async def gaps(self, stream: Stream, limit: int) -> Sequence[Gap]:
        query = select(gaps).where(_of_stream(gaps))
        rows = await self._select(query, (gaps.c.first,), stream, limit)
        return [Gap(row.first, row.last, row.found_at, row.reason) for row in rows]

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
            lambda c: c.execute(ordered, _where(stream)).all()
        )
        return rows


def _where(stream: Stream) -> dict[str, Any]:
    return {f"b_{name}": value for name, value in _names(stream).items()}


def _names(stream: Stream) -> dict[str, Any]:
    return {
        "namespace": stream.namespace,
        "hub": stream.hub,
        "consumer_group": stream.consumer_group,
        "partition_id": stream.partition_id,
    }


def _move(
    connection: Connection, stream: Stream, standing: Checkpoint | None, after: Checkpoint
) -> datetime:
    """Write the checkpoint over the standing one; the database's time. Raises CommitRefused."""
    values = {**_names(stream), **_fields(after)}
    if standing is None:
        try:
            return connection.execute(_BEGIN, values).scalar_one()
        except IntegrityError as error:
            raise CommitRefused(f"{stream.key}: it has a checkpoint by now") from error
    guard = {
        "b_epoch": standing.epoch,
        "b_sequence": standing.sequence,
        "b_txid": standing.txid,
    }
    at: datetime | None = connection.execute(
        _MOVE, {**_fields(after), **_where(stream), **guard}
    ).scalar_one_or_none()
    if at is None:
        raise CommitRefused(f"{stream.key}: the checkpoint changed since it was read")
    return at


def _fields(value: Checkpoint | DeadLetter | Gap) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def _rows(stream: Stream, commit: Commit) -> dict[Table, list[dict[str, Any]]]:
    """By table, all rows of a commit but the checkpoint's."""
    names = _names(stream)
    return {
        **_effect_rows(stream, commit.effects),
        dead_letters: [
            {**names, **_fields(each), "kind": str(each.kind)} for each in commit.dead_letters
        ],
        gaps: [{**names, **_fields(each)} for each in commit.gaps],
    }


def _effect_rows(stream: Stream, made: Sequence[Effect]) -> dict[Table, list[dict[str, Any]]]:
    names = _names(stream)
    return {
        effects: [
            {**names, "sequence": each.sequence, "value": each.value}
            for each in made
            if each.value is not None
        ],
        outbox: [
            {
                **names,
                "sequence": each.sequence,
                "position": position,
                "message_id": message.message_id,
                "body": message.body,
            }
            for each in made
            for position, message in enumerate(each.messages)
        ],
    }


def _insert_rows(connection: Connection, rows: dict[Table, list[dict[str, Any]]]) -> None:
    """Raises AccountingBroken for a row that is there already, or that no table takes."""
    try:
        for table, values in rows.items():
            if values and table in _PLAIN:
                connection.exec_driver_sql(*_spoken(table, connection.dialect, values))
            elif values:
                connection.execute(insert(table), values)
    except (IntegrityError, DataError) as error:
        raise AccountingBroken(refused(error)) from error


_PLAIN = (effects, outbox)
"""Tables of numbers and text, which the driver takes as they are: there are rows for each event."""


def _spoken(table: Table, dialect: Dialect, values: Sequence[dict[str, Any]]) -> tuple[str, Any]:
    """The insert in the driver's own words: the same in half the time."""
    text, order = _insert_text(table, dialect)
    return text, values if order is None else [order(row) for row in values]


@lru_cache
def _insert_text(
    table: Table, dialect: Dialect
) -> tuple[str, Callable[[dict[str, Any]], tuple[Any, ...]] | None]:
    """The statement, and what puts a row into its order (None where it has names)."""
    compiled = insert(table).compile(dialect=dialect, column_keys=list(table.c.keys()))
    names = compiled.positiontup if isinstance(compiled, SQLCompiler) else None
    return str(compiled), itemgetter(*names) if names else None


def _end(connection: Connection, stored: StoredDeadLetter) -> None:
    """Delete the dead letter. Raises CommitRefused where it is not as it was read."""
    letter: DeadLetter = stored.version
    guard = {
        "b_sequence": letter.sequence,
        "b_failed_at": letter.failed_at,
        "b_attempts": letter.attempts,
    }
    if connection.execute(_END, {**_where(stored.stream), **guard}).rowcount != 1:
        raise CommitRefused(f"{stored.stream.key}: {letter.sequence} is no such dead letter")


def _stored(stream: Stream, row: Row[Any]) -> StoredDeadLetter:
    letter = DeadLetter(
        sequence=row.sequence,
        offset=row.offset,
        enqueued_at=row.enqueued_at,
        failed_at=row.failed_at,
        kind=FailureKind(row.kind),
        error=row.error,
        attempts=row.attempts,
        partition_key=row.partition_key,
        body=row.body,
    )
    return StoredDeadLetter(stream, letter, letter)
