"""Random calls on OwnershipStore and BreakerStore, in memory and in each real store, give the same
answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from local.twins.ingestion import MemoryBreakerStore, MemoryOwnershipStore
from shared.ingestion.breaker.failure_window import TALLIES_KEPT, Tally
from shared.ingestion.breaker.state import Breaker, BreakerMode, Probe
from shared.ingestion.errors import RowChanged, StoreUnavailable
from shared.ingestion.model import LONG_AGO, Ownership
from shared.ingestion.store.breakers import BreakerSnapshot
from shared.ingestion.store.owners import OwnershipSnapshot
from tests.builders import NOW
from tests.ingestion.conftest import Backend
from tests.storage.faulty_network import NO_FAULT, Fault, Network, faults
from tests.storage.stateful import (
    REAL_BACKENDS,
    Both,
    Look,
    Side,
    SideCall,
    StoreMachine,
    run_store_machine,
)

recent = st.integers(0, 3)

partitions = st.sampled_from(["0", "1", "10", 'ü%|=7C/\\#?"🚀'])
owners = st.sampled_from(["", "a/ü", "b", "x" * 200, "🚀" * 100])
epochs = st.sampled_from([0, 1, 2, 3, 2**33, 2**63 - 1])
reasons = st.sampled_from(["", "free", "ü\n🚀" * 100])

texts = st.sampled_from(["", "i1", 'too much "failed"\nü\t\0', "ü€🚀" * 60, "r" * 4000])
instances = st.sampled_from(["i1", "i/1", "ü|%=🚀", "x" * 200])
times = st.sampled_from([NOW, NOW + timedelta(microseconds=123457), LONG_AGO])
counts = st.sampled_from([0, 1, 2**33, 2**63 - 1])
buckets = st.sampled_from([0, 10, 20, 3590, 3600, 3610, 3620, 10**5, -10, -4000]).map(
    lambda seconds: NOW + timedelta(seconds=seconds)
)
breakers = st.builds(
    Breaker,
    st.sampled_from(BreakerMode),
    counts,
    times,
    texts,
    st.integers(0, 200),
    st.none() | times,
    st.none() | st.builds(Probe, texts, texts, times, st.integers(0, 10)),
    texts,
    counts,
    st.none() | times,
)
tallies = st.builds(
    Tally, buckets, instances, counts, counts, counts, st.sampled_from(["", "ValueError: ü\n🚀"])
)


class OwnersAndBreaker(StoreMachine):
    """The partitions of one hub and consumer group, and the breaker of two instances."""

    errors = (RowChanged, StoreUnavailable)
    unavailable = StoreUnavailable
    conflicts = (RowChanged,)

    def __init__(self, network: Network, backend: Callable[[AsyncExitStack], Backend]) -> None:
        self._backend = backend
        self.rows: dict[str, list[Both[Any]]] = {}
        self.seen: list[Both[BreakerSnapshot]] = []
        self.newest: datetime = LONG_AGO
        super().__init__(network)

    async def open(self, stack: AsyncExitStack) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        backend = self._backend(stack)
        if backend.kind != "tables":
            self.network.through(backend.sql)
        memory = MemoryOwnershipStore(self.clock)
        return (
            {"owners": memory, "breaker": MemoryBreakerStore(self.clock)},
            {"owners": backend.owners(), "breaker": backend.breaker()},
        )

    async def look(self, side: Side) -> Look:
        """The rows, and the tallies that must be kept. A store may keep older ones for a while."""
        read = (await side.owners.owners()).rows
        seen = await side.breaker.load()
        found = await side.breaker.tallies(self._kept_since())
        versions = {row.partition_id: row.version for row in read}
        plain = (_plain_rows(read), seen.breaker, _sorted(found))
        return Look(plain, {**versions, "the breaker": seen.version})

    # --- owners ---

    @rule(fault=faults())
    def read_owners(self, fault: Fault) -> None:
        read = self.step(lambda s: s.owners.owners(), lambda seen: _plain_rows(seen.rows), fault)
        if read is None:
            return
        assert self.is_now(read.real.read_at)
        memory, real = _by_partition(read.memory), _by_partition(read.real)
        for partition_id, row in memory.items():
            self._keep_owner(Both(row, real[partition_id]))
            ages = [
                s.read_at - r[partition_id].modified_at
                for s, r in ((read.memory, memory), (read.real, real))
            ]
            assert self.is_as_long(*ages)

    @rule(
        partition=partitions,
        back=recent,
        owner=owners,
        epoch=epochs,
        why=reasons,
        fault=faults(),
    )
    def claim(
        self, partition: str, back: int, owner: str, epoch: int, why: str, fault: Fault
    ) -> None:
        """Write a claim based on the current version or an older one. Its epoch may be lower."""
        version = self._version(partition, back)
        call = _writing(version, Ownership(partition, owner, epoch, None, why))
        answer = self.step(call, _plain, fault)
        if answer is not None:
            assert self.is_now(answer.real.modified_at)
            self._keep_owner(answer)

    @rule(partition=partitions, back=recent, first=owners, second=owners, epoch=epochs)
    def two_claim_a_partition_at_the_same_time(
        self, partition: str, back: int, first: str, second: str, epoch: int
    ) -> None:
        version = self._version(partition, back)
        ours = Ownership(partition, first, epoch, None, "race")
        theirs = Ownership(partition, second, epoch, None, "race")
        self.race(_writing(version, ours), _writing(version, theirs), _plain)

    # --- the breaker ---

    @initialize()
    def begin(self) -> None:
        self.seen.append(Both(*[BreakerSnapshot(Breaker(), NOW)] * 2))
        self.load_breaker(NO_FAULT)

    @rule(fault=faults())
    def load_breaker(self, fault: Fault) -> None:
        self._keep_breaker(self.step(lambda s: s.breaker.load(), _breaker, fault))

    @rule(back=recent, breaker=breakers, fault=faults())
    def replace_breaker(self, back: int, breaker: Breaker, fault: Fault) -> None:
        """Replace the state, based on its current version or an older one."""
        seen = self._recent(back)
        self._keep_breaker(self.step(_replacing(seen, breaker), _breaker, fault))

    @rule(back=recent, first=breakers, second=breakers)
    def two_replace_the_breaker_at_the_same_time(
        self, back: int, first: Breaker, second: Breaker
    ) -> None:
        seen = self._recent(back)
        self.race(_replacing(seen, first), _replacing(seen, second), _breaker)
        self.load_breaker(NO_FAULT)

    @rule(tally=tallies, fault=faults())
    def put_tally(self, tally: Tally, fault: Fault) -> None:
        self.newest = max(self.newest, tally.bucket_start)
        self.step(lambda s: s.breaker.put_tally(tally), fault=fault, repeatable=True)

    @rule(first=tallies, second=tallies)
    def two_instances_put_tallies_at_the_same_time(self, first: Tally, second: Tally) -> None:
        if first.instance != second.instance:
            self.newest = max(self.newest, first.bucket_start, second.bucket_start)
            self.race(lambda s: s.breaker.put_tally(first), lambda s: s.breaker.put_tally(second))

    @rule(bucket=buckets, later=st.sampled_from([0, 1, 999_999]), fault=faults())
    def read_tallies(self, bucket: datetime, later: int, fault: Fault) -> None:
        since = max(bucket + timedelta(microseconds=later), self._kept_since())
        self.step(lambda s: s.breaker.tallies(since), _sorted, fault)

    # --- helpers of the rules ---

    def _version(self, partition: str, back: int) -> Both[Any]:
        """A version of the partition's row; None if no row has been read yet."""
        rows = self.rows.get(partition, [])
        row = rows[-1 - back] if back < len(rows) else None
        return Both(None, None) if row is None else Both(row.memory.version, row.real.version)

    def _keep_owner(self, row: Both[Ownership]) -> None:
        rows = self.rows.setdefault(row.memory.partition_id, [])
        if not rows or rows[-1].memory.version != row.memory.version:
            rows.append(row)

    def _kept_since(self) -> datetime:
        return max(self.newest - TALLIES_KEPT, LONG_AGO)

    def _recent(self, back: int) -> Both[BreakerSnapshot]:
        return self.seen[-1 - min(back, len(self.seen) - 1)]

    def _keep_breaker(self, answer: Both[BreakerSnapshot] | None) -> None:
        if answer is not None:
            assert self.is_now(answer.real.read_at)
            self.seen.append(answer)


