"""Records in the table ``Claims`` which period (RowKey) of a data set (PartitionKey) was processed.
If an operator deletes a row, the next message for its period processes the period again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.settings.connections import StorageConnection
from shared.storage.tables import Table, key
from shared.trends.datasets.processing import DatasetWork
from shared.values.redaction import redacting

TABLE_NAME = "Claims"


@redacting
class TableClaims:
    """See Claims. Times are those of the storage account."""

    def __init__(self, connection: StorageConnection) -> None:
        self._table = Table(connection, TABLE_NAME)

    async def done(self, work: DatasetWork) -> str:
        row: Mapping[str, Any] = await self._table.get(*_keys(work)) or {}
        return f"{row['done_at']} for message {row.get('holder')}" if row.get("done_at") else ""

    async def finish(self, work: DatasetWork, message: str) -> None:
        partition_key, row_key = _keys(work)
        row = {
            "PartitionKey": partition_key,
            "RowKey": row_key,
            "start": work.start.isoformat(),
            "end": work.end.isoformat(),
            "holder": message,
            "done_at": self._table.now().isoformat(),
        }
        await self._table.overwrite(row)

    async def close(self) -> None:
        await self._table.close()


def _keys(work: DatasetWork) -> tuple[str, str]:
    return key(work.dataset), key(work.round_label)
