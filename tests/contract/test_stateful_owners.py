"""Random calls on OwnershipStore, in memory and in each real store, give the same answers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from local.twins.ingestion import MemoryOwnershipStore
from shared.ingestion.errors import RowChanged, StoreUnavailable
from shared.ingestion.model import Ownership, OwnershipClaim
from shared.ingestion.store.owners import OwnershipSnapshot
from tests.contract.conftest import Backend
from tests.contract.faulty_network import Fault, Network, faults
from tests.contract.stateful import (
    REAL_BACKENDS,
    Both,
    Look,
    Side,
    SideCall,
    StoreMachine,
    run_store_machine,
)

partitions = st.sampled_from(["0", "1", "10", 'ü%|=7C/\\#?"🚀'])
owners = st.sampled_from(["", "a/ü", "b", "x" * 200, "🚀" * 100])
epochs = st.sampled_from([0, 1, 2, 3, 2**33, 2**63 - 1])
reasons = st.sampled_from(["", "free", "ü\n🚀" * 100])
recent = st.integers(0, 3)


class Owners(StoreMachine):
    """The partitions of one hub and consumer group. Some processes have the hub's name in
    capitals."""

    errors = (RowChanged, StoreUnavailable)
    unavailable = StoreUnavailable
    conflicts = (RowChanged,)

    def __init__(self, network: Network, backend: Callable[[AsyncExitStack], Backend]) -> None:
        self._backend = backend
        self.rows: dict[str, list[Both[Any]]] = {}
        super().__init__(network)

    async def open(self, stack: AsyncExitStack) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        backend = self._backend(stack)
        if backend.kind != "tables":
            self.network.through(backend.sql)
        hub, memory = f"hub-{uuid.uuid4().hex[:8]}", MemoryOwnershipStore(self.clock)
        return (
            {"owners": memory, "in_capitals": memory},
            {"owners": backend.owners(hub), "in_capitals": backend.owners(hub.upper())},
        )

    async def look(self, side: Side) -> Look:
        read = (await side.owners.owners()).rows
        return Look(_plain_rows(read), {row.partition_id: row.version for row in read})

    @rule(fault=faults())
    def read(self, fault: Fault) -> None:
        read = self.step(lambda s: s.owners.owners(), lambda seen: _plain_rows(seen.rows), fault)
        if read is None:
            return
        assert self.is_now(read.real.read_at)
        memory, real = _by_partition(read.memory), _by_partition(read.real)
        for partition_id, row in memory.items():
            self._keep(Both(row, real[partition_id]))
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
        store=st.sampled_from(["owners", "in_capitals"]),
        fault=faults(),
    )
    def write(
        self,
        partition: str,
        back: int,
        owner: str,
        epoch: int,
        why: str,
        store: str,
        fault: Fault,
    ) -> None:
        """Write a claim based on the current version or an older one. Its epoch may be lower."""
        version = self._version(partition, back)
        call = _writing(version, OwnershipClaim(partition, owner, epoch, None, why), store)
        answer = self.step(call, _plain, fault)
        if answer is not None:
            assert self.is_now(answer.real.modified_at)
            self._keep(answer)

    @rule(partition=partitions, back=recent, first=owners, second=owners, epoch=epochs)
    def two_claim_a_partition_at_the_same_time(
        self, partition: str, back: int, first: str, second: str, epoch: int
    ) -> None:
        version = self._version(partition, back)
        ours = OwnershipClaim(partition, first, epoch, None, "race")
        theirs = OwnershipClaim(partition, second, epoch, None, "race")
        self.race(_writing(version, ours), _writing(version, theirs), _plain)

    def _version(self, partition: str, back: int) -> Both[Any]:
        """A version of the partition's row; None if no row has been read yet."""
        rows = self.rows.get(partition, [])
        row = rows[-1 - back] if back < len(rows) else None
        return Both(None, None) if row is None else Both(row.memory.version, row.real.version)

    def _keep(self, row: Both[Ownership]) -> None:
        rows = self.rows.setdefault(row.memory.partition_id, [])
        if not rows or rows[-1].memory.version != row.memory.version:
            rows.append(row)


def _plain(row: Ownership) -> tuple[str, str, int]:
    return row.partition_id, row.owner, row.epoch


def _plain_rows(rows: tuple[Ownership, ...]) -> list[tuple[str, str, int]]:
    """The rows in a fixed order, because the port defines none."""
    return sorted(map(_plain, rows))


def _by_partition(seen: OwnershipSnapshot) -> dict[str, Ownership]:
    return {row.partition_id: row for row in seen.rows}


def _writing(version: Both[Any], claim: OwnershipClaim, store: str = "owners") -> SideCall:
    def write(side: Side) -> Any:
        current = version.of(side)
        return getattr(side, store).write(
            OwnershipClaim(claim.partition_id, claim.owner, claim.epoch, current, claim.reason)
        )

    return write


@pytest.mark.timeout(600)  # shrinking a failure takes long
@pytest.mark.parametrize("kind", REAL_BACKENDS)
def test_each_ownership_store_behaves_like_the_in_memory_adapter_under_faults(
    kind: str, request: pytest.FixtureRequest
) -> None:
    run_store_machine(Owners, kind, request, examples=8, steps=30)
