"""Runs transactions on a SQL database in threads, and translates the database's errors.

SQLite runs in this process with a write-ahead log, so readers and the one writer do not wait for
each other. If the machine crashes, SQLite may lose its last transactions, but it never loses only a
part of one.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol, TypeVar

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Dialect,
    Engine,
    MetaData,
    Table,
    create_engine,
    event,
    inspect,
    make_url,
)
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    OperationalError,
    ProgrammingError,
    TimeoutError,
)
from sqlalchemy.pool import StaticPool
from sqlalchemy.schema import CreateColumn

from shared.ingestion.errors import StoreUnavailable
from shared.ingestion.failure_cause import blames_input
from shared.values.redaction import redacting
from shared.values.text import one_line

T = TypeVar("T")

BUSY_SECONDS = 5
ODBC_NAMES = re.compile(r"(?:^|;)\s*(server|database)\s*=\s*([^;]+)")
REFUSED_STATES = ("28000", "28P01", "42501")
"""SQLSTATEs of a refused login and of a missing right."""
REFUSED_TEXTS = re.compile(
    r"\'28000\'|\((18456|229|230|262|916)\)|(password authentication|permission) (failed|denied)"
)
"""What the errors say whose class and attributes do not tell: SQL Server has error numbers, and
PostgreSQL sends no SQLSTATE for a connection that it refuses.
"""
REFUSED_ADVICE = (
    "Check the login in IngestionDatabaseUrl, and grant it the rights to read, write, create and "
    "alter tables"
)
RECYCLE_SECONDS = 1500
"""Seconds after which a connection is replaced: fewer than 30 minutes, after which Azure SQL drops
an idle connection.
"""


class BlockingRunner(Protocol):
    """Runs blocking work without blocking the event loop."""

    async def __call__(self, work: Callable[[], T], /) -> T: ...


class OneThread:
    """Runs one piece of work after the other, in one thread.

    SQLite allows one writer at a time. Writers of this process queue here, because in SQLite itself
    they would have to poll, with growing pauses.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="sqlite-writer")

    async def __call__(self, work: Callable[[], T]) -> T:
        loop, context = asyncio.get_running_loop(), copy_context()
        return await loop.run_in_executor(self._executor, partial(context.run, work))

    def close(self) -> None:
        """Accept no further work. Work that has begun is finished."""
        self._executor.shutdown(wait=False)


