"""The rows of a FencedCheckpointStore in the table ``Checkpoints``: PartitionKey is the hub and
consumer group, RowKey the partition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shared.adapters.azure.transport import server_time
from shared.adapters.errors import store_errors
from shared.adapters.event_hubs.checkpoints import Group, PartitionRow, RowChanged, SeenRows
from shared.adapters.tables.keys import joined, key
from shared.adapters.tables.table import RowConflict, Table
from shared.adapters.tables.values import Row, number_of, time_of, whole
from shared.settings.connections import StorageConnection
from shared.values.redaction import redacting

TABLE_NAME = "Checkpoints"


@redacting
class TablePartitionRows:
    """See PartitionRows. Versions are ETags, times the service's ``Timestamp``."""

    def __init__(self, connection: StorageConnection) -> None:
        self._table = Table(connection, TABLE_NAME)

    async def rows(self, group: Group) -> SeenRows:
        with store_errors(TABLE_NAME):
            found = await self._table.rows("PartitionKey eq @group", {"group": _key(group)})
        return SeenRows(tuple(_row_of(row) for row in found), server_time())

    async def row(self, group: Group, partition_id: str) -> PartitionRow | None:
        with store_errors(TABLE_NAME):
            found = await self._table.get(_key(group), key(partition_id))
        return None if found is None else _row_of(found)

    async def write(self, group: Group, row: PartitionRow) -> PartitionRow:
        with store_errors(TABLE_NAME):
            try:
                version = await self._table.put(_fields(group, row), row.version)
            except RowConflict as error:
                raise RowChanged(row.partition_id) from error
        return replace(row, modified_at=server_time(), version=version)

    async def close(self) -> None:
        await self._table.close()


def _key(group: Group) -> str:
    return joined(group.namespace, group.hub, group.consumer_group)


def _fields(group: Group, row: PartitionRow) -> Row:
    fields: Row = {
        "PartitionKey": _key(group),
        "RowKey": key(row.partition_id),
        "partition_id": row.partition_id,
        "owner": row.owner,
        "epoch": whole(row.epoch),
        "claims": whole(row.claims),
    }
    if row.sequence is not None:
        fields |= {"sequence": whole(row.sequence), "offset": row.offset}
    return fields


def _row_of(row: Any) -> PartitionRow:
    sequence = row.get("sequence")
    return PartitionRow(
        partition_id=row["partition_id"],
        owner=row["owner"],
        epoch=number_of(row["epoch"]),
        claims=number_of(row["claims"]),
        sequence=None if sequence is None else number_of(sequence),
        offset=row.get("offset"),
        modified_at=time_of(row.metadata["timestamp"]),
        version=row.metadata["etag"],
    )
