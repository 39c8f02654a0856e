"""What every ClaimStore promises, asked of the memory twin and of Azure Tables (Azurite)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from shared.adapters.claims_memory import MemoryClaims
from shared.adapters.claims_table import TableClaims
from shared.adapters.table_keys import key
from shared.connections import StorageConnection
from shared.messaging.errors import ClaimTaken
from shared.messaging.ports import ClaimStore
from shared.messaging.processing import Work
from tests.builders import NOW, ago

LATER = NOW + timedelta(minutes=5)


@pytest.fixture(params=["memory", "tables"])
async def claims(request: pytest.FixtureRequest) -> AsyncIterator[ClaimStore]:
    if request.param == "memory":
        yield MemoryClaims()
        return
    string = request.getfixturevalue("azurite").connection_string
    store = TableClaims(StorageConnection("Storage", string))
    yield store
    await store.close()


@pytest.fixture
def work() -> Work:
    return Work(f"sales-{uuid.uuid4().hex[:8]}", "2026-03-01T02:00Z/PT2H", ago(7200), NOW)


async def test_the_first_message_gets_the_claim_and_the_second_one_sees_it(
    claims: ClaimStore, work: Work
) -> None:
    mine = await claims.take(work, "m1", NOW)
    assert (mine.holder, mine.taken_at, mine.done_at) == ("m1", NOW, None)
    assert await claims.take(work, "m2", LATER) == mine


async def test_what_is_done_is_seen_as_done(claims: ClaimStore, work: Work) -> None:
    mine = await claims.take(work, "m1", NOW)
    done = await claims.change(mine, "m1", LATER, done=True)
    assert (done.holder, done.taken_at, done.done_at) == ("m1", NOW, LATER)
    assert await claims.take(work, "m2", LATER) == done


async def test_a_claim_can_be_taken_over_and_then_is_lost_to_its_old_holder(
    claims: ClaimStore, work: Work
) -> None:
    old = await claims.take(work, "m1", NOW)
    new = await claims.change(old, "m2", LATER, done=False)
    assert (new.holder, new.taken_at) == ("m2", LATER)
    with pytest.raises(ClaimTaken):
        await claims.change(old, "m1", LATER, done=True)
    await claims.change(new, "m2", LATER, done=True)


async def test_of_many_at_once_one_gets_the_claim(claims: ClaimStore, work: Work) -> None:
    taken = await asyncio.gather(*[claims.take(work, f"m{n}", NOW) for n in range(8)])
    assert len({claim.holder for claim in taken}) == 1


async def test_other_periods_and_other_data_sets_are_other_claims(
    claims: ClaimStore, work: Work
) -> None:
    others = [
        work,
        Work(work.dataset, "2026-03-01", work.start, work.end),
        Work(f"{work.dataset}/ü#?", work.label, work.start, work.end),
    ]
    holders = [(await claims.take(each, f"m{n}", NOW)).holder for n, each in enumerate(others)]
    assert holders == ["m0", "m1", "m2"]


def test_keys_are_readable_and_distinct() -> None:
    assert key("2026-03-01T02:00Z/PT2H") == "2026-03-01T02:00Z=2FPT2H"
    assert key("a=2Fb") != key("a/b")
