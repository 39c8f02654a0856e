"""What the sharing of partitions asks of the outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from shared.ingestion.model import (
    Event,
)
from shared.ingestion.ownership.load_balancing import Ownership, OwnershipClaim


class HubPartitions(Protocol):
    """The partitions that a hub has right now."""

    async def partition_ids(self) -> tuple[str, ...]:
        """Raises HubUnavailable."""
        ...


class PartitionReceiver(Protocol):
    """Delivers a partition's events to one reader, as long as nobody reads under a higher epoch."""

    async def receive(
        self,
        partition_id: str,
        after: int | None,
        epoch: int,
        deliver: Callable[[Sequence[Event]], Awaitable[None]],
    ) -> None:
        """Deliver batch after batch of what follows ``after`` (None: of all there is), the next
        one when the last one is done with; an empty one now and then while nothing comes.

        Never returns. Raises HubUnavailable, also where somebody else took the partition over,
        HubSilent where neither a batch nor an error comes, and whatever ``deliver`` raises.
        """
        ...


@dataclass(frozen=True, slots=True)
class OwnershipSnapshot:
    """All ownership rows as they were read; ``read_at`` is the store's clock."""

    rows: tuple[Ownership, ...]
    read_at: datetime


class OwnershipStore(Protocol):
    """Who owns which partition of one hub and consumer group, by compare-and-swap."""

    async def owners(self) -> OwnershipSnapshot:
        """All rows, in no order. Raises StoreUnavailable."""
        ...

    async def write(self, claim: OwnershipClaim) -> Ownership:
        """Write the row as it is claimed, at the store's time; answers the new row.

        Raises ClaimLost where the row is not of the expected version, StoreUnavailable. After
        either of them the claim may stand, where a reply was lost: ``applied`` tells by the row.
        """
        ...
