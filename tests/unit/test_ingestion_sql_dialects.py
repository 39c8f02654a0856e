"""What the SQL stores say to databases of all kinds, also those that no test can start."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Dialect, Insert, Update, make_url, text
from sqlalchemy.schema import CreateTable

from shared.adapters import (
    ingestion_checkpoints_sql,
    ingestion_sql,
    ingestion_sql_breaker,
    ingestion_sql_owners,
    ingestion_sql_writing,
)
from shared.adapters.ingestion_sql_schema import metadata
from shared.adapters.sql import Sql

MODULES = (
    ingestion_sql,
    ingestion_sql_writing,
    ingestion_sql_owners,
    ingestion_sql_breaker,
    ingestion_checkpoints_sql,
)
STATEMENTS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": statement
    for module in MODULES
    for name, statement in vars(module).items()
    if name.isupper() and name.startswith("_") and hasattr(statement, "compile")
}
DIALECTS: dict[str, Dialect] = {
    name: make_url(f"{name}://").get_dialect()() for name in ("mssql", "postgresql", "sqlite")
}
NOW = {"mssql": "SYSDATETIMEOFFSET()", "postgresql": "clock_timestamp()", "sqlite": "strftime("}
KEY_BYTES_MAX = 900
"""Of a clustered index in SQL Server."""


def said(statement: Any, dialect: Dialect) -> str:
    if isinstance(statement, Insert | Update):
        keys = list(statement.table.c.keys())
        return str(statement.compile(dialect=dialect, column_keys=keys))
    return str(statement.compile(dialect=dialect))


def test_there_are_statements_to_look_at() -> None:
    assert len(STATEMENTS) >= 10, sorted(STATEMENTS)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_statement_is_said_in_each_dialect(dialect: str) -> None:
    for name, statement in STATEMENTS.items():
        text = said(statement, DIALECTS[dialect])
        if "MOVE" in name or "BEGIN" in name or "LOAD" in name:
            assert NOW[dialect] in text, f"{name} takes another clock: {text}"


def test_azure_sql_gets_unicode_exact_times_and_keys_that_fit() -> None:
    for table in metadata.sorted_tables:
        ddl = said(CreateTable(table), DIALECTS["mssql"])
        assert "IDENTITY" not in ddl, "numbers are the hub's"
        assert " DATETIME " not in ddl, "would round to 3 ms"
        size = sum(_bytes(column.type) for column in table.primary_key.columns)
        assert size <= KEY_BYTES_MAX, f"{table.name}: {size}"


def test_the_move_of_a_checkpoint_is_fenced_by_epoch_number_and_transaction() -> None:
    text = said(ingestion_sql_writing._MOVE, DIALECTS["mssql"])
    where = text.partition("WHERE")[2]
    assert "OUTPUT SYSDATETIMEOFFSET()" in text
    for column in ("Namespace", "Topic", "ConsumerGroup", "PartitionID"):
        assert f"[{column}] = " in where
    for column in ("Epoch", "SequenceNumber", "TransactionID"):
        assert f"[{column}] = " in where


def _bytes(kind: object) -> int:
    length = getattr(kind, "length", None)
    if length is None:
        return 10
    return int(length) * (2 if "Unicode" in type(kind).__name__ else 1)


async def test_the_queries_of_the_operations_page_are_answered() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    queries = re.findall(r"`(SELECT [^`]*)`", page)
    assert len(queries) == 6
    sql = Sql("sqlite://", metadata)
    for query in queries:
        await sql.read(lambda c, query=query: c.execute(text(query)).all())  # type: ignore[misc]
    await sql.close()


def test_a_driver_that_is_missing_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="mysql needs the package MySQLdb"):
        Sql("mysql://host/database", metadata)
