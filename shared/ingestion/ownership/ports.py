"""What load balancing needs from the hub and the store."""

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
    """The partitions that a hub has at present."""

    async def partition_ids(self) -> tuple[str, ...]:
        """Raises HubUnavailable."""
        ...


class HubAccess(HubPartitions, Protocol):
    """Checks that a hub can be read."""

    async def check_group(self, consumer_group: str, partition_id: str) -> None:
        """Open a reader in the consumer group and close it, without disturbing other readers.

        Raises NotFound if the group does not exist, and HubUnavailable.
        """
        ...


class PartitionReceiver(Protocol):
    """Delivers a partition's events to one reader, until another reader opens the partition under a
    higher epoch.
    """

    async def receive(
        self,
        partition_id: str,
        after: int | None,
        epoch: int,
        deliver: Callable[[Sequence[Event]], Awaitable[None]],
    ) -> None:
        """Deliver the events after ``after`` (None: all events), batch by batch, each after the
        previous one is processed. While no event arrives, an empty batch is delivered every few
        seconds.

        Never returns. Raises HubUnavailable, also if another reader took the partition over;
        HubSilent if neither a batch nor an error arrives; and whatever ``deliver`` raises.
        """
        ...


@dataclass(frozen=True, slots=True)
class OwnershipSnapshot:
    """All ownership rows as they were read. ``read_at`` is the store's time."""

    rows: tuple[Ownership, ...]
    read_at: datetime


class OwnershipStore(Protocol):
    """The ownership rows of one hub and consumer group, whatever the case of their names. They are
    changed by conditional writes."""

    async def owners(self) -> OwnershipSnapshot:
        """All rows, in any order. A partition has several rows if earlier versions wrote them under
        names that differ by case. Raises StoreUnavailable."""
        ...

    async def write(self, claim: OwnershipClaim) -> Ownership:
        """Write the row as claimed, with the store's time, and return the new row.

        Raises ClaimLost if the row no longer has the expected version, and StoreUnavailable. In
        both cases, if a reply was lost, the claim may have been written; ``applied`` compares it
        with the row.
        """
        ...
