"""Builds the stores of ingestion: all in the database if one is configured, otherwise all in
tables.

So ingestion with a database needs no tables of the storage account, and ingestion without a
database needs only the storage account.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from shared.ingestion.breaker.ports import BreakerStore
from shared.ingestion.dead_letters.ports import DeadLetterStore, NewestDeadLetters
from shared.ingestion.events.handling import Handling
from shared.ingestion.events.ports import IngestionStore, RetentionStore
from shared.ingestion.ownership.ports import OwnershipStore
from shared.settings.connections import EventHubConnection
from shared.settings.ingestion import IngestionSettings
from shared.wiring.parts import Parts

if TYPE_CHECKING:
    from shared.adapters.sql.engine import Sql

BREAKER = "metric_ingest"
"""The name of the event hub's circuit breaker, which is the name of the function that it protects.
"""


class EventStore(IngestionStore, DeadLetterStore, NewestDeadLetters, RetentionStore, Protocol):
    """The ports that one adapter class implements for the events of all partitions."""


class IngestionStores(Parts):
    @property
    def settings(self) -> IngestionSettings:
        return self._app.settings.ingestion

    @property
    def connection(self) -> EventHubConnection:
        hub = self.settings.hub
        assert hub is not None, "the functions are registered only if the hub is set"
        return hub

    @cached_property
    def handling(self) -> Handling | None:
        """The user's own handler and tables, if ``IngestionHandler`` names them."""
        return self._app.checked.handling

    @cached_property
    def store(self) -> EventStore:
        """Checkpoints and outcomes of events. Its commits also write the user's own tables."""
        if self.settings.database_url:
            from shared.adapters.sql.ingestion import SqlIngestionStore  # noqa: PLC0415  heavy

            write_in_transaction = self.handling.write_in_transaction if self.handling else None
            return SqlIngestionStore(self.database, write_in_transaction)
        from shared.adapters.tables.ingestion import TableIngestionStore  # noqa: PLC0415  heavy

        return self._app.open(TableIngestionStore, self._app.storage)

    @property
    def store_alone(self) -> EventStore:
        """The same store without the user's tables, for replays, which must not change these
        tables.
        """
        if not self.settings.database_url:
            return self.store
        from shared.adapters.sql.ingestion import SqlIngestionStore  # noqa: PLC0415  heavy

        return SqlIngestionStore(self.database)

    @cached_property
    def breaker_store(self) -> BreakerStore:
        """The state of the circuit breaker around the event hub."""
        store = self._unmeasured_breaker_store()
        if not self._app.measuring:
            return store
        from shared.adapters.telemetry.measured import MeasuredBreaker  # noqa: PLC0415  heavy

        return MeasuredBreaker(store, BREAKER)

    def _unmeasured_breaker_store(self) -> BreakerStore:
        if self.settings.database_url:
            from shared.adapters.sql.breaker import SqlBreakerStore  # noqa: PLC0415  heavy

            return SqlBreakerStore(self.database, BREAKER)
        from shared.adapters.tables.breaker import TableBreakerStore  # noqa: PLC0415  heavy

        return self._app.open(TableBreakerStore, self._app.storage, BREAKER)

    @cached_property
    def owners(self) -> OwnershipStore:
        """Which processor owns which partition, outside the Functions trigger."""
        hub = self.connection
        group = (hub.namespace, hub.hub, self.settings.consumer_group)
        if self.settings.database_url:
            from shared.adapters.sql.ownership import SqlOwnershipStore  # noqa: PLC0415  heavy

            return SqlOwnershipStore(self.database, *group)
        from shared.adapters.tables.ownership import TableOwnershipStore  # noqa: PLC0415  heavy

        return self._app.open(TableOwnershipStore, self._app.storage, *group)

    @cached_property
    def database(self) -> Sql:
        """The connection pool that all stores share."""
        from shared.adapters.sql.engine import Sql  # noqa: PLC0415  heavy to import
        from shared.adapters.sql.schema import metadata  # noqa: PLC0415  heavy to import

        tables = self.handling.tables if self.handling else None
        own = [] if tables is None else [tables]
        return self._app.open(Sql, self.settings.database_url, metadata, *own)
