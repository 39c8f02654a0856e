"""The store of the owners of partitions, on any engine of rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from shared.ingestion.model import Ownership, OwnershipClaim
from shared.ingestion.store.rows import OWNER, OwnerRow, Put, Row, RowEngine


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

    async def write(self, claim: OwnershipClaim) -> Ownership:
        """Write the row as claimed, and return it with the store's time. Raises StoreUnavailable,
        and RowChanged, also if a repeated request wrote the claim, as the row then shows."""
        row = OwnerRow(claim.partition_id, claim.owner, claim.epoch, claim.reason)
        new = await self._rows.write(self._place, [Put(OWNER, row, claim.expected_version)])
        assert new is not None
        return ownership(new)


def ownership(row: Row[OwnerRow]) -> Ownership:
    owner = row.value
    return Ownership(owner.partition_id, owner.owner, owner.epoch, row.written_at, row.version)
