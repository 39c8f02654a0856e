"""In-memory twin of the rows that a FencedCheckpointStore keeps. Same contract, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from shared.adapters.event_hubs.checkpoints import Group, PartitionRow, RowChanged, SeenRows


class MemoryPartitionRows:
    """Rows by group and partition, with versions."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._rows: dict[tuple[Group, str], PartitionRow] = {}

    async def rows(self, group: Group) -> SeenRows:
        found = [row for (of, _), row in self._rows.items() if of == group]
        return SeenRows(tuple(found), self._clock())

    async def row(self, group: Group, partition_id: str) -> PartitionRow | None:
        return self._rows.get((group, partition_id))

    async def write(self, group: Group, row: PartitionRow) -> PartitionRow:
        standing = self._rows.get((group, row.partition_id))
        if (standing.version if standing else None) != row.version:
            raise RowChanged(row.partition_id)
        written = replace(row, modified_at=self._clock(), version=(row.version or 0) + 1)
        self._rows[group, row.partition_id] = written
        return written
