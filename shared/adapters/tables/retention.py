"""Ages of what handlers kept, on Table Storage: rows ``mark|<microseconds>`` beside the others."""

from __future__ import annotations

from collections.abc import Sequence

from shared.adapters.errors import store_errors
from shared.adapters.tables.ingestion import TABLE_NAME
from shared.adapters.tables.ingestion_rows import (
    EFFECT,
    MARK,
    end_of,
    mark_of,
    mark_row,
    numbered,
    partition_key,
)
from shared.adapters.tables.table import Table
from shared.ingestion.model import Mark, Stream
from shared.settings.connections import StorageConnection
from shared.values.redaction import redacting


@redacting
class TableRetentionStore:
    """See RetentionStore."""

    def __init__(self, connection: StorageConnection) -> None:
        self._table = Table(connection, TABLE_NAME)

    async def marks(self, stream: Stream) -> Sequence[Mark]:
        with store_errors(stream.key):
            rows = await self._table.range(partition_key(stream), numbered(MARK, 0), end_of(MARK))
        return [mark_of(row) for row in rows]

    async def put_mark(self, stream: Stream, mark: Mark) -> None:
        with store_errors(stream.key):
            await self._table.overwrite(mark_row(stream, mark))

    async def remove_marks(self, stream: Stream, marks: Sequence[Mark]) -> None:
        with store_errors(stream.key):
            await self._table.delete([mark_row(stream, mark) for mark in marks])

    async def purge_effects(self, stream: Stream, up_to: int, limit: int) -> int:
        key, end = partition_key(stream), numbered(EFFECT, up_to + 1)
        with store_errors(stream.key):
            rows = await self._table.range(key, numbered(EFFECT, 0), end, limit)
            await self._table.delete(
                [{"PartitionKey": key, "RowKey": row["RowKey"]} for row in rows]
            )
        return len(rows)

    async def close(self) -> None:
        await self._table.close()
