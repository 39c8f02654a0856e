"""Runs transactions on a SQL database in threads, and translates the database's errors. SQLite uses
a write-ahead log; a crash of the machine may lose its last transactions."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    MetaData,
    create_engine,
    event,
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
"""What the errors say whose class and attributes do not tell, of SQL Server and of PostgreSQL."""
REFUSED_ADVICE = (
    "Check the login in IngestionDatabaseUrl, and grant it the rights to read, write and create "
    "tables"
)
RECYCLE_SECONDS = 1500
"""Azure SQL drops an idle connection after 30 minutes."""


@redacting
class Sql:
    """A database. Before the first use, missing tables are created."""

    def __init__(self, url: str, *metadata: MetaData) -> None:
        self.engine = _engine(url)
        self._metadata = metadata
        self._reading = _reading(self.engine)
        # SQLite has one writer at a time. An in-memory database has only one connection.
        is_sqlite, in_memory = _is_sqlite(self.engine), isinstance(self.engine.pool, StaticPool)
        self._write_turn = threading.Lock() if is_sqlite else nullcontext()
        self._read_turn = self._write_turn if in_memory else nullcontext()
        self._has_tables = False
        self._creating = threading.Lock()

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` outside of a transaction and return its result. Raises StoreUnavailable."""
        turn = self._read_turn
        return await asyncio.to_thread(self._work, self._reading, turn, work, "reading from")

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a transaction, which its error rolls back. Raises StoreUnavailable."""
        turn = self._write_turn
        return await asyncio.to_thread(self._work, self.engine, turn, work, "writing to")

    async def close(self) -> None:
        await asyncio.to_thread(self.engine.dispose)

    def _work(
        self,
        engine: Engine,
        turn: AbstractContextManager[Any],
        work: Callable[[Connection], T],
        doing: str,
    ) -> T:
        place = place_of(engine.url)
        with store_errors(f"creating the tables in {place} failed"):
            self._create_once()
        with store_errors(f"{doing} {place} failed"), turn, engine.begin() as connection:
            return work(connection)

    def _create_once(self) -> None:
        with self._creating:
            if self._has_tables:
                return
            for each in self._metadata:
                try:
                    each.create_all(self.engine)
                except (IntegrityError, ProgrammingError, OperationalError):
                    each.create_all(self.engine)  # another process created them at the same time
            self._has_tables = True


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
    """Raises the database's errors as StoreUnavailable, whose message ``what`` begins, without
    values. An error that blames the input is raised unchanged."""
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


def _is_sqlite(engine: Engine) -> bool:
    return engine.dialect.name == "sqlite"


def _reading(engine: Engine) -> Engine:
    """An engine for reads, which need no transaction. In SQLite they must not lock out writers."""
    if _is_sqlite(engine):
        return engine.execution_options(reading=True)
    return engine.execution_options(isolation_level="AUTOCOMMIT")


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver then begins no transactions by itself
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


def _begin_sqlite(connection: Connection) -> None:
    """Take the write lock at once: a transaction that begins with a read cannot write later."""
    if not connection.get_execution_options().get("reading"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
