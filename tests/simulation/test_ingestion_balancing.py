"""Simulates processors that race, crash and sleep: the shares end up even, with one owner per
epoch.

In addition, processors release partitions, ownership rows are deleted, and the store's clock is set
back.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from local.twins.ingestion import MemoryOwnershipStore
from shared.ingestion.errors import RowChanged
from shared.ingestion.model import Ownership, OwnershipClaim
from shared.ingestion.ownership.processor import Balancer
from shared.ingestion.store.owners import OwnershipSnapshot
from tests.builders import NOW
from tests.simulation.ingestion_fleet import LANES_MAX, interleaved
from tests.simulation.scheduler import Crash, Outage, Scheduler, pause
from tests.simulation.seeds import seeds

CYCLE_SECONDS = 5
BACK_SECONDS = 600


class Store(MemoryOwnershipStore):
    """The in-memory adapter with a pause before and after each call. It remembers every write."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda: world.store_now)
        self.written: list[Ownership] = []
        self.refused: set[tuple[str, str]] = set()
        """The partitions and owners whose last write was refused."""
        self.in_flight: Counter[str] = Counter()
        self.committed: dict[str, int] = {}
        """The epoch of the last commit, for each partition whose row was deleted."""

    async def owners(self) -> OwnershipSnapshot:
        await pause()
        seen = await super().owners()
        await pause()
        return seen

    async def write(self, claim: OwnershipClaim) -> Ownership:
        self.in_flight[claim.partition_id] += 1
        try:
            await pause()
            row = await self._apply(claim)
            await pause()
        finally:
            self.in_flight[claim.partition_id] -= 1
        return row

    async def _apply(self, claim: OwnershipClaim) -> Ownership:
        at = claim.partition_id, claim.owner
        self.refused.discard(at)
        try:
            row = await super().write(claim)
        except RowChanged:
            self.refused.add(at)
            raise
        self.written.append(row)
        return row

    def lose(self, partition_id: str) -> bool:
        """A person deletes a row while no processor is writing it."""
        if self.in_flight[partition_id] or partition_id not in self.by_partition:
            return False
        self.committed[partition_id] = self.delete(partition_id).epoch
        return True


@dataclass
class World:
    """Time, partitions and processors. A processor that crashes is replaced by one with a new
    name."""

    seed: int
    fault_rate: float
    partitions: int = 0
    started: int = 0
    alive: set[str] = field(default_factory=set)
    back_seconds: float = 0
    lost: int = 0
    given_up: int = 0

    def __post_init__(self) -> None:
        self.now = NOW
        self.scheduler = Scheduler(self.seed, self.fault_rate)
        self.random = self.scheduler.random
        self.store = Store(self)
        self.partitions = self.random.randint(1, 24)
        for _ in range(self.random.randint(1, 8)):
            self.start()

    def start(self) -> None:
        name = f"p{self.started}"
        self.started += 1
        self.alive.add(name)

        def ended(_result: object, error: BaseException | None) -> None:
            self.alive.discard(name)
            assert isinstance(error, Crash | Outage), (
                error
            )  # an outage before the processor's first step
            self.start()

        self.scheduler.start(self.processor(name), ended)

    async def processor(self, me: str) -> None:
        while True:
            with suppress(Outage):
                await self.cycle(me)
            until = self.now + timedelta(seconds=CYCLE_SECONDS * self.random.uniform(0.8, 1.2))
            if self.random.random() < self.scheduler.fault_rate:
                until += timedelta(seconds=60)  # the process sleeps until its lease has expired
            while self.now < until:
                await pause(sheltered=True)

    async def cycle(self, me: str) -> None:
        balancer = Balancer(
            me,
            self.store,
            self,
            self.committed_epoch,
            run_tasks=interleaved(self.random, LANES_MAX),
        )
        share = await balancer.cycle()
        kept = {lease.partition_id for lease in share.mine.values()}
        refused = {p for p, owner in self.store.refused if owner == me}
        assert not kept & refused, f"{me} keeps partitions that the store refused: {kept & refused}"
        if self.random.random() < self.scheduler.fault_rate:
            self.given_up += 1
            await balancer.give_up(share.mine.values())

    async def partition_ids(self) -> tuple[str, ...]:
        return tuple(str(n) for n in range(self.partitions))

    async def committed_epoch(self, partition_id: str) -> int:
        return self.store.committed.get(partition_id, 0)

    @property
    def store_now(self) -> datetime:
        return self.now - timedelta(seconds=self.back_seconds)

    def run(self, seconds: float) -> None:
        end = self.now + timedelta(seconds=seconds)
        while self.now < end:
            self.now += timedelta(seconds=self.random.random() / 2)
            if self.random.random() < self.scheduler.fault_rate:
                self.lost += self.store.lose(str(self.random.randrange(self.partitions)))
            for _ in range(2 * len(self.scheduler.tasks)):
                self.scheduler.step()

    def close(self) -> None:
        for task in self.scheduler.tasks:
            task.work.close()


def check_epochs(world: World) -> None:
    owners: dict[tuple[str, int], set[str]] = {}
    newest: Counter[str] = Counter()
    for row in world.store.written:
        owners.setdefault((row.partition_id, row.epoch), set()).add(row.owner)
        assert row.epoch >= newest[row.partition_id], "an epoch went back"
        newest[row.partition_id] = row.epoch
    for names in owners.values():
        names.discard("")  # released
    assert all(len(names) <= 1 for names in owners.values()), f"seed {world.seed}: {owners}"


def check_seed(seed: int) -> None:
    world = World(seed, fault_rate=0.03)
    world.run(60)
    world.partitions += world.random.choice([0, 0, 5])
    world.back_seconds = world.random.choice([0, BACK_SECONDS])
    world.run(30)
    world.scheduler.fault_rate = 0
    world.run(100 + CYCLE_SECONDS * 1.2 * world.partitions)
    check_epochs(world)
    written = len(world.store.written)
    shares = Counter(row.owner for row in world.store.by_partition.values())
    floor = world.partitions // len(world.alive)
    assert sum(shares.values()) == world.partitions
    assert set(shares) <= world.alive, f"seed {seed}"
    assert all(floor <= shares[name] <= floor + 1 for name in world.alive), f"seed {seed}: {shares}"
    world.run(20)
    owners = {row.partition_id: row.epoch for row in world.store.written[:written]}
    assert {r.partition_id: r.epoch for r in world.store.by_partition.values()} == owners, (
        "the shares changed again"
    )
    world.close()


@pytest.mark.parametrize("seed", seeds(100))
def test_shares_are_even_once_faults_stop_and_each_epoch_has_one_owner(seed: int) -> None:
    check_seed(seed)


def test_the_simulation_causes_crashes_takeovers_lost_rows_and_releases() -> None:
    worlds = [World(seed, fault_rate=0.03) for seed in range(10)]
    for world in worlds:
        world.run(60)
        world.close()
    assert sum(world.started - len(world.alive) for world in worlds) > 10
    assert max(row.epoch for world in worlds for row in world.store.written) > 2
    assert sum(world.lost for world in worlds) > 10
    assert sum(world.given_up for world in worlds) > 10
