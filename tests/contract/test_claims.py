"""What every ClaimStore promises, asked of the memory twin and of Azure Tables (Azurite)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from local.azurite import Azurite
from shared.adapters.memory.claims import MemoryClaims
from shared.adapters.tables.claims import TABLE_NAME, TAKES_MAX, TableClaims
from shared.adapters.tables.table import RowConflict, Table, key
from shared.datasets.errors import ClaimTaken, ClaimUnreadable
from shared.datasets.ports import ClaimStore
from shared.datasets.processing import DatasetWork
from shared.settings.connections import StorageConnection
from tests.builders import NOW, ago


@pytest.fixture(params=["memory", "tables"])
async def claims(request: pytest.FixtureRequest) -> AsyncIterator[ClaimStore]:
    if request.param == "memory":
        yield MemoryClaims(lambda: datetime.now(UTC))
        return
    string = request.getfixturevalue("azurite").connection_string
    store = TableClaims(StorageConnection("Storage", string))
    yield store
    await store.close()


@pytest.fixture(params=[0, 2], ids=["first turn", "late turn"])
def work(request: pytest.FixtureRequest) -> DatasetWork:
    name = f"sales-{uuid.uuid4().hex[:8]}"
    return DatasetWork(name, "2026-03-01T02:00Z/PT2H", ago(7200), NOW, request.param)


async def test_the_first_message_gets_the_claim_and_the_second_one_sees_it(
    claims: ClaimStore, work: DatasetWork
) -> None:
    mine = await claims.take(work, "m1")
    assert (mine.holder, mine.taken_at, mine.done_at) == ("m1", mine.seen_at, None)
    assert await claims.take(work, "m2") == mine


async def test_what_is_done_is_seen_as_done(claims: ClaimStore, work: DatasetWork) -> None:
    mine = await claims.take(work, "m1")
    done = await claims.change(mine, "m1", done=True)
    assert (done.holder, done.taken_at, done.done_at) == ("m1", mine.taken_at, done.seen_at)
    assert await claims.take(work, "m2") == done


async def test_a_claim_can_be_taken_over_and_then_is_lost_to_its_old_holder(
    claims: ClaimStore, work: DatasetWork
) -> None:
    old = await claims.take(work, "m1")
    new = await claims.change(old, "m2", done=False)
    assert (new.holder, new.taken_at, new.done_at) == ("m2", new.seen_at, None)
    with pytest.raises(ClaimTaken):
        await claims.change(old, "m1", done=True)
    await claims.change(new, "m2", done=True)


async def test_of_many_at_once_one_gets_the_claim(claims: ClaimStore, work: DatasetWork) -> None:
    taken = await asyncio.gather(*[claims.take(work, f"m{n}") for n in range(8)])
    assert len({claim.holder for claim in taken}) == 1


async def test_other_turns_periods_and_data_sets_are_other_claims(
    claims: ClaimStore, work: DatasetWork
) -> None:
    others = [
        work,
        replace(work, late=work.late + 1),
        replace(work, label="2026-03-01"),
        replace(work, dataset=f"{work.dataset}/ü#?"),
    ]
    for number, each in enumerate(others):
        mine = await claims.take(each, f"m{number}")
        assert mine.holder == f"m{number}"
        await claims.change(mine, mine.holder, done=True)


async def test_the_store_tells_the_time_of_each_answer(
    claims: ClaimStore, work: DatasetWork
) -> None:
    begun = datetime.now(UTC)
    await claims.take(work, "m1")
    seen = [(await claims.take(work, "m2")).seen_at for _ in range(2)]
    assert begun - timedelta(seconds=1) <= seen[0] <= seen[1] <= datetime.now(UTC)


class ComesAndGoes(Table):
    """A table whose row is there whenever it is to be inserted, and gone when it is to be read."""

    puts = 0

    async def put(self, row: dict[str, object], _version: str | None) -> str:
        self.puts += 1
        raise RowConflict(row["RowKey"])


async def test_a_row_that_comes_and_goes_ends_in_an_error(
    azurite: Azurite, work: DatasetWork
) -> None:
    connection = StorageConnection("Storage", azurite.connection_string)
    claims = TableClaims(connection)
    await claims.close()
    claims._table = table = ComesAndGoes(connection, TABLE_NAME)
    with pytest.raises(ClaimTaken, match="comes and goes"):
        await claims.take(work, "m1")
    assert table.puts == TAKES_MAX
    await claims.close()


def test_keys_are_readable_and_distinct() -> None:
    assert key("2026-03-01T02:00Z/PT2H") == "2026-03-01T02:00Z=2FPT2H"
    assert key("a=2Fb") != key("a/b")


@pytest.mark.parametrize(
    "typed",
    [
        {},
        {"holder": "m1", "taken_at": "2026-03-01T12:00:00"},
        {"holder": "m1", "taken_at": "9999-12-31T23:59:59+00:00"},
        {"holder": "m1", "taken_at": "2026-03-01T12:00:00Z", "done_at": "soon"},
    ],
)
async def test_a_claim_that_cannot_be_read_is_named_with_what_to_do(
    azurite: Azurite, work: DatasetWork, typed: dict[str, str]
) -> None:
    connection = StorageConnection("Storage", azurite.connection_string)
    table, claims = Table(connection, TABLE_NAME), TableClaims(connection)
    keys = {"PartitionKey": key(work.dataset), "RowKey": key(work.turn_label)}
    await table.overwrite({**keys, **typed})
    said = rf"row '{work.dataset}/.*' of table Claims cannot be read .* correct it, or delete it"
    with pytest.raises(ClaimUnreadable, match=said):
        await claims.take(work, "m2")
    await table.close()
    await claims.close()
