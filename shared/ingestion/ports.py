"""What the flows need from the outside, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shared.ingestion.balancing import Claim, Ownership


class OwnershipStore(Protocol):
    """Who owns which partition of one hub and consumer group, by compare-and-swap."""

    async def owners(self) -> Sequence[Ownership]:
        """All rows. Raises StoreUnavailable."""
        ...

    async def write(self, claim: Claim) -> Ownership:
        """Write the row as it is claimed, at the store's time; answers the new row.

        Raises ClaimLost where the row is not of the expected version, StoreUnavailable.
        """
        ...
