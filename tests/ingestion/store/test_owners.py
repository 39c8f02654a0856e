"""The contract of OwnershipStore, tested on each engine."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from shared.ingestion.model import Ownership, OwnershipClaim
from shared.ingestion.store.owners import OwnershipStore
from tests.ingestion.conftest import Backend, wins


async def claim(
    owners: OwnershipStore, owner: str, epoch: int = 1, previous: Ownership | None = None
) -> Ownership:
    version = previous and previous.version
    return await owners.write(OwnershipClaim("0", owner, epoch, version, "why"))


async def only_owner(owners: OwnershipStore) -> Ownership:
    (row,) = (await owners.owners()).rows
    return row


@pytest.mark.parametrize("exists", [False, True])
async def test_only_one_of_many_claims_based_on_the_same_version_wins(
    owners: OwnershipStore, exists: bool
) -> None:
    before = await claim(owners, "z") if exists else None
    won = await asyncio.gather(*[wins(claim(owners, owner, 2, before)) for owner in "abcdefgh"])
    assert sum(won) == 1
    row = await only_owner(owners)
    assert (row.owner, row.epoch) == ("abcdefgh"[won.index(True)], 2)
    assert not await wins(claim(owners, "late", 1, before))
    assert (await only_owner(owners)).version == row.version


async def test_processes_whose_names_differ_by_case_share_the_partitions(backend: Backend) -> None:
    hub = f"Hub-{uuid.uuid4().hex}"
    ours, theirs = backend.owners(hub), backend.owners(hub.upper())
    first = await claim(ours, "a")
    assert not await wins(claim(theirs, "b"))
    await claim(theirs, "b", 2, first)
    row = await only_owner(ours)
    assert (row.owner, row.epoch) == ("b", 2)


async def test_a_process_of_an_earlier_version_keeps_the_rows_that_it_reads(
    backend: Backend,
) -> None:
    """Earlier versions read and write only rows with the names exactly as in their settings."""
    hub = f"Hub-{uuid.uuid4().hex}"
    names = ("ns/ü", hub, "$Default")
    await backend.owners().write(OwnershipClaim("0", "old", 1, (names, None), "free"))
    present = backend.owners(hub.lower())
    row = await only_owner(present)
    taken = await claim(present, "new", 2, row)
    assert (row.owner, taken.version[0]) == ("old", names)
