"""Shares the partitions of a hub among local hosts. It is not the app's own load balancing.

The app balances `python -m shared run` with `shared.ingestion.ownership`. If the host did the same,
tests would run one implementation on both sides, and would not see its mistakes. Only the rows of
the table ``Ownership`` are the same, so hosts and such processes can share a hub in a test.

The decision is the simplest that settles: take free partitions up to an equal share, then take one
partition at a time from the host that has at least two more.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from local.functions_host.event_hub_reading import PartitionReading
from local.functions_host.waiting import stops_within
from shared.ingestion.errors import HubUnavailable, RowChanged, StoreUnavailable
from shared.ingestion.model import Ownership
from shared.ingestion.store.owners import OwnershipStore

RENEWALS = 3
"""A lease is renewed after this fraction of its lifetime: one third."""
TAKING_SECONDS = 0.1
"""The pause after a host has taken a partition, because there may be more to take."""

Choose = Callable[[Sequence[str]], str]


def next_partition(
    partition_ids: Collection[str],
    owners: Mapping[str, str],
    me: str,
    choose: Choose = random.choice,
) -> str | None:
    """The partition that `me` takes next; None if it has its share. `owners` are the live ones."""
    counts = Counter({me: 0})
    counts.update(owners[each] for each in partition_ids if each in owners)
    share = -(-len(partition_ids) // len(counts))
    free = [each for each in partition_ids if each not in owners]
    if free:
        return choose(free) if counts[me] < share else None
    richest = max(counts, key=lambda owner: counts[owner])
    if counts[richest] - counts[me] < 2:
        return None
    return choose([each for each in partition_ids if owners[each] == richest])


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long a row holds a partition without renewal."""

    seconds: float

    @property
    def renewed_after(self) -> timedelta:
        return timedelta(seconds=self.seconds / RENEWALS)

    @property
    def length(self) -> timedelta:
        return timedelta(seconds=self.seconds)


class HostBalancer:
    """Renews the rows of one host and takes partitions."""

    def __init__(self, me: str, store: OwnershipStore, lifetime: Lifetime) -> None:
        self._me = me
        self._store = store
        self._lifetime = lifetime

    async def cycle(self, partition_ids: Collection[str]) -> tuple[dict[str, Ownership], bool]:
        """The partitions of this host, and whether it has just taken one.

        Raises StoreUnavailable.
        """
        seen = await self._store.owners()
        rows = {row.partition_id: row for row in seen.rows if row.partition_id in partition_ids}
        mine: dict[str, Ownership] = {}
        owners: dict[str, str] = {}
        for each, row in rows.items():
            age = seen.read_at - row.modified_at
            if row.owner == self._me:
                kept = row if age < self._lifetime.renewed_after else await self._renewed(row)
                if kept is not None:
                    mine[each] = kept
                owners[each] = self._me if kept is not None else "another"
            elif row.owner and age < self._lifetime.length:
                owners[each] = row.owner
        chosen = next_partition(partition_ids, owners, self._me)
        taken = None if chosen is None else await self._taken(chosen, rows.get(chosen))
        if taken is not None:
            mine[taken.partition_id] = taken
        return mine, taken is not None

    async def release(self, rows: Collection[Ownership]) -> None:
        """Free partitions at once. A row that cannot be written expires."""
        for row in rows:
            await self._written(row.partition_id, "", row.epoch, row)

    async def _renewed(self, row: Ownership) -> Ownership | None:
        return await self._written(row.partition_id, self._me, row.epoch, row)

    async def _taken(self, partition_id: str, row: Ownership | None) -> Ownership | None:
        epoch = 1 if row is None else row.epoch + 1
        return await self._written(partition_id, self._me, epoch, row)

    async def _written(
        self, partition_id: str, owner: str, epoch: int, row: Ownership | None
    ) -> Ownership | None:
        version = None if row is None else row.version
        claim = Ownership(partition_id, owner, epoch, version, "host")
        try:
            return await self._store.write(claim)
        except (RowChanged, StoreUnavailable):
            return None  # If it was written after all, the next cycle finds the row.


Start = Callable[[Ownership], PartitionReading]


class PartitionReader:
    """Reads the partitions that the balancer gives to this host."""

    def __init__(
        self,
        balancer: HostBalancer,
        partition_ids: Callable[[], Awaitable[Collection[str]]],
        start: Start,
        failed: Callable[[Exception], None],
        lifetime: Lifetime,
    ) -> None:
        self._balancer = balancer
        self._partition_ids = partition_ids
        self._start = start
        self._failed = failed
        self._lifetime = lifetime
        self._held: dict[str, tuple[Ownership, PartitionReading]] = {}
        self._confirmed_at = time.monotonic()

    async def run(self, stopping: asyncio.Event, cycle_seconds: float) -> None:
        """Read until the host stops, then release all partitions."""
        try:
            while not stopping.is_set():
                taken = await self._cycle()
                await stops_within(stopping, TAKING_SECONDS if taken else cycle_seconds)
        finally:
            rows = [row for row, _ in self._held.values()]
            await self._stop(list(self._held))
            await self._balancer.release(rows)

    async def _cycle(self) -> bool:
        began_at = time.monotonic()
        try:
            mine, taken = await self._balancer.cycle(await self._partition_ids())
        except (HubUnavailable, StoreUnavailable) as error:
            self._failed(error)
            if time.monotonic() - self._confirmed_at >= self._lifetime.seconds:
                await self._stop(list(self._held))
            return False
        self._confirmed_at = began_at
        await self._stop([p for p, (row, _) in self._held.items() if not _same(row, mine.get(p))])
        for partition_id, row in mine.items():
            held = self._held.get(partition_id)
            self._held[partition_id] = (row, held[1] if held else self._start(row))
        return taken

    async def _stop(self, partition_ids: Collection[str]) -> None:
        ending = [self._held.pop(each)[1] for each in partition_ids]
        for reading in ending:
            reading.cancel()
        for reading in ending:
            await reading.ended()


def _same(held: Ownership, row: Ownership | None) -> bool:
    return row is not None and row.epoch == held.epoch
