"""Clients that race, fail, sleep and come back over one checkpoint store: no zombie writes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from azure.eventhub.exceptions import OwnershipLostError

from shared.adapters.event_hubs.checkpoints import (
    FencedCheckpointStore,
    Group,
    PartitionRow,
    SeenRows,
)
from shared.adapters.memory.checkpoints import MemoryPartitionRows
from shared.ingestion.errors import StoreUnavailable
from tests.builders import NOW
from tests.simulation.seeds import seeds

NAMES = {
    "fully_qualified_namespace": "ns",
    "eventhub_name": "hub",
    "consumer_group": "$Default",
}
PARTITIONS = ("0", "1")
STEPS = 100
FAULT_RATE = 0.05


class Shared(MemoryPartitionRows):
    """The rows of all clients, whose clock moves with each look at it; every write is checked."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = NOW
        super().__init__(self._clock)
        self.seen: Counter[str] = Counter()

    def _clock(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now

    async def write_as(self, name: str, group: Group, row: PartitionRow) -> PartitionRow:
        before = self._rows.get((group, row.partition_id), PartitionRow(row.partition_id))
        written = await self.write(group, row)
        self._check(name, before, written)
        return written

    def _check(self, name: str, before: PartitionRow, after: PartitionRow) -> None:
        assert (after.sequence or -1) >= (before.sequence or -1), "a checkpoint went back"
        if after.sequence != before.sequence:
            assert (after.owner, after.epoch) == (before.owner, before.epoch)
            assert before.owner == name, f"{name} is a zombie"
            self.seen["checkpoints"] += 1
        assert after.epoch == before.epoch + (after.owner != before.owner)
        self.seen["steals"] += bool(before.owner) and after.owner != before.owner


@dataclass
class Rows:
    """As one client reaches them: each call takes a while, and may fail before or after."""

    name: str
    shared: Shared

    async def pause(self) -> None:
        for _ in range(self.shared.random.randint(0, 3)):
            await asyncio.sleep(0)
        if self.shared.random.random() < FAULT_RATE:
            self.shared.seen["faults"] += 1
            raise StoreUnavailable("no answer")

    async def rows(self, group: Group) -> SeenRows:
        await self.pause()
        seen = await self.shared.rows(group)
        await self.pause()
        return seen

    async def row(self, group: Group, partition_id: str) -> PartitionRow | None:
        await self.pause()
        return await self.shared.row(group, partition_id)

    async def write(self, group: Group, row: PartitionRow) -> PartitionRow:
        await self.pause()
        written = await self.shared.write_as(self.name, group, row)
        await self.pause()
        return written


async def client(name: str, rows: Shared) -> None:
    """Lists, claims what it fancies, sleeps, writes checkpoints of whatever it thinks it owns."""
    store, owned = FencedCheckpointStore(Rows(name, rows)), dict[str, dict[str, Any]]()
    for step in range(STEPS):
        with suppress(StoreUnavailable):
            if rows.random.random() < 0.3:
                owned = await claim(name, rows, store)
            for partition_id in list(owned):
                try:
                    position = {"sequence_number": rows.random.randint(0, 10 * step), "offset": "@"}
                    await store.update_checkpoint(
                        {**NAMES, "partition_id": partition_id, **position}
                    )
                except OwnershipLostError:
                    rows.seen["zombies"] += 1
                    owned.pop(partition_id)
        for _ in range(rows.random.choice([0, 0, 5, 40])):
            await asyncio.sleep(0)


async def claim(name: str, rows: Shared, store: FencedCheckpointStore) -> dict[str, dict[str, Any]]:
    listed = {each["partition_id"]: each for each in await store.list_ownership(**NAMES)}
    wanted = [
        {**listed.get(each, {**NAMES, "partition_id": each}), "owner_id": name}
        for each in PARTITIONS
        if rows.random.random() < 0.5
    ]
    return {each["partition_id"]: each for each in await store.claim_ownership(wanted)}


async def run(seed: int) -> Counter[str]:
    rows = Shared(seed)
    names = [f"c{number}" for number in range(3)]
    await asyncio.gather(*[client(name, rows) for name in names])
    return rows.seen


def check_seed(seed: int) -> None:
    asyncio.run(run(seed))


@pytest.mark.parametrize("seed", seeds(15))
def test_no_checkpoint_goes_back_and_none_is_a_zombies(seed: int) -> None:
    check_seed(seed)


def test_the_faults_do_strike() -> None:
    struck = sum([asyncio.run(run(seed)) for seed in range(3)], Counter[str]())
    assert min(struck[name] for name in ("faults", "steals", "checkpoints", "zombies")) > 10, struck
