"""The state store on Azure Table Storage: one range read, one transaction guarded by ETags."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import datetime

from shared.adapters.azure.transport import server_time
from shared.adapters.tables.scaling_log import (
    LOG_END,
    LOG_PREFIX,
    log_entry,
    log_key_start,
    log_row,
    newest_first,
)
from shared.adapters.tables.scaling_rows import (
    STATE_START,
    ScalingRowUnreadable,
    override_row,
    state_of,
    state_row,
)
from shared.adapters.tables.table import (
    TRANSACTION_ROWS_MAX,
    Operation,
    RowConflict,
    Table,
    guarded,
    removal,
)
from shared.autoscaling.errors import StateConflict, StateUnreadable
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.state import OVERRIDE_ROW, LogEntry, Override, ScalingState, changed_rows
from shared.settings.connections import StorageConnection
from shared.values.redaction import redacting

TABLE_NAME = "Scaling"
CONFLICT_PAUSE_SECONDS_MAX = 0.1


@redacting
class TableStateStore:
    """See StateStore. ``Snapshot.version`` holds the ETag of each row that was read."""

    def __init__(self, connection: StorageConnection) -> None:
        self._table = Table(connection, TABLE_NAME)

    async def load(self, resource_name: str) -> Snapshot:
        query = "PartitionKey eq @resource and RowKey ge @start"
        rows = await self._table.rows(query, {"resource": resource_name, "start": STATE_START})
        etags = {row["RowKey"]: row.metadata["etag"] for row in rows}
        try:
            state, skipped = state_of(rows)
        except ScalingRowUnreadable as error:
            raise StateUnreadable(f"{resource_name}: {error}", server_time()) from error
        return Snapshot(resource_name, state, server_time(), etags, skipped)

    async def commit(
        self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry] = ()
    ) -> None:
        operations: list[Operation] = [
            guarded(state_row(snapshot.resource_name, key, value), snapshot.version.get(key))
            for key, value in changed_rows(snapshot.state, state)
        ]
        operations += [("create", log_row(entry)) for entry in entries]
        if operations:
            await self._submit(snapshot.resource_name, operations)

    async def put_override(
        self, snapshot: Snapshot, override: Override | None, entry: LogEntry
    ) -> None:
        name, etag = snapshot.resource_name, snapshot.version.get(OVERRIDE_ROW)
        operations: list[Operation] = [("create", log_row(entry))]
        if override is not None:
            operations.append(guarded(override_row(name, override), etag))
        elif etag is not None:
            operations.append(removal({"PartitionKey": name, "RowKey": OVERRIDE_ROW}, etag))
        await self._submit(name, operations)

    async def _submit(self, resource_name: str, operations: list[Operation]) -> None:
        try:
            await self._table.submit(operations)
        except RowConflict as error:
            # Who lost together must not come back together.
            pause_seconds = random.uniform(0, CONFLICT_PAUSE_SECONDS_MAX)  # noqa: S311
            await asyncio.sleep(pause_seconds)
            raise StateConflict(f"{resource_name}: changed since read") from error

    async def record(self, entry: LogEntry) -> None:
        await self._table.overwrite(log_row(entry))

    async def log(
        self, resource_name: str, limit: int = 50, since: datetime | None = None
    ) -> list[LogEntry]:
        end = LOG_END if since is None else log_key_start(since) + "~"
        rows = await self._table.range(resource_name, LOG_PREFIX, end, limit)
        return [log_entry(row) for row in newest_first(rows)]

    async def prune_log(self, resource_name: str, before: datetime) -> int:
        start = log_key_start(before) + "~"
        deleted = 0
        while rows := await self._table.range(resource_name, start, LOG_END, TRANSACTION_ROWS_MAX):
            await self._table.delete(rows)
            deleted += len(rows)
        return deleted

    async def close(self) -> None:
        await self._table.close()
