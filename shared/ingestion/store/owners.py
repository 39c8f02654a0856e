"""The store of the owners of partitions, on any engine of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from shared.ingestion.model import Ownership
from shared.ingestion.store.rows import OWNER, Put, Row, RowEngine


@dataclass(frozen=True, slots=True)
class OwnershipSnapshot:
    """All ownership rows as they were read. ``read_at`` is the store's time."""

    rows: tuple[Ownership, ...]
    read_at: datetime


class OwnershipStore:
    """The ownership rows of one hub and consumer group."""

    def __init__(self, rows: RowEngine, namespace: str, hub: str, consumer_group: str) -> None:
        self._rows = rows
        self._place = (namespace, hub, consumer_group)
        self.close = rows.close

    async def owners(self) -> OwnershipSnapshot:
        page = await self._rows.read(OWNER, self._place)
        return OwnershipSnapshot(tuple(map(ownership, page.rows)), page.read_at)

    async def write(self, claim: Ownership) -> Ownership:
        """Write the row as claimed, and return it with the store's time. Raises StoreUnavailable,
        and RowChanged, also if a repeated request wrote the claim, as the row then shows."""
        new = await self._rows.write(self._place, [Put(OWNER, claim, claim.version)])
        assert new is not None
        return ownership(new)


def ownership(row: Row[Ownership]) -> Ownership:
    return replace(row.value, version=row.version, modified_at=row.written_at)
