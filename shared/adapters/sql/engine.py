"""A SQL database: transactions in threads, whatever fails under its name.

SQLite runs in this process, with a write-ahead log: readers and the one writer do not wait for each
other. A crash of the machine may undo its last transactions, each of them whole.
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
    DataError,
    DBAPIError,
    IntegrityError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    TimeoutError,
)
from sqlalchemy.pool import StaticPool
from sqlalchemy.schema import CreateColumn

from shared.ingestion.errors import StoreUnavailable
from shared.values.redaction import redacting

T = TypeVar("T")

BUSY_SECONDS = 5
PASSING_IN_AZURE = re.compile(r"\((4060|40197|40501|40613|49918|49919|49920)\)")
"""SQL Server's numbers of transient faults. Source: "Troubleshoot transient connection errors"."""
RECYCLE_SECONDS = 1500
"""Below the half hour after which Azure SQL drops an idle connection."""


class BlockingRunner(Protocol):
    """Runs a blocking piece of work."""

    async def __call__(self, work: Callable[[], T], /) -> T: ...


class OneThread:
    """One piece of work after the other, in a thread of its own.

    SQLite has one writer at a time. Who waits for another in the same process waits here: SQLite
    itself would let it sleep, ask again, and sleep for longer.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="sqlite-writer")

    async def __call__(self, work: Callable[[], T]) -> T:
        loop, context = asyncio.get_running_loop(), copy_context()
        return await loop.run_in_executor(self._executor, partial(context.run, work))

    def close(self) -> None:
        """What was begun goes on to its end."""
        self._executor.shutdown(wait=False)


@redacting
class Sql:
    """A database with the tables of all ``metadata``, which are made where they are missing, and
    brought up to date where an older version made them."""

    def __init__(self, url: str, *metadata: MetaData, run: BlockingRunner | None = None) -> None:
        self.engine = _engine(url)
        self._metadata = metadata
        self._run: BlockingRunner = run or asyncio.to_thread
        self._turns = OneThread()
        one_writer = self.engine.dialect.name == "sqlite"
        self._run_writing = run or (self._turns if one_writer else asyncio.to_thread)
        self._reading = _reading(self.engine)
        # The one connection to a database in memory would mix up transactions.
        alone = isinstance(self.engine.pool, StaticPool)
        self._turn: AbstractContextManager[Any] = threading.Lock() if alone else nullcontext()
        self._made = False
        self._making = threading.Lock()

    async def read(self, work: Callable[[Connection], T]) -> T:
        """What the work reads. Raises StoreUnavailable."""
        return await self._run(lambda: self._work(self._reading, work))

    async def write(self, work: Callable[[Connection], T]) -> T:
        """What the work answers, in one transaction: it is undone where the work raises.

        Raises what the work raises, and StoreUnavailable.
        """
        return await self._run_writing(lambda: self._work(self.engine, work))

    async def close(self) -> None:
        self._turns.close()
        await self._run(self.engine.dispose)

    def _work(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        with store_errors(engine.url.get_backend_name()):
            self._make()
            with self._turn, engine.begin() as connection:
                return work(connection)

    def _make(self) -> None:
        with self._making:
            if self._made:
                return
            for each in self._metadata:
                try:
                    self._make_tables(each)
                except (IntegrityError, ProgrammingError, OperationalError):
                    self._make_tables(each)  # another made them at the same time
            self._made = True

    def _make_tables(self, metadata: MetaData) -> None:
        metadata.create_all(self.engine)
        with self.engine.begin() as connection:
            add_missing(connection, metadata)


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """What may pass, as StoreUnavailable; it says what the database said, and no values."""
    try:
        yield
    except DBAPIError as error:
        if not _may_pass(error):
            raise
        raise StoreUnavailable(f"{what}: {error.orig}") from error
    except TimeoutError as error:
        raise StoreUnavailable(f"{what}: no connection was free in time") from error


def _may_pass(error: DBAPIError) -> bool:
    """By the kind of error; of Azure SQL by its number too, for its driver has the victim of a
    deadlock under no kind at all, and a database that moves to another machine as bad syntax."""
    if isinstance(error, IntegrityError | DataError | ProgrammingError | NotSupportedError):
        return PASSING_IN_AZURE.search(str(error.orig)) is not None
    return True


def refused(error: IntegrityError | DataError) -> str:
    """What the database said of the row that it did not take."""
    return str(error.orig)


def _engine(url: str) -> Engine:
    try:
        return _engine_of(url)
    except ModuleNotFoundError as error:
        kind = make_url(url).drivername
        raise ModuleNotFoundError(f"a database of {kind} needs the package {error.name}") from error


def _engine_of(url: str) -> Engine:
    if make_url(url).get_backend_name() != "sqlite":
        return create_engine(url, hide_parameters=True, pool_recycle=RECYCLE_SECONDS)
    options: dict[str, Any] = {"connect_args": {"timeout": BUSY_SECONDS}}
    if make_url(url).database in (None, "", ":memory:"):
        options |= {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
    engine = create_engine(url, hide_parameters=True, **options)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _reading(engine: Engine) -> Engine:
    """Reads need no transaction; in SQLite they must not take the writer's place."""
    if engine.dialect.name == "sqlite":
        return engine.execution_options(reading=True)
    return engine.execution_options(isolation_level="AUTOCOMMIT")


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # begins no transaction by itself, or at the wrong moment
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


def _begin_sqlite(connection: Connection) -> None:
    """A writer takes its place at once: one that began as a reader could not wait for it."""
    if not connection.get_execution_options().get("reading"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


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
