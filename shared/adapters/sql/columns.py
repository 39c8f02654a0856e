"""Adds columns that a table of an older version lacks; what is in the table stays.

Each has a default in the database, so that an older version, which does not name it, writes rows
all the same. Only columns marked with ``ADDED`` are looked for: tables of a user's own are left
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Connection, Dialect, MetaData, Table, inspect
from sqlalchemy.schema import CreateColumn

ADDED = {"added": True}
"""The ``info`` of a column that the first version of its table did not have."""


def add_missing(connection: Connection, metadata: MetaData) -> None:
    for table in metadata.tables.values():
        added = [column for column in table.columns if column.info.get("added")]
        if added:
            _add_to(connection, table, added)


def _add_to(connection: Connection, table: Table, added: Sequence[Column[Any]]) -> None:
    present = {each["name"] for each in inspect(connection).get_columns(table.name)}
    missing = [column for column in added if column.name not in present]
    if missing and connection.dialect.name == "sqlite":
        _make_anew(connection, table, [each for each in table.columns if each.name in present])
        return
    for column in missing:
        connection.exec_driver_sql(statement(connection.dialect, table, column))


def statement(dialect: Dialect, table: Table, column: Column[Any]) -> str:
    """Without the word COLUMN, which SQL Server does not know there."""
    name = dialect.identifier_preparer.format_table(table)
    return f"ALTER TABLE {name} ADD {CreateColumn(column).compile(dialect=dialect)}"


def _make_anew(connection: Connection, table: Table, kept: Sequence[Column[Any]]) -> None:
    """SQLite adds no column whose default is the time of the row; its transactions cover this."""
    prepare = connection.dialect.identifier_preparer
    name, old = prepare.format_table(table), prepare.quote(f"{table.name}_old")
    columns = ", ".join([prepare.quote(column.name) for column in kept])
    connection.exec_driver_sql(f"ALTER TABLE {name} RENAME TO {old}")
    table.create(connection)
    copy = f"INSERT INTO {name} ({columns}) SELECT {columns} FROM {old}"  # noqa: S608  our names
    connection.exec_driver_sql(copy)
    connection.exec_driver_sql(f"DROP TABLE {old}")
