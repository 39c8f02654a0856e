"""Where ingestion keeps its state: all of it in the database where one is set, else in tables.

One place for all, so that who has a database needs no Table Storage for events, and who has none
needs nothing else.
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
"""The name of the circuit breaker around the event hub: that of the function behind it."""


class EventStore(IngestionStore, DeadLetterStore, NewestDeadLetters, RetentionStore, Protocol):
    """One class serves all of these ports."""


class IngestionStores(Parts):
    @property
    def settings(self) -> IngestionSettings:
        return self._app.settings.ingestion

    @property
    def connection(self) -> EventHubConnection:
        hub = self.settings.hub
        assert hub is not None, "the functions are registered only where the hub is set"
        return hub

    @cached_property
    def handling(self) -> Handling | None:
        """The user's own handler and tables, where ``IngestionHandler`` names them."""
        return self._app.checked.handling

    @cached_property
    def store(self) -> EventStore:
        """Checkpoints and what became of events; the user's own tables take part in its commits."""
        if self.settings.database_url:
            from shared.adapters.sql.ingestion import SqlIngestionStore  # noqa: PLC0415  heavy

            take_part = self.handling.take_part if self.handling else None
            return SqlIngestionStore(self.database, take_part)
        from shared.adapters.tables.ingestion import TableIngestionStore  # noqa: PLC0415  heavy

        return self._app.open(TableIngestionStore, self._app.storage)

    @property
    def store_alone(self) -> EventStore:
        """The same without the user's tables: what is only tried must not change them."""
        if not self.settings.database_url:
            return self.store
        from shared.adapters.sql.ingestion import SqlIngestionStore  # noqa: PLC0415  heavy

        return SqlIngestionStore(self.database)

    @cached_property
    def breaker_store(self) -> BreakerStore:
        """Of the circuit breaker around the event hub."""
        if self.settings.database_url:
            from shared.adapters.sql.breaker import SqlBreakerStore  # noqa: PLC0415  heavy

            return SqlBreakerStore(self.database, BREAKER)
        from shared.adapters.tables.breaker import TableBreakerStore  # noqa: PLC0415  heavy

        return self._app.open(TableBreakerStore, self._app.storage, BREAKER)

    @cached_property
    def owners(self) -> OwnershipStore:
        """Who reads which partition outside the Functions trigger."""
        hub = self.connection
        group = (hub.namespace, hub.hub, self.settings.consumer_group)
        if self.settings.database_url:
            from shared.adapters.sql.ownership import SqlOwnershipStore  # noqa: PLC0415  heavy

            return SqlOwnershipStore(self.database, *group)
        from shared.adapters.tables.ownership import TableOwnershipStore  # noqa: PLC0415  heavy

        return self._app.open(TableOwnershipStore, self._app.storage, *group)

    @cached_property
    def database(self) -> Sql:
        """One pool of connections for all of it."""
        from shared.adapters.sql.engine import Sql  # noqa: PLC0415  heavy to import
        from shared.adapters.sql.schema import metadata  # noqa: PLC0415  heavy to import

        tables = self.handling.tables if self.handling else None
        own = [] if tables is None else [tables]
        return self._app.open(Sql, self.settings.database_url, metadata, *own)
