"""The contract of OwnershipStore, tested on each engine."""

from __future__ import annotations

import asyncio

import pytest

from shared.ingestion.model import Ownership
from shared.ingestion.store.owners import OwnershipStore
from tests.ingestion.conftest import wins


async def claim(
    owners: OwnershipStore, owner: str, epoch: int = 1, previous: Ownership | None = None
) -> Ownership:
    version = previous and previous.version
    return await owners.write(Ownership("0", owner, epoch, version, "why"))


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