def _plain(row: Ownership) -> tuple[str, str, int]:
    return row.partition_id, row.owner, row.epoch


def _plain_rows(rows: tuple[Ownership, ...]) -> list[tuple[str, str, int]]:
    """The rows in a fixed order, because the port defines none."""
    return sorted(map(_plain, rows))


def _by_partition(seen: OwnershipSnapshot) -> dict[str, Ownership]:
    return {row.partition_id: row for row in seen.rows}


def _writing(version: Both[Any], claim: Ownership) -> SideCall:
    def write(side: Side) -> Any:
        current = version.of(side)
        return side.owners.write(
            Ownership(claim.partition_id, claim.owner, claim.epoch, current, claim.reason)
        )

    return write


def _breaker(seen: BreakerSnapshot) -> Breaker:
    return seen.breaker


def _sorted(found: Sequence[Tally]) -> list[Tally]:
    """The tallies in a fixed order, because the port defines none."""
    return sorted(found, key=lambda tally: (tally.bucket_start, tally.instance))


def _replacing(seen: Both[BreakerSnapshot], breaker: Breaker) -> SideCall:
    return lambda side: side.breaker.replace(seen.of(side), breaker)


@pytest.mark.timeout(600)  # shrinking a failure takes long
@pytest.mark.parametrize("kind", REAL_BACKENDS)
def test_owners_and_breakers_in_each_store_behave_like_those_in_memory_under_faults(
    kind: str, request: pytest.FixtureRequest
) -> None:
    run_store_machine(OwnersAndBreaker, kind, request, examples=10, steps=30)
