"""The SQL statements of the stores in all dialects, including databases that no test can start."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import ClauseElement, Dialect, Insert, Update, make_url, text
from sqlalchemy.dialects.mssql.pyodbc import MSDialect_pyodbc
from sqlalchemy.event import listen
from sqlalchemy.exc import (
    DatabaseError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.schema import CreateTable, DDLElement

from shared.ingestion.breaker.failure_window import Tally
from shared.ingestion.breaker.state import Breaker
from shared.ingestion.errors import StoreUnavailable
from shared.ingestion.model import Ownership
from shared.ingestion.store.breakers import BreakerStore
from shared.ingestion.store.events import EventStore
from shared.ingestion.store.owners import OwnershipStore
from shared.ingestion.store.sql import SqlRows
from shared.ingestion.store.sql_engine import Sql, place_of, store_errors
from shared.ingestion.store.sql_schema import UtcTime, metadata
from tests.ingestion.commits import commit, effect, gap, letter, new_stream

DIALECTS: dict[str, Dialect] = {
    name: make_url(f"{name}://").get_dialect()() for name in ("mssql", "postgresql", "sqlite")
}
NOW = {"mssql": "SYSDATETIMEOFFSET()", "postgresql": "clock_timestamp()", "sqlite": "strftime("}
AZURE_SQL: Dialect = MSDialect_pyodbc(paramstyle="qmark")  # type: ignore[no-untyped-call]
"""The dialect as its driver, which is not installed, would configure it."""
A_TIME = datetime(2026, 3, 1, 14, 0, 0, 123457, timezone(timedelta(hours=1)))
KEY_BYTES_MAX = 900
"""The maximum size of a clustered index key in SQL Server."""


def compiled_text(statement: Any, dialect: Dialect) -> str:
    if isinstance(statement, Insert | Update):
        keys = list(statement.table.c.keys())
        return str(statement.compile(dialect=dialect, column_keys=keys))
    return str(statement.compile(dialect=dialect))


def test_tables_in_azure_sql_have_exact_times_and_keys_that_fit() -> None:
    for table in metadata.sorted_tables:
        ddl = compiled_text(CreateTable(table), DIALECTS["mssql"])
        assert "IDENTITY" not in ddl, "sequence numbers come from the hub"
        assert " DATETIME " not in ddl, "DATETIME rounds to 3 ms"
        size = sum(_bytes(column.type) for column in table.primary_key.columns)
        assert size <= KEY_BYTES_MAX, f"{table.name}: {size}"


class RecordedStatements:
    """Records all statements of the stores, including those that are built for each call."""

    def __init__(self) -> None:
        self.statements: dict[str, Any] = {}
        self.elements: list[tuple[ClauseElement, list[str] | None]] = []

    def note(self, _connection: Any, statement: Any, many: Any, one: Any, _options: Any) -> None:
        if not isinstance(statement, ClauseElement) or isinstance(statement, DDLElement):
            return
        names = list(one or (many[0] if many else ()))
        self.elements.append((statement, names or None))
        compiled = statement.compile(dialect=AZURE_SQL, column_keys=names or None)
        self.statements.setdefault(str(compiled), compiled)


@pytest.fixture
async def recorded() -> RecordedStatements:
    """The statements of a commit with each kind of row, and of every query."""
    sql, recorded = Sql("sqlite://", metadata), RecordedStatements()
    listen(sql.engine, "before_execute", recorded.note)
    stream = new_stream()
    store = EventStore(SqlRows(sql))
    await store.commit(
        stream,
        await store.load(stream),
        commit(None, 4, [effect(stream, 1, 2, "v")], [letter(2), letter(3)], [gap(4, 4)]),
    )
    saved = await store.load(stream)
    await store.commit(stream, saved, commit(saved.checkpoint, 5))
    await store.take(stream, await store.outbox(stream, 10))
    await store.sent(stream, await store.outbox(stream, 10))
    for stored in await store.dead_letters(stream, 1, 10):
        await store.dead_letter(stream, stored.letter.sequence)
    first, second = await store.dead_letters(stream, None, 10)
    await store.redrive(first, effect(stream, 2))
    await store.remove(second)
    await store.gaps(stream, 1, 10)
    await store.streams()
    owners = OwnershipStore(SqlRows(sql), "ns", "hub", "$Default")
    mine = await owners.write(Ownership("0", "a", 1, None, "free"))
    await owners.write(Ownership("0", "a", 1, mine.version, "renewed"))
    await owners.owners()
    breakers = BreakerStore(SqlRows(sql), "hub")
    seen = await breakers.replace(await breakers.load(), Breaker())
    await breakers.replace(seen, Breaker(epoch=1))
    for failures in (1, 2):
        await breakers.put_tally(Tally(A_TIME, "i1", 5, failures))
    await breakers.tallies(A_TIME)
    await sql.close()
    return recorded


async def test_azure_sql_receives_no_syntax_of_other_databases(
    recorded: RecordedStatements,
) -> None:
    assert len(recorded.statements) >= 20
    foreign = re.compile(r"ON CONFLICT|RETURNING|LIMIT|FOR UPDATE|strftime|clock_timestamp|\"|:b_")
    for each, compiled in recorded.statements.items():
        assert not foreign.search(each), each
        values = each.count("?") + each.count("[POSTCOMPILE_")
        assert values == len(compiled.positiontup), each
        if each.startswith(("UPDATE", "DELETE")):
            assert " WHERE " in each.replace("\n", " ")
        if "OUTPUT" in each:
            assert re.search(r"OUTPUT (inserted\.\[\w+\]|SYSDATETIMEOFFSET\(\))", each), each
    limited = [each for each in recorded.statements if "SELECT TOP" in each]
    assert len(limited) >= 4
    assert all("ORDER BY" in each for each in limited), (
        "TOP without an order returns arbitrary rows"
    )


async def test_times_in_azure_sql_are_compared_to_the_microsecond(
    recorded: RecordedStatements,
) -> None:
    kind = UtcTime().dialect_impl(AZURE_SQL)
    assert kind.compile(AZURE_SQL) == "DATETIMEOFFSET"
    bind = kind.bind_processor(AZURE_SQL)
    assert bind is not None
    assert bind(A_TIME) == "2026-03-01 13:00:00.123457+00:00", (
        "as text, because the driver drops time zones"
    )
    (ending,) = [each for each in recorded.statements if "DELETE FROM [EventHubDeadLetter]" in each]
    assert "[FailedAt] = ?" in ending


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_each_statement_compiles_in_each_dialect_and_uses_the_databases_clock(
    dialect: str, recorded: RecordedStatements
) -> None:
    timed = re.compile(r"EventHub(Checkpoint|Breaker|Outbox|Ownership)\W")
    seen = 0
    for statement, names in recorded.elements:
        text = str(statement.compile(dialect=DIALECTS[dialect], column_keys=names))
        one_row = re.match(r"SELECT(?! DISTINCT)|UPDATE|INSERT", text)
        if one_row and timed.search(text):
            seen += 1
            assert NOW[dialect] in text, f"the database's clock is not used: {text}"
    assert seen >= 9


async def test_conditional_writes_in_azure_sql_are_one_statement(
    recorded: RecordedStatements,
) -> None:
    """READ COMMITTED is enough, because a conditional update checks the row under its own lock. A
    checkpoint moves only from a given epoch, sequence number and transaction."""
    assert "AUTOCOMMIT" in AZURE_SQL.get_isolation_level_values(None)  # type: ignore[arg-type]
    guarded = [
        each for each in recorded.statements if each.startswith("UPDATE") and "OUTPUT" in each
    ]
    assert len(guarded) >= 4
    assert all("SELECT" not in each for each in guarded)
    (move,) = [each for each in guarded if "UPDATE [EventHubCheckpoint]" in each]
    assert "OUTPUT SYSDATETIMEOFFSET()" in move
    place = {"Namespace", "Topic", "ConsumerGroup", "PartitionID"}
    before = {"Epoch", "SequenceNumber", "TransactionID"}
    assert place | before <= set(re.findall(r"\[(\w+)\] = ", move.partition("WHERE")[2]))


@pytest.mark.parametrize(
    ("kind", "message", "transient"),
    [
        (DatabaseError, "[40001] deadlocked, chosen as the victim (1205)", True),
        (OperationalError, "[08S01] Communication link failure (0)", True),
        (ProgrammingError, "[42000] Database is not currently available. (40613)", True),
        (ProgrammingError, "[42000] Incorrect syntax near 4. (102)", True),
        (IntegrityError, "[23000] Violation of PRIMARY KEY constraint (2627)", False),
        (DataError, "[22001] String or binary data would be truncated. (2628)", False),
    ],
)
def test_only_errors_that_blame_the_input_are_not_retried(
    kind: type[DBAPIError], message: str, transient: bool
) -> None:
    error = kind("COMMIT", None, Exception(f"('{message[1:6]}', '{message}')"))
    with pytest.raises(StoreUnavailable if transient else kind), store_errors("mssql"):
        raise error


@pytest.mark.parametrize(
    ("url", "place"),
    [
        (
            "postgresql+psycopg://me:hunter2@db.example:5433/events?sslmode=require",
            "the postgresql database events on db.example",
        ),
        (
            "mssql+pyodbc:///?odbc_connect=Driver%3DODBC%3BServer%3Dsql.example%2C1433%3B"
            "Database%3Devents%3BUid%3Dme%3BPwd%3Dhunter2%3B",
            "the mssql database events on sql.example,1433",
        ),
        ("postgresql+psycopg:///events?host=/run/pg", "the postgresql database events on /run/pg"),
        ("sqlite:////var/events.db", "the sqlite database /var/events.db"),
        ("sqlite://", "the sqlite database in memory"),
    ],
)
def test_errors_name_database_and_server_without_the_login(url: str, place: str) -> None:
    assert place_of(make_url(url)) == place


async def test_an_unreachable_database_is_reported_in_one_line_with_server_and_operation() -> None:
    sql = Sql("postgresql+psycopg://me:hunter2@127.0.0.1:1/events", metadata)
    with pytest.raises(StoreUnavailable) as caught:
        await sql.read(lambda connection: connection.execute(text("SELECT 1")))
    await sql.close()
    said = str(caught.value)
    place = "the postgresql database events on 127.0.0.1"
    assert said.startswith(f"creating the tables in {place} failed: connection")
    assert "\n" not in said
    assert "hunter2" not in said


@pytest.mark.parametrize(("write", "doing"), [(True, "writing to"), (False, "reading from")])
async def test_errors_of_a_statement_say_what_was_being_done(write: bool, doing: str) -> None:
    sql = Sql("sqlite://", metadata)
    broken = OperationalError("UPDATE t", None, Exception("disk I/O error\nsecond line"))

    def work(_connection: object) -> None:
        raise broken

    with pytest.raises(StoreUnavailable) as caught:
        await (sql.write if write else sql.read)(work)
    await sql.close()
    expected = f"{doing} the sqlite database in memory failed: disk I/O error second line"
    assert str(caught.value) == expected


def _psycopg_error(state: str, message: str) -> Exception:
    error = Exception(message)
    error.sqlstate = state  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("kind", "original"),
    [
        (ProgrammingError, _psycopg_error("42501", "permission denied for table EventHubMark")),
        (OperationalError, Exception('FATAL: password authentication failed for user "me"')),
        (ProgrammingError, Exception("('42000', '[42000] The INSERT permission was … (229)')")),
        (InterfaceError, Exception("('28000', \"[28000] Login failed for user 'me'. (18456)\")")),
    ],
    ids=["postgres-right", "postgres-login", "azure-right", "azure-login"],
)
def test_a_refused_login_or_right_is_one_line_that_says_what_to_grant(
    kind: type[DBAPIError], original: Exception
) -> None:
    with pytest.raises(StoreUnavailable) as caught, store_errors("writing to x failed"):
        raise kind("INSERT INTO t", None, original)
    said = str(caught.value)
    assert said.startswith(f"writing to x failed: {original}. Check the login in ")
    assert "grant it the rights to read, write and create tables" in said


def _bytes(kind: object) -> int:
    length = getattr(kind, "length", None)
    if length is None:
        return 10
    return int(length) * (2 if "Unicode" in type(kind).__name__ else 1)


async def test_the_queries_on_the_page_of_event_hub_operations_can_be_executed() -> None:
    page = (Path(__file__).parents[3] / "docs" / "event-hub-operations.md").read_text(
        encoding="utf-8"
    )
    queries = re.findall(r"`(SELECT [^`]*)`", page)
    assert len(queries) == 6
    sql = Sql("sqlite://", metadata)
    for query in queries:
        await sql.read(lambda c, query=query: c.execute(text(query)).all())  # type: ignore[misc]
    await sql.close()


def test_an_error_names_the_package_of_a_missing_driver() -> None:
    with pytest.raises(
        ModuleNotFoundError,
        match="a mysql database needs the package MySQLdb, which is not installed",
    ):
        Sql("mysql://host/database", metadata)
