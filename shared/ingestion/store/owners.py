"""The store of the owners of partitions, on any engine of rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from shared.ingestion.model import Ownership, OwnershipClaim, in_one_case
from shared.ingestion.store.rows import OWNER, OwnerRow, Place, Put, Row, RowEngine


@dataclass(frozen=True, slots=True)
class OwnershipSnapshot:
    """All ownership rows as they were read. ``read_at`` is the store's time."""

    rows: tuple[Ownership, ...]
    read_at: datetime


class OwnershipStore:
    """The ownership rows of one hub and consumer group. A version is the place of a row, and the
    row's version. Rows that an earlier version wrote in another case keep their place."""

    def __init__(self, rows: RowEngine, namespace: str, hub: str, consumer_group: str) -> None:
        self._rows = rows
        self._place = _in_one_case((namespace, hub, consumer_group))
        self.close = rows.close

    async def owners(self) -> OwnershipSnapshot:
        """All rows; several of a partition if earlier versions wrote names that differ by case."""
        stored = await self._rows.places(OWNER)
        same = {place for place in stored if _in_one_case(place) == self._place}
        pages = [(place, await self._rows.read(OWNER, place)) for place in {self._place, *same}]
        found = tuple(ownership(place, row) for place, page in pages for row in page.rows)
        return OwnershipSnapshot(found, pages[-1][1].read_at)

    async def write(self, claim: OwnershipClaim) -> Ownership:
        """Write the row as claimed, and return it with the store's time. Raises StoreUnavailable,
        and RowChanged, also if a repeated request wrote the claim, as the row then shows."""
        place, version = claim.expected_version or (self._place, None)
        row = OwnerRow(claim.partition_id, claim.owner, claim.epoch, claim.reason)
        new = await self._rows.write(place, [Put(OWNER, row, version)])
        assert new is not None
        return ownership(place, new)


def _in_one_case(names: Place) -> Place:
    return tuple(map(in_one_case, names))


def ownership(place: Place, row: Row[OwnerRow]) -> Ownership:
    owner = row.value
    version = (place, row.version)
    return Ownership(owner.partition_id, owner.owner, owner.epoch, row.written_at, version)
