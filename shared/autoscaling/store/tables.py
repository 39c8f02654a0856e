"""Stores the state of resources and the decision log on Table Storage. The state is read as one
range of rows, and written in one transaction, which succeeds only if their ETags are unchanged."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from azure.core.exceptions import HttpResponseError

from shared.autoscaling.deciding.decide import LogEntry
from shared.autoscaling.deciding.stretches import Stretch
from shared.autoscaling.errors import StateConflict, StateUnreadable
from shared.autoscaling.ports import Snapshot, Wrote, wrote_nothing
from shared.autoscaling.state import OVERRIDE_ROW, Override, ScalingState, changed_rows
from shared.autoscaling.store.entries import (
    AFTER,
    COURSE,
    KEYS,
    LAST_ROW,
    LOG_PREFIX,
    PACKED_PREFIX,
    PackedPlace,
    course_of_rows,
    end_of,
    last_of,
    log_operations,
    log_row,
    newest_first,
    start_of_quarter,
)
from shared.autoscaling.store.rows import (
    STATE_START,
    ScalingRowUnreadable,
    override_row,
    state_of,
    state_row,
)
from shared.settings.connections import StorageConnection
from shared.storage.table_requests import Row, RowOperation, put_operation
from shared.storage.tables import TRANSACTION_ROWS_MAX, RowConflict, Table
from shared.values.redaction import redacting

TABLE_NAME = "Scaling"
CONFLICT_PAUSE_SECONDS_MAX = 0.1
ROW_FULL = ("TooManyProperties", "EntityTooLarge")
ENTRIES_OF_A_ROW = 60
"""The usual number of packed entries: a decision every 15 s for a quarter of an hour."""


@dataclass(frozen=True, slots=True)
class Version:
    """The ETag of each row that was read, and the place of the newest packed entry."""

    etags: Mapping[str, str]
    place: PackedPlace


@redacting
class TableStateStore:
    """See StateStore."""

    def __init__(self, connection: StorageConnection, wrote: Wrote = wrote_nothing) -> None:
        self._table = Table(connection, TABLE_NAME)
        self._wrote = wrote

    async def load(self, resource_name: str) -> Snapshot:
        rows = await self._table.range(resource_name, STATE_START)
        etags = {row["RowKey"]: row.metadata["etag"] for row in rows}
        try:
            state, skipped = state_of(rows)
        except ScalingRowUnreadable as error:
            raise StateUnreadable(f"{resource_name}: {error}", self._table.now()) from error
        decided, place, lost = last_of(rows)
        version, unreadable = Version(etags, place), (*skipped, *lost)
        return Snapshot(resource_name, state, self._table.now(), version, unreadable, decided)

    async def commit(
        self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry] = ()
    ) -> None:
        name, version = snapshot.resource_name, snapshot.version
        rows = [
            put_operation(state_row(name, key, value), version.etags.get(key))
            for key, value in changed_rows(snapshot.state, state)
        ]
        logged = partial(log_operations, entries, version.place, version.etags.get(LAST_ROW))
        if rows or entries:
            try:
                await self._submit(name, rows + logged())
            except HttpResponseError as error:
                if getattr(error, "error_code", "") not in ROW_FULL:
                    raise
                await self._submit(name, rows + logged(packs=False))
        self._wrote(entries, state)

    async def put_override(
        self, snapshot: Snapshot, override: Override | None, entry: LogEntry
    ) -> None:
        name, etag = snapshot.resource_name, snapshot.version.etags.get(OVERRIDE_ROW)
        operations: list[RowOperation] = [put_operation(log_row(entry), None)]
        if override is not None:
            operations.append(put_operation(override_row(name, override), etag))
        elif etag is not None:
            row = {"PartitionKey": name, "RowKey": OVERRIDE_ROW}
            operations.append(RowOperation("DELETE", row, etag))
        await self._submit(name, operations)
        self._wrote([entry], snapshot.state)

    async def _submit(self, resource_name: str, operations: list[RowOperation]) -> None:
        try:
            await self._table.submit(operations)
        except RowConflict as error:
            # One writer's commit can make the commits of several other writers fail. Without a
            # random wait, all of these writers would try again at the same moment.
            pause_seconds = random.uniform(0, CONFLICT_PAUSE_SECONDS_MAX)  # noqa: S311
            await asyncio.sleep(pause_seconds)
            raise StateConflict(
                f"{resource_name}: its rows in table {TABLE_NAME} changed since they were read"
            ) from error

    async def record(self, entry: LogEntry) -> None:
        await self._table.overwrite(log_row(entry))
        self._wrote([entry], ScalingState())

    async def log(
        self,
        resource_name: str,
        limit: int = 50,
        since: datetime | None = None,
        *,
        before: datetime | None = None,
        changes_only: bool = False,
    ) -> list[LogEntry]:
        start = LOG_PREFIX if before is None else end_of(LOG_PREFIX, before)
        own = self._table.range(resource_name, start, end_of(LOG_PREFIX, since), limit)
        if changes_only:
            entries = newest_first(await own, [])
            return [each for each in entries if not each.requests_nothing]
        rows = await asyncio.gather(own, self._packed(resource_name, limit, since, before))
        found = newest_first(*rows)
        return [each for each in found if each.is_within(since, before)][:limit]

    async def _packed(
        self, name: str, limit: int, since: datetime | None, before: datetime | None
    ) -> list[Row]:
        """The newest packed rows, with ``limit`` entries or more if there are as many."""
        start, end = PACKED_PREFIX, end_of(PACKED_PREFIX, since)
        found: list[Row] = []
        if before is not None:  # a part of this quarter of an hour may be later
            quarter, start = start_of_quarter(before), end_of(PACKED_PREFIX, before)
            found += await self._table.range(name, quarter, start)
        missing = limit
        while missing > 0:
            count = missing // ENTRIES_OF_A_ROW + 2
            rows = await self._table.range(name, start, end, count)
            found += rows
            if len(rows) < count:
                break
            missing -= sum(len(row) - len(KEYS) - (COURSE in row) for row in rows)
            start = rows[-1]["RowKey"] + AFTER
        return found

    async def course(
        self, resource_name: str, since: datetime, before: datetime
    ) -> tuple[list[Stretch], int]:
        start, end = start_of_quarter(before), end_of(PACKED_PREFIX, since)
        rows = await self._table.range(resource_name, start, end, select=(*KEYS, COURSE))
        return course_of_rows(rows)

    async def prune_log(self, resource_name: str, before: datetime) -> int:
        deleted = 0
        for prefix in (PACKED_PREFIX, LOG_PREFIX):
            start, found = end_of(prefix, before), TRANSACTION_ROWS_MAX
            while found == TRANSACTION_ROWS_MAX:
                keys = await self._table.keys(resource_name, start, end_of(prefix), found)
                rows = [{"PartitionKey": resource_name, "RowKey": key} for key in keys]
                await self._table.delete(rows)
                found = len(keys)
                deleted += found
        return deleted

    async def close(self) -> None:
        await self._table.close()
