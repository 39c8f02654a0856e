"""The contract of OwnershipStore, tested on each implementation."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

import pytest

from shared.ingestion.errors import RowChanged
from shared.ingestion.model import OwnershipClaim
from shared.ingestion.store.owners import OwnershipStore
from tests.contract.conftest import Backend, now

A_MOMENT = timedelta(seconds=5)


async def test_no_partition_has_an_owner_at_first(owners: OwnershipStore) -> None:
    seen = await owners.owners()
    assert seen.rows == ()
    assert abs(seen.read_at - now()) < A_MOMENT


async def test_a_claim_is_read_with_the_stores_time(owners: OwnershipStore) -> None:
    for partition_id, owner, epoch in (("0", "a/ü", 1), ("1/#", "", 2**40)):
        mine = await owners.write(OwnershipClaim(partition_id, owner, epoch, None, "free"))
        assert (mine.partition_id, mine.owner, mine.epoch) == (partition_id, owner, epoch)
    seen = await owners.owners()
    rows = {row.partition_id: row for row in seen.rows}
    assert [(r.owner, r.epoch) for _, r in sorted(rows.items())] == [("a/ü", 1), ("", 2**40)]
    assert rows["1/#"].version == mine.version
    for row in (*seen.rows, mine):
        assert row.modified_at.utcoffset() == timedelta(0)
        assert abs(row.modified_at - seen.read_at) < A_MOMENT


async def test_a_renewal_updates_the_time_of_the_row(owners: OwnershipStore) -> None:
    first = await owners.write(OwnershipClaim("0", "a", 1, None, "free"))
    again = await owners.write(OwnershipClaim("0", "a", 1, first.version, "renewed"))
    assert again.version != first.version
    assert again.modified_at >= first.modified_at
    (row,) = (await owners.owners()).rows
    assert row.version == again.version


async def test_a_claim_based_on_an_older_version_is_lost(owners: OwnershipStore) -> None:
    first = await owners.write(OwnershipClaim("0", "a", 1, None, "free"))
    with pytest.raises(RowChanged):
        await owners.write(OwnershipClaim("0", "b", 1, None, "free"))
    stolen = await owners.write(OwnershipClaim("0", "b", 2, first.version, "stolen"))
    with pytest.raises(RowChanged):
        await owners.write(OwnershipClaim("0", "a", 1, first.version, "renewed"))
    (row,) = (await owners.owners()).rows
    assert (row.owner, row.epoch, row.version) == ("b", 2, stolen.version)


@pytest.mark.parametrize("exists", [False, True])
async def test_only_one_of_many_concurrent_claims_wins(
    owners: OwnershipStore, exists: bool
) -> None:
    version = None
    if exists:
        version = (await owners.write(OwnershipClaim("0", "z", 1, None, "free"))).version

    async def attempt(owner: str) -> bool:
        try:
            await owners.write(OwnershipClaim("0", owner, 2, version, "free"))
        except RowChanged:
            return False
        return True

    won = await asyncio.gather(*[attempt(owner) for owner in "abcdefgh"])
    assert sum(won) == 1
    (row,) = (await owners.owners()).rows
    assert row.owner == "abcdefgh"[won.index(True)]


async def test_each_hub_has_its_own_owners(backend: Backend) -> None:
    ours, theirs = backend.owners(), backend.owners()
    await ours.write(OwnershipClaim("0", "a", 1, None, "free"))
    assert (await theirs.owners()).rows == ()


async def test_processes_whose_names_differ_by_case_share_the_partitions(backend: Backend) -> None:
    hub = f"Hub-{uuid.uuid4().hex}"
    ours, theirs = backend.owners(hub), backend.owners(hub.upper())
    first = await ours.write(OwnershipClaim("0", "a", 1, None, "free"))
    with pytest.raises(RowChanged):
        await theirs.write(OwnershipClaim("0", "b", 1, None, "free"))
    await theirs.write(OwnershipClaim("0", "b", 2, first.version, "stolen"))
    (row,) = (await ours.owners()).rows
    assert (row.owner, row.epoch) == ("b", 2)


async def test_a_process_of_an_earlier_version_keeps_the_rows_that_it_reads(
    backend: Backend,
) -> None:
    """Earlier versions read and write only rows with the names exactly as in their settings."""
    hub = f"Hub-{uuid.uuid4().hex}"
    names = ("ns/ü", hub, "$Default")
    await backend.owners().write(OwnershipClaim("0", "old", 1, (names, None), "free"))
    present = backend.owners(hub.lower())
    (row,) = (await present.owners()).rows
    taken = await present.write(OwnershipClaim("0", "new", 2, row.version, "stolen"))
    assert (row.owner, taken.version[0]) == ("old", names)