@redacting
class Sql:
    """A database with the tables of all ``metadata``.

    Before the first use, missing tables are created, and columns that an older version of the app
    did not create are added.
    """

    def __init__(self, url: str, *metadata: MetaData, run: BlockingRunner | None = None) -> None:
        self.engine = _engine(url)
        self._metadata = metadata
        self._run: BlockingRunner = run or asyncio.to_thread
        self._one_thread = OneThread()
        is_sqlite = self.engine.dialect.name == "sqlite"
        self._run_writing = run or (self._one_thread if is_sqlite else asyncio.to_thread)
        self._reading = _reading(self.engine)
        # An in-memory database has only one connection, on which transactions must not interleave.
        has_one_connection = isinstance(self.engine.pool, StaticPool)
        self._exclusive: AbstractContextManager[Any] = (
            threading.Lock() if has_one_connection else nullcontext()
        )
        self._has_tables = False
        self._creating = threading.Lock()

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` outside of a transaction and return its result. Raises StoreUnavailable."""
        return await self._run(lambda: self._work(self._reading, work, "reading from"))

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one transaction and return its result.

        If the work raises, the transaction is rolled back and the error is raised. Also raises
        StoreUnavailable.
        """
        return await self._run_writing(lambda: self._work(self.engine, work, "writing to"))

    async def close(self) -> None:
        self._one_thread.close()
        await self._run(self.engine.dispose)

    def _work(self, engine: Engine, work: Callable[[Connection], T], doing: str) -> T:
        place = place_of(engine.url)
        with store_errors(f"creating the tables in {place} failed"):
            self._create_once()
        with store_errors(f"{doing} {place} failed"), self._exclusive, engine.begin() as connection:
            return work(connection)

    def _create_once(self) -> None:
        with self._creating:
            if self._has_tables:
                return
            for each in self._metadata:
                try:
                    self._create_tables(each)
                except (IntegrityError, ProgrammingError, OperationalError):
                    self._create_tables(each)  # another process created them at the same time
            self._has_tables = True

    def _create_tables(self, metadata: MetaData) -> None:
        metadata.create_all(self.engine)
        with self.engine.begin() as connection:
            add_missing(connection, metadata)


def place_of(url: URL) -> str:
    """The database and the server that a URL names, without user and password."""
    kind = url.get_backend_name()
    if kind == "sqlite":
        return f"the sqlite database {url.database or 'in memory'}"
    # ODBC has its names in one parameter. Other drivers may have the server in a parameter.
    odbc = dict(ODBC_NAMES.findall(str(url.query.get("odbc_connect", "")).lower()))
    database = url.database or odbc.get("database")
    server = url.host or odbc.get("server") or url.query.get("host")
    return f"the {kind} database {database or '(not named)'} on {server or '(not named)'}"


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Raises the database's errors as StoreUnavailable, with its message but no values.

    ``what`` begins the message. An error that blames the input is raised unchanged.
    """
    try:
        yield
    except DBAPIError as error:
        if blames_input(error):
            raise
        advice = f". {REFUSED_ADVICE}" if _is_refusal(error) else ""
        raise StoreUnavailable(f"{what}: {one_line(error.orig)}{advice}") from error
    except TimeoutError as error:
        raise StoreUnavailable(f"{what}: no connection of the pool became free in time") from error


def _is_refusal(error: DBAPIError) -> bool:
    """Whether the database refused the login, or the login lacks a right."""
    text, state = str(error.orig), str(getattr(error.orig, "sqlstate", None) or "")
    return state in REFUSED_STATES or REFUSED_TEXTS.search(text) is not None


def _engine(url: str) -> Engine:
    parsed = make_url(url)
    is_sqlite = parsed.get_backend_name() == "sqlite"
    options: dict[str, Any] = {"pool_recycle": RECYCLE_SECONDS}
    if is_sqlite and parsed.database in (None, "", ":memory:"):
        options = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
    elif is_sqlite:
        options = {"connect_args": {"timeout": BUSY_SECONDS}}
    try:
        engine = create_engine(url, hide_parameters=True, **options)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"a {parsed.drivername} database needs the package {error.name}, which is not installed"
        ) from error
    if is_sqlite:
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _reading(engine: Engine) -> Engine:
    """An engine for reads, which need no transaction. In SQLite they must not lock out writers."""
    if engine.dialect.name == "sqlite":
        return engine.execution_options(reading=True)
    return engine.execution_options(isolation_level="AUTOCOMMIT")


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver then begins no transactions by itself
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


def _begin_sqlite(connection: Connection) -> None:
    """Take the write lock when the transaction begins. SQLite lets a transaction that began with a
    read fail at its first write, instead of waiting for the lock."""
    if not connection.get_execution_options().get("reading"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


ADDED = {"added": True}
"""The ``info`` of a column that the first version of its table did not have."""


def add_missing(connection: Connection, metadata: MetaData) -> None:
    """Add the columns that are marked with ADDED to tables that do not have them yet."""
    for table in metadata.tables.values():
        added = [column for column in table.columns if column.info.get("added")]
        if added:
            _add_to(connection, table, added)


def _add_to(connection: Connection, table: Table, added: Sequence[Column[Any]]) -> None:
    present = {each["name"] for each in inspect(connection).get_columns(table.name)}
    missing = [column for column in added if column.name not in present]
    if missing and connection.dialect.name == "sqlite":
        _rebuild(connection, table, [each for each in table.columns if each.name in present])
        return
    for column in missing:
        connection.exec_driver_sql(statement(connection.dialect, table, column))


def statement(dialect: Dialect, table: Table, column: Column[Any]) -> str:
    """The statement that adds a column. It omits the word COLUMN, which SQL Server rejects
    there."""
    name = dialect.identifier_preparer.format_table(table)
    return f"ALTER TABLE {name} ADD {CreateColumn(column).compile(dialect=dialect)}"


def _rebuild(connection: Connection, table: Table, kept: Sequence[Column[Any]]) -> None:
    """Create the table again and copy its rows. SQLite cannot add a column whose default is the
    current time. If copying fails, the transaction undoes it, because SQLite's transactions cover
    changes of tables.
    """
    prepare = connection.dialect.identifier_preparer
    name, old = prepare.format_table(table), prepare.quote(f"{table.name}_old")
    columns = ", ".join([prepare.quote(column.name) for column in kept])
    connection.exec_driver_sql(f"ALTER TABLE {name} RENAME TO {old}")
    table.create(connection)
    copy = f"INSERT INTO {name} ({columns}) SELECT {columns} FROM {old}"  # noqa: S608  our names
    connection.exec_driver_sql(copy)
    connection.exec_driver_sql(f"DROP TABLE {old}")
