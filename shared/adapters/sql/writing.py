"""What a commit writes into the tables of a SQL database, inside a transaction of the caller."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from itertools import chain
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    Table,
    and_,
    bindparam,
    delete,
    insert,
    update,
)
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.sql.compiler import SQLCompiler

from shared.adapters.sql.engine import refused
from shared.adapters.sql.schema import (
    NAMES,
    checkpoints,
    dead_letters,
    effects,
    gaps,
    outbox,
    server_now,
)
from shared.ingestion.dead_letters.ports import StoredDeadLetter
from shared.ingestion.errors import AccountingBroken, CommitRefused
from shared.ingestion.model import Checkpoint, Commit, DeadLetter, Effect, Gap, Stream


def of_stream(table: Table) -> ColumnElement[bool]:
    return and_(*[table.c[name] == bindparam(f"b_{name}") for name in NAMES])


_BEGIN = insert(checkpoints).returning(server_now())
_MOVE = (
    update(checkpoints)
    .where(
        of_stream(checkpoints),
        checkpoints.c.epoch == bindparam("b_epoch"),
        checkpoints.c.sequence == bindparam("b_sequence"),
        checkpoints.c.txid == bindparam("b_txid"),
    )
    .returning(server_now())
)
_END = delete(dead_letters).where(
    of_stream(dead_letters),
    dead_letters.c.sequence == bindparam("b_sequence"),
    dead_letters.c.failed_at == bindparam("b_failed_at"),
    dead_letters.c.attempts == bindparam("b_attempts"),
)


def where_stream(stream: Stream) -> dict[str, Any]:
    return {f"b_{name}": value for name, value in stream.names.items()}


def move_checkpoint(
    connection: Connection, stream: Stream, standing: Checkpoint | None, after: Checkpoint
) -> datetime:
    """Write the checkpoint over the standing one; the database's time. Raises CommitRefused."""
    values = {**stream.names, **_fields(after)}
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
        _MOVE, {**_fields(after), **where_stream(stream), **guard}
    ).scalar_one_or_none()
    if at is None:
        raise CommitRefused(f"{stream.key}: the checkpoint changed since it was read")
    return at


def _fields(value: Checkpoint | DeadLetter | Gap) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def insert_commit(connection: Connection, stream: Stream, commit: Commit) -> None:
    """All rows of a commit but the checkpoint's. Raises AccountingBroken for a row that is there
    already, or that no table takes."""
    insert_effects(connection, stream, commit.effects)
    names = stream.names
    with _taken():
        if commit.dead_letters:
            letters = [
                {**names, **_fields(each), "kind": str(each.kind)} for each in commit.dead_letters
            ]
            connection.execute(insert(dead_letters), letters)
        if commit.gaps:
            connection.execute(insert(gaps), [{**names, **_fields(each)} for each in commit.gaps])


def insert_effects(connection: Connection, stream: Stream, made: Sequence[Effect]) -> None:
    """A row for each value and for each message. Raises AccountingBroken as ``insert_commit``."""
    values = [(each.sequence, each.value) for each in made if each.value is not None]
    messages = [
        (each.sequence, position, message.message_id, message.body)
        for each in made
        if each.messages
        for position, message in enumerate(each.messages)
    ]
    with _taken():
        _insert_plain(connection, effects, stream, values)
        _insert_plain(connection, outbox, stream, messages)


@contextmanager
def _taken() -> Iterator[None]:
    try:
        yield
    except (IntegrityError, DataError) as error:
        raise AccountingBroken(refused(error)) from error


# --- rows of numbers and text, of which there are some for each event --------------------------

_SQLITE_ROWS = 100
"""In one statement, that the database runs without coming back to Python between two rows."""


def _insert_plain(
    connection: Connection, table: Table, stream: Stream, rows: Sequence[tuple[Any, ...]]
) -> None:
    """Rows of the table's columns after the stream's names, in the driver's own words: it takes
    them as they are, in half the time or less."""
    if not rows:
        return
    names = tuple(stream.names.values())
    if connection.dialect.name == "sqlite":
        for start in range(0, len(rows), _SQLITE_ROWS):
            part = rows[start : start + _SQLITE_ROWS]
            text = _sqlite_text(table, connection.dialect, len(part))
            connection.exec_driver_sql(text, (*names, *chain.from_iterable(part)))
        return
    text, keys = _insert_text(table, connection.dialect)
    each = [(*names, *row) for row in rows]
    values: Any = each if keys is None else [dict(zip(keys, row, strict=True)) for row in each]
    connection.exec_driver_sql(text, values)


@lru_cache
def _insert_text(table: Table, dialect: Dialect) -> tuple[str, Sequence[str] | None]:
    """The statement, and the names of its values (None where it goes by their order)."""
    keys = _given(table)
    compiled = insert(table).compile(dialect=dialect, column_keys=keys)
    by_order = isinstance(compiled, SQLCompiler) and compiled.positiontup is not None
    return str(compiled), None if by_order else keys


def _given(table: Table) -> list[str]:
    """The columns that the database does not fill by itself."""
    return [name for name, column in table.c.items() if column.server_default is None]


@lru_cache(maxsize=4 * _SQLITE_ROWS)
def _sqlite_text(table: Table, dialect: Dialect, rows: int) -> str:
    """The statement for so many rows; the stream's names are given once for all of them."""
    head = _insert_text(table, dialect)[0].partition(" VALUES ")[0]
    shared = ", ".join([f"?{number}" for number in range(1, len(NAMES) + 1)])
    own = len(_given(table)) - len(NAMES)
    values = ", ".join(
        [
            f"({shared}, {', '.join([f'?{first + n}' for n in range(own)])})"
            for first in range(len(NAMES) + 1, len(NAMES) + 1 + rows * own, own)
        ]
    )
    return f"{head} VALUES {values}"


def end_dead_letter(connection: Connection, stored: StoredDeadLetter) -> None:
    """Delete the dead letter. Raises CommitRefused where it is not as it was read."""
    letter: DeadLetter = stored.version
    guard = {
        "b_sequence": letter.sequence,
        "b_failed_at": letter.failed_at,
        "b_attempts": letter.attempts,
    }
    if connection.execute(_END, {**where_stream(stored.stream), **guard}).rowcount != 1:
        raise CommitRefused(f"{stored.stream.key}: {letter.sequence} is no such dead letter")
