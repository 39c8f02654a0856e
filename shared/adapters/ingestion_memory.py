"""In-memory twins of ingestion's ports: for unit tests and simulation. Same contract, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from shared.ingestion.balancing import Claim, Ownership
from shared.ingestion.errors import ClaimLost

Clock = Callable[[], datetime]


class MemoryOwnershipStore:
    """Rows with versions; a claim under an old version is refused."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows: dict[str, Ownership] = {}

    async def owners(self) -> Sequence[Ownership]:
        return tuple(self._rows.values())

    async def write(self, claim: Claim) -> Ownership:
        standing = self._rows.get(claim.partition_id)
        version = standing.version if standing else None
        if version != claim.expected_version:
            raise ClaimLost(f"partition {claim.partition_id}: {version} stands")
        row = Ownership(
            claim.partition_id, claim.owner, claim.epoch, self._clock(), (version or 0) + 1
        )
        self._rows[claim.partition_id] = row
        return row
