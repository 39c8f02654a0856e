"""Take and keep a fair share of the partitions: one cycle of one processor.

1. Read the hub's partitions and the owners' rows. 2. Let ``plan`` decide. 3. Renew, and claim at
most one. What was not confirmed by the store is not mine: a claim that fails is no claim.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from shared.ingestion.errors import ClaimLost, StoreUnavailable
from shared.ingestion.ownership.balancing import (
    BalancingTimes,
    Choice,
    Ownership,
    OwnershipClaim,
    OwnershipView,
    plan,
    release,
    rendezvous,
)
from shared.ingestion.ownership.ports import HubPartitions, OwnershipStore


@dataclass(frozen=True, slots=True)
class Share:
    """The partitions that are mine, as the store confirmed them, and why they are so many.

    ``read_at`` is the store's clock; ``claimed`` tells that one of them is new.
    """

    mine: Mapping[str, Ownership]
    read_at: datetime
    claimed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Balancer:
    """One processor's part in the balancing.

    ``me`` must be a name of its own for each process: two of one name would share an epoch.
    ``epoch_of`` tells under which epoch a partition was committed last; a claim goes above it,
    also where the ownership rows were lost.
    """

    me: str
    store: OwnershipStore
    hub: HubPartitions
    epoch_of: Callable[[str], Awaitable[int]]
    times: BalancingTimes = field(default_factory=BalancingTimes)
    choose: Choice = rendezvous

    async def cycle(self) -> Share:
        """Renew and claim. Raises StoreUnavailable and HubUnavailable where nothing is known."""
        ids = await self.hub.partition_ids()
        seen = await self.store.owners()
        found = plan(OwnershipView(ids, seen.rows), self.me, seen.read_at, self.times, self.choose)
        mine = {row.partition_id: row for row in found.keep}
        for renewal in found.renewals:
            await self._renew(renewal, mine)
        claimed = found.claim is not None and await self._claim(found.claim, mine)
        return Share(mine, seen.read_at, claimed, found.reason)

    async def give_up(self, leases: Iterable[Ownership]) -> None:
        """Free partitions at once. Where that fails they expire."""
        for row in leases:
            try:
                await self.store.write(release(row))
            except (ClaimLost, StoreUnavailable):
                continue

    async def _renew(self, renewal: OwnershipClaim, mine: dict[str, Ownership]) -> None:
        """A renewal whose reply is lost leaves the partition mine for as long as it was."""
        try:
            mine[renewal.partition_id] = await self.store.write(renewal)
        except ClaimLost:
            del mine[renewal.partition_id]
        except StoreUnavailable:
            return

    async def _claim(self, claim: OwnershipClaim, mine: dict[str, Ownership]) -> bool:
        """Should a claim whose reply is lost stand, the next cycle finds it among mine."""
        try:
            committed = await self.epoch_of(claim.partition_id)
            above = replace(claim, epoch=max(claim.epoch, committed + 1))
            mine[claim.partition_id] = await self.store.write(above)
        except (ClaimLost, StoreUnavailable):
            return False
        return True
