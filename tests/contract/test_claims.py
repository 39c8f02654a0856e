"""The contract of ClaimStore, tested on the in-memory adapter and on Azure Tables (Azurite)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from local.azurite import Azurite
from local.twins.datasets import MemoryClaims
from shared.settings.connections import StorageConnection
from shared.storage.tables import RowConflict, Table, key
from shared.trends.datasets.errors import ClaimTaken, ClaimUnreadable
from shared.trends.datasets.ports import ClaimStore
from shared.trends.datasets.processing import DatasetWork
from shared.trends.store.claims import TABLE_NAME, TAKES_MAX, TableClaims
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


async def test_a_finished_claim_is_read_as_finished(claims: ClaimStore, work: DatasetWork) -> None:
    mine = await claims.take(work, "m1")
    done = await claims.change(mine, "m1", done=True)
    assert (done.holder, done.taken_at, done.done_at) == ("m1", mine.taken_at, done.seen_at)
    assert await claims.take(work, "m2") == done


async def test_after_a_takeover_the_old_holder_can_no_longer_change_the_claim(
    claims: ClaimStore, work: DatasetWork
) -> None:
    old = await claims.take(work, "m1")
    new = await claims.change(old, "m2", done=False)
    assert (new.holder, new.taken_at, new.done_at) == ("m2", new.seen_at, None)
    with pytest.raises(ClaimTaken):
        await claims.change(old, "m1", done=True)
    await claims.change(new, "m2", done=True)


async def test_only_one_of_many_concurrent_messages_gets_the_claim(
    claims: ClaimStore, work: DatasetWork
) -> None:
    taken = await asyncio.gather(*[claims.take(work, f"m{n}") for n in range(8)])
    assert len({claim.holder for claim in taken}) == 1


async def test_each_turn_period_and_data_set_has_its_own_claim(
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


async def test_each_claim_is_read_with_the_stores_time(
    claims: ClaimStore, work: DatasetWork
) -> None:
    begun = datetime.now(UTC)
    await claims.take(work, "m1")
    seen = [(await claims.take(work, "m2")).seen_at for _ in range(2)]
    assert begun - timedelta(seconds=1) <= seen[0] <= seen[1] <= datetime.now(UTC)


class FlickeringTable(Table):
    """A table whose row exists whenever the store inserts it, and is gone when the store reads."""

    puts = 0

    async def put(self, row: dict[str, object], _version: str | None) -> str:
        self.puts += 1
        raise RowConflict(row["RowKey"])


async def test_a_row_that_keeps_appearing_and_disappearing_raises_an_error(
    azurite: Azurite, work: DatasetWork
) -> None:
    connection = StorageConnection("Storage", azurite.connection_string)
    claims = TableClaims(connection)
    await claims.close()
    claims._table = table = FlickeringTable(connection, TABLE_NAME)
    with pytest.raises(ClaimTaken, match="appeared and disappeared in each"):
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
        {"holder": "m1", "taken_at": ""},
        {"holder": 1, "taken_at": "2026-03-01T12:00:00Z"},
        {"holder": "m1", "taken_at": "2026-03-01T12:00:00"},
        {"holder": "m1", "taken_at": "9999-12-31T23:59:59+00:00"},
        {"holder": "m1", "taken_at": "2026-03-01T12:00:00Z", "done_at": "soon"},
    ],
)
async def test_an_unreadable_claim_raises_an_error_that_says_what_to_do(
    azurite: Azurite, work: DatasetWork, typed: dict[str, str]
) -> None:
    connection = StorageConnection("Storage", azurite.connection_string)
    table, claims = Table(connection, TABLE_NAME), TableClaims(connection)
    keys = {"PartitionKey": key(work.dataset), "RowKey": key(work.round_label)}
    await table.overwrite({**keys, **typed})
    message = (
        rf"row '{work.dataset}/.*' of table Claims cannot be read .* correct the row, or delete it"
    )
    with pytest.raises(ClaimUnreadable, match=message):
        await claims.take(work, "m2")
    await table.close()
    await claims.close()
