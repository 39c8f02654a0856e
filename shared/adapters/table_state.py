"""The state store on Azure Table Storage: one range read, one transaction guarded by ETags."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from azure.core import MatchConditions
from azure.core.exceptions import ResourceNotFoundError
from azure.data.tables import TableTransactionError, UpdateMode

from shared.adapters.state_changes import OVERRIDE_ROW, changed_rows
from shared.adapters.table_rows import (
    LOG_END,
    LOG_PREFIX,
    STATE_START,
    Row,
    log_entry,
    log_key_start,
    log_row,
    override_row,
    state_of,
    state_row,
)
from shared.adapters.table_service import table_service
from shared.adapters.transport import server_time
from shared.autoscaling.errors import StateConflict
from shared.autoscaling.model import LogEntry, Override, ScalingState
from shared.autoscaling.ports import Snapshot
from shared.connections import StorageConnection

TABLE_NAME = "Scaling"
TRANSACTION_ROWS_MAX = 100
PAGE_ROWS_MAX = 1000
CONFLICTS = (404, 409, 412)
"""Row gone, row there already, row changed: each means that the snapshot is out of date."""

CONFLICT_PAUSE_SECONDS_MAX = 0.1

Operation = tuple[str, Row] | tuple[str, Row, Mapping[str, Any]]


class TableStateStore:
    """See StateStore. ``Snapshot.version`` holds the ETag of each row that was read."""

    def __init__(self, connection: StorageConnection) -> None:
        self._service = table_service(connection)
        self._table = self._service.get_table_client(TABLE_NAME)

    async def load(self, resource_name: str) -> Snapshot:
        query = "PartitionKey eq @resource and RowKey ge @start"
        rows = await self._query(query, {"resource": resource_name, "start": STATE_START})
        etags = {row["RowKey"]: row.metadata["etag"] for row in rows}
        return Snapshot(resource_name, state_of(rows), server_time(), etags)

    async def commit(
        self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry] = ()
    ) -> None:
        operations: list[Operation] = [
            _guarded(state_row(snapshot.resource_name, key, value), snapshot.version.get(key))
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
            operations.append(_guarded(override_row(name, override), etag))
        elif etag is not None:
            row = {"PartitionKey": name, "RowKey": OVERRIDE_ROW}
            operations.append(("delete", row, _unchanged(etag)))
        await self._submit(name, operations)

    async def _submit(self, resource_name: str, operations: list[Operation]) -> None:
        try:
            await self._table.submit_transaction(operations)
        except TableTransactionError as error:
            if error.status_code in CONFLICTS:
                # Who lost together must not come back together.
                pause_seconds = random.uniform(0, CONFLICT_PAUSE_SECONDS_MAX)  # noqa: S311
                await asyncio.sleep(pause_seconds)
                raise StateConflict(f"{resource_name}: changed since read") from error
            raise

    async def record(self, entry: LogEntry) -> None:
        row = log_row(entry)
        try:
            await self._table.upsert_entity(row, mode=UpdateMode.REPLACE)
        except ResourceNotFoundError:
            await self._create_table()
            await self._table.upsert_entity(row, mode=UpdateMode.REPLACE)

    async def log(
        self, resource_name: str, limit: int = 50, since: datetime | None = None
    ) -> list[LogEntry]:
        query = "PartitionKey eq @resource and RowKey ge @start and RowKey lt @end"
        end = LOG_END if since is None else log_key_start(since) + "~"
        keys = {"resource": resource_name, "start": LOG_PREFIX, "end": end}
        return [log_entry(row) for row in await self._query(query, keys, limit)]

    async def prune_log(self, resource_name: str, before: datetime) -> int:
        query = "PartitionKey eq @resource and RowKey gt @start and RowKey lt @end"
        keys = {"resource": resource_name, "start": log_key_start(before) + "~", "end": LOG_END}
        deleted = 0
        while rows := await self._query(query, keys, TRANSACTION_ROWS_MAX):
            await self._table.submit_transaction([("delete", row) for row in rows])
            deleted += len(rows)
        return deleted

    async def close(self) -> None:
        await self._service.close()

    async def _query(
        self, query: str, parameters: Mapping[str, str], limit: int | None = None
    ) -> list[Any]:
        """All rows that match, or the first ``limit``; the table is made where it is missing."""
        try:
            return await self._first_rows(query, parameters, limit)
        except ResourceNotFoundError:
            await self._create_table()
            return await self._first_rows(query, parameters, limit)

    async def _first_rows(
        self, query: str, parameters: Mapping[str, str], limit: int | None
    ) -> list[Any]:
        pages = self._table.query_entities(
            query, parameters=dict(parameters), results_per_page=limit and min(limit, PAGE_ROWS_MAX)
        ).by_page()
        rows: list[Any] = []
        async for page in pages:
            rows += [row async for row in page]
            if limit is not None and len(rows) >= limit:
                break
        return rows[:limit]

    async def _create_table(self) -> None:
        await self._service.create_table_if_not_exists(TABLE_NAME)


def _guarded(row: Row, etag: str | None) -> Operation:
    if etag is None:
        return ("create", row)
    return ("update", row, {"mode": UpdateMode.REPLACE, **_unchanged(etag)})


def _unchanged(etag: str) -> Mapping[str, Any]:
    return {"etag": etag, "match_condition": MatchConditions.IfNotModified}
