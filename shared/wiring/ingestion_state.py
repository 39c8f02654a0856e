"""Where ingestion keeps its state: all of it in the database where one is set, else in tables.

One place for all, so that who has a database needs no Table Storage for events, and who has none
needs nothing else.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Protocol, TypeVar

from shared.wiring.checks import checked
from shared.wiring.checks import handling as declared_handling

if TYPE_CHECKING:
    from shared.adapters.sql.breaker import SqlBreakerStore
    from shared.adapters.sql.engine import Sql
    from shared.adapters.sql.ingestion import SqlIngestionStore
    from shared.adapters.sql.ownership import SqlOwnershipStore
    from shared.adapters.tables.breaker import TableBreakerStore
    from shared.adapters.tables.ingestion import TableIngestionStore
    from shared.adapters.tables.ownership import TableOwnershipStore
    from shared.ingestion.events.handling import Handling
    from shared.settings import Settings
    from shared.settings.connections import StorageConnection


class _Closes(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=_Closes)
_opened: list[_Closes] = []
STORAGE = "AzureWebJobsStorage"
BREAKER = "metric_ingest"
"""The name of the circuit breaker around the event hub: that of the function behind it."""


@cache
def store() -> TableIngestionStore | SqlIngestionStore:
    """Checkpoints and what became of events; tables of the user's own take part in its commits."""
    if _has_database():
        from shared.adapters.sql.ingestion import SqlIngestionStore  # noqa: PLC0415  heavy

        declared = handling()
        return SqlIngestionStore(database(), declared.take_part if declared else None)
    from shared.adapters.tables.ingestion import TableIngestionStore  # noqa: PLC0415  heavy

    return _closed_in_the_end(TableIngestionStore(_storage()))


def store_alone() -> TableIngestionStore | SqlIngestionStore:
    """The same without the user's tables: what is only tried must not change them."""
    if not _has_database():
        return store()
    from shared.adapters.sql.ingestion import SqlIngestionStore  # noqa: PLC0415  heavy to import

    return SqlIngestionStore(database())


@cache
def handling() -> Handling | None:
    """The user's own handler and tables, where ``IngestionHandler`` names them."""
    return declared_handling(_settings())


@cache
def breaker_store() -> TableBreakerStore | SqlBreakerStore:
    """Of the circuit breaker around the event hub."""
    if _has_database():
        from shared.adapters.sql.breaker import SqlBreakerStore  # noqa: PLC0415  heavy

        return SqlBreakerStore(database(), BREAKER)
    from shared.adapters.tables.breaker import TableBreakerStore  # noqa: PLC0415  heavy

    return _closed_in_the_end(TableBreakerStore(_storage(), BREAKER))


@cache
def owners() -> TableOwnershipStore | SqlOwnershipStore:
    """Who reads which partition outside the Functions trigger."""
    found = _settings().ingestion
    assert found.hub is not None, "only who reads a hub asks"
    group = (found.hub.namespace, found.hub.hub, found.consumer_group)
    if _has_database():
        from shared.adapters.sql.ownership import SqlOwnershipStore  # noqa: PLC0415  heavy

        return SqlOwnershipStore(database(), *group)
    from shared.adapters.tables.ownership import TableOwnershipStore  # noqa: PLC0415  heavy

    return _closed_in_the_end(TableOwnershipStore(_storage(), *group))


@cache
def database() -> Sql:
    """One pool of connections for all of it."""
    from shared.adapters.sql.engine import Sql  # noqa: PLC0415
    from shared.adapters.sql.schema import metadata  # noqa: PLC0415  heavy to import

    declared = handling()
    own = [declared.tables] if declared and declared.tables is not None else []
    return _closed_in_the_end(Sql(_settings().ingestion.database_url, metadata, *own))


async def close() -> None:
    """Close what was opened."""
    while _opened:
        await _opened.pop().close()
    for cached in (store, handling, breaker_store, owners, database):
        cached.cache_clear()


def _closed_in_the_end(opened: C) -> C:
    _opened.append(opened)
    return opened


def _settings() -> Settings:
    return checked()[0]


def _has_database() -> bool:
    return bool(_settings().ingestion.database_url)


def _storage() -> StorageConnection:
    return _settings().storage(STORAGE)
