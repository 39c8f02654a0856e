"""The implementations that the contract tests of ingestion run against.

A real PostgreSQL server is started for the tests, or that of ``TEST_POSTGRES_URL`` is used.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import pytest

from shared.adapters.ingestion_memory import (
    MemoryBreakerStore,
    MemoryIngestionStore,
    MemoryOwnershipStore,
)
from shared.adapters.ingestion_table import TableIngestionStore
from shared.adapters.ingestion_table_breaker import TableBreakerStore
from shared.adapters.ingestion_table_owners import TableOwnershipStore
from shared.connections import StorageConnection
from shared.ingestion.ports import BreakerStore, OwnershipStore
from tests.contract.ingestion import Store

BACKENDS = ("memory", "tables")


def now() -> datetime:
    return datetime.now(UTC)


class Backend:
    """Makes the stores of one implementation; all that it opened is closed in the end."""

    def __init__(self, kind: str, request: pytest.FixtureRequest, stack: AsyncExitStack) -> None:
        self.kind = kind
        self._request = request
        self._stack = stack

    def store(self) -> Store:
        if self.kind == "memory":
            return MemoryIngestionStore(now)
        tables = TableIngestionStore(self._storage)
        self._stack.push_async_callback(tables.close)
        return tables

    def owners(self) -> OwnershipStore:
        """Of a hub that nobody else reads."""
        if self.kind == "memory":
            return MemoryOwnershipStore(now)
        tables = TableOwnershipStore(self._storage, "ns/ü", uuid.uuid4().hex, "$Default")
        self._stack.push_async_callback(tables.close)
        return tables

    def breaker(self) -> BreakerStore:
        """Of a consumer that nobody else is."""
        if self.kind == "memory":
            return MemoryBreakerStore(now)
        tables = TableBreakerStore(self._storage, f"hub/{uuid.uuid4().hex}")
        self._stack.push_async_callback(tables.close)
        return tables

    @property
    def _storage(self) -> StorageConnection:
        string = self._request.getfixturevalue("azurite").connection_string
        return StorageConnection("Storage", string)


@pytest.fixture(params=BACKENDS)
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    async with AsyncExitStack() as stack:
        yield Backend(request.param, request, stack)


@pytest.fixture
def store(backend: Backend) -> Store:
    return backend.store()


@pytest.fixture
def owners(backend: Backend) -> OwnershipStore:
    return backend.owners()


@pytest.fixture
def breaker(backend: Backend) -> BreakerStore:
    return backend.breaker()
