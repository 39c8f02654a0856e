"""What a commit writes into the tables of a SQL database, inside a transaction of the caller."""

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
    Table,
    and_,
    bindparam,
    delete,
    insert,
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
from shared.adapters.sql import refused
from shared.ingestion.errors import AccountingBroken, CommitRefused
from shared.ingestion.model import Checkpoint, Commit, DeadLetter, Effect, Gap, Stream
from shared.ingestion.ports import StoredDeadLetter


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
    return {f"b_{name}": value for name, value in names_of(stream).items()}


def names_of(stream: Stream) -> dict[str, Any]:
    return {
        "namespace": stream.namespace,
        "hub": stream.hub,
        "consumer_group": stream.consumer_group,
        "partition_id": stream.partition_id,
    }


def move_checkpoint(
    connection: Connection, stream: Stream, standing: Checkpoint | None, after: Checkpoint
) -> datetime:
    """Write the checkpoint over the standing one; the database's time. Raises CommitRefused."""
    values = {**names_of(stream), **_fields(after)}
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


def commit_rows(stream: Stream, commit: Commit) -> dict[Table, list[dict[str, Any]]]:
    """By table, all rows of a commit but the checkpoint's."""
    names = names_of(stream)
    return {
        **effect_rows(stream, commit.effects),
        dead_letters: [
            {**names, **_fields(each), "kind": str(each.kind)} for each in commit.dead_letters
        ],
        gaps: [{**names, **_fields(each)} for each in commit.gaps],
    }


def effect_rows(stream: Stream, made: Sequence[Effect]) -> dict[Table, list[dict[str, Any]]]:
    names = names_of(stream)
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


def insert_rows(connection: Connection, rows: dict[Table, list[dict[str, Any]]]) -> None:
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
