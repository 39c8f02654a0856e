"""Writes the rows of a commit to the tables of a SQL database, in the caller's transaction."""

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
from shared.ingestion.errors import AccountingBroken, CommitRefused, RowRefused
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
    connection: Connection, stream: Stream, before: Checkpoint | None, after: Checkpoint
) -> datetime:
    """Replace the checkpoint ``before``, or insert the first one. Returns the database's time.

    Raises CommitRefused if the stored checkpoint is not ``before``.
    """
    values = {**stream.names, **_fields(after)}
    if before is None:
        try:
            return connection.execute(_BEGIN, values).scalar_one()
        except IntegrityError as error:
            raise CommitRefused(f"{stream.key}: a checkpoint was inserted meanwhile") from error
    guard = {
        "b_epoch": before.epoch,
        "b_sequence": before.sequence,
        "b_txid": before.txid,
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
    """Insert all rows of a commit except the checkpoint.

    Raises AccountingBroken for a row that already exists or that the database rejects.
    """
    insert_effects(connection, stream, commit.effects)
    names = stream.names
    with _rejections():
        if commit.dead_letters:
            letters = [
                {**names, **_fields(each), "kind": str(each.kind)} for each in commit.dead_letters
            ]
            connection.execute(insert(dead_letters), letters)
        if commit.gaps:
            connection.execute(insert(gaps), [{**names, **_fields(each)} for each in commit.gaps])


def insert_effects(connection: Connection, stream: Stream, new_effects: Sequence[Effect]) -> None:
    """Insert a row for each value and each message. Raises AccountingBroken like insert_commit."""
    values = [(each.sequence, each.value) for each in new_effects if each.value is not None]
    messages = [
        (each.sequence, position, message.message_id, message.body)
        for each in new_effects
        if each.messages
        for position, message in enumerate(each.messages)
    ]
    with _rejections():
        _insert_plain(connection, effects, stream, values)
        _insert_plain(connection, outbox, stream, messages)


@contextmanager
def _rejections() -> Iterator[None]:
    """Raises AccountingBroken for a row that exists already, and RowRefused for an invalid one."""
    try:
        yield
    except IntegrityError as error:
        raise AccountingBroken(refused(error)) from error
    except DataError as error:
        raise RowRefused(refused(error)) from error


# --- rows of numbers and text only, some for each event -----------------------------------------

_SQLITE_ROWS = 100
"""The number of rows in one statement. SQLite executes the statement without returning to Python
between two rows.
"""


def _insert_plain(
    connection: Connection, table: Table, stream: Stream, rows: Sequence[tuple[Any, ...]]
) -> None:
    """Insert rows, given as the values of the columns after the stream's names.

    The rows go straight to the driver, which takes at most half the time of SQLAlchemy's insert.
    """
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
    """The statement, and the names of its parameters (None if they are positional)."""
    keys = _given(table)
    compiled = insert(table).compile(dialect=dialect, column_keys=keys)
    by_order = isinstance(compiled, SQLCompiler) and compiled.positiontup is not None
    return str(compiled), None if by_order else keys


def _given(table: Table) -> list[str]:
    """The columns without a default in the database."""
    return [name for name, column in table.c.items() if column.server_default is None]


@lru_cache(maxsize=4 * _SQLITE_ROWS)
def _sqlite_text(table: Table, dialect: Dialect, rows: int) -> str:
    """The statement that inserts ``rows`` rows. All rows share the parameters with the stream's
    names.
    """
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
    """Delete the dead letter. Raises CommitRefused if it changed since it was read."""
    letter: DeadLetter = stored.version
    guard = {
        "b_sequence": letter.sequence,
        "b_failed_at": letter.failed_at,
        "b_attempts": letter.attempts,
    }
    if connection.execute(_END, {**where_stream(stored.stream), **guard}).rowcount != 1:
        raise CommitRefused(
            f"{stored.stream.key}: {letter.sequence}: the dead letter was changed or removed"
        )
