"""Fixtures with the implementations that the contract tests of ingestion run against.

The tests start a PostgreSQL server, or use the server of ``TEST_POSTGRES_URL``. They also run
against SQL Server if ``TEST_AZURE_SQL_URL`` is set and pyodbc is installed; they cannot start one.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Protocol, TypeVar

import pytest

from local.twins.rows import MemoryRows
from shared.ingestion.errors import RowChanged
from shared.ingestion.store.breakers import BreakerStore
from shared.ingestion.store.events import EventStore, WriteInTransaction
from shared.ingestion.store.owners import OwnershipStore
from shared.ingestion.store.rows import RowEngine
from shared.ingestion.store.sql import SqlRows
from shared.ingestion.store.sql_engine import Sql
from shared.ingestion.store.sql_schema import metadata
from shared.ingestion.store.tables import TableRows
from shared.settings.connections import StorageConnection
from tests.storage.postgres import postgres


class Closes(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=Closes)
A_MOMENT = timedelta(seconds=5)
AZURE_SQL = os.environ.get("TEST_AZURE_SQL_URL", "")
BACKENDS = ("memory", "tables", "sqlite", "postgres", *(["azure_sql"] if AZURE_SQL else []))


def now() -> datetime:
    return datetime.now(UTC)


async def wins(write: Awaitable[object]) -> bool:
    """Whether a conditional write is not refused."""
    try:
        await write
    except RowChanged:
        return False
    return True


class Backend:
    """Opens the stores of one implementation, and closes them at the end of the test."""

    def __init__(self, kind: str, request: pytest.FixtureRequest, stack: AsyncExitStack) -> None:
        self.kind = kind
        self._request = request
        self._stack = stack

    def store(self, write: WriteInTransaction | None = None) -> EventStore:
        """``write`` is for databases only."""
        return EventStore(self.rows, write if self.kind not in ("memory", "tables") else None)

    def owners(self, hub: str = "") -> OwnershipStore:
        """The owners of a hub that no other test uses, or of the named hub."""
        return OwnershipStore(self.rows, "ns/ü", hub or uuid.uuid4().hex, "$Default")

    def breaker(self) -> BreakerStore:
        """The breaker of a consumer that no other test uses."""
        return BreakerStore(self.rows, f"hub/{uuid.uuid4().hex}")

    @cached_property
    def rows(self) -> RowEngine:
        if self.kind == "memory":
            return MemoryRows(now)
        if self.kind == "tables":
            return self._closing(TableRows(self._storage))
        return SqlRows(self.sql)

    @cached_property
    def sql(self) -> Sql:
        url = self._request.getfixturevalue(f"{self.kind}_url")
        return self._closing(Sql(url, metadata))

    @property
    def _storage(self) -> StorageConnection:
        string = self._request.getfixturevalue("azurite").connection_string
        return StorageConnection("Storage", string)

    def _closing(self, opened: C) -> C:
        self._stack.push_async_callback(opened.close)
        return opened


@pytest.fixture(scope="session")
def sqlite_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('sqlite')}/ingestion.db"


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture(scope="session")
def azure_sql_url() -> str:
    return AZURE_SQL


@pytest.fixture(params=BACKENDS)
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    async with AsyncExitStack() as stack:
        yield Backend(request.param, request, stack)


@pytest.fixture
def store(backend: Backend) -> EventStore:
    return backend.store()


@pytest.fixture
def owners(backend: Backend) -> OwnershipStore:
    return backend.owners()


@pytest.fixture
def breaker(backend: Backend) -> BreakerStore:
    return backend.breaker()
