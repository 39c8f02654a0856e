"""Builds the stores of ingestion: in the database if one is configured, or else in tables."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from shared.ingestion.events.handling import Handling
from shared.ingestion.model import in_one_case
from shared.ingestion.store.breakers import BreakerStore
from shared.ingestion.store.events import EventStore
from shared.ingestion.store.owners import OwnershipStore
from shared.ingestion.store.rows import RowEngine
from shared.settings.connections import EventHubConnection
from shared.settings.ingestion import IngestionSettings
from shared.wiring.parts import Parts

if TYPE_CHECKING:
    from shared.ingestion.store.sql_engine import Sql

BREAKER = "metric_ingest"
"""The name of the event hub's circuit breaker, after the function that it protects."""


class IngestionStores(Parts):
    @property
    def settings(self) -> IngestionSettings:
        return self._app.settings.ingestion

    @property
    def connection(self) -> EventHubConnection:
        hub = self.settings.hub
        assert hub is not None, "the functions are registered only if the hub is set"
        return hub

    @property
    def group(self) -> tuple[str, str, str]:
        """The names of the namespace, the hub and the consumer group, by which rows are stored: in
        one case, because Azure compares them without."""
        hub, group = self.connection, self.settings.consumer_group
        return in_one_case(hub.namespace), in_one_case(hub.hub), in_one_case(group)

    @cached_property
    def handling(self) -> Handling | None:
        """The user's own handler and tables, if ``IngestionHandler`` names them."""
        return self._app.checked.handling

    @cached_property
    def rows(self) -> RowEngine:
        if self.settings.database_url:
            from shared.ingestion.store.sql import SqlRows  # noqa: PLC0415  heavy to import

            return SqlRows(self.database)
        from shared.ingestion.store.tables import TableRows  # noqa: PLC0415  heavy to import

        return self._app.open(TableRows, self._app.storage)

    @cached_property
    def store(self) -> EventStore:
        """Checkpoints and outcomes of events. Its commits also write the user's own tables."""
        write_in_transaction = self.handling.write_in_transaction if self.handling else None
        return EventStore(self.rows, write_in_transaction, self._app.meter)

    @cached_property
    def store_alone(self) -> EventStore:
        """The same without the user's tables, which replays must not change."""
        return EventStore(self.rows)

    @cached_property
    def breaker_store(self) -> BreakerStore:
        return BreakerStore(self.rows, BREAKER, self._app.meter)

    @cached_property
    def owners(self) -> OwnershipStore:
        """Which processor owns which partition, outside the Functions trigger."""
        return OwnershipStore(self.rows, *self.group)

    @cached_property
    def database(self) -> Sql:
        """The connection pool that all stores share."""
        from shared.ingestion.store.sql_engine import Sql  # noqa: PLC0415  heavy to import
        from shared.ingestion.store.sql_schema import metadata  # noqa: PLC0415  heavy to import

        tables = self.handling.tables if self.handling else None
        own = [] if tables is None else [tables]
        return self._app.open(Sql, self.settings.database_url, metadata, *own)
