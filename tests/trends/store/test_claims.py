"""The contract of ClaimStore, tested on the in-memory adapter and on Azure Tables (Azurite)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, invariant, multiple, rule

from local.azurite import Azurite
from local.twins.datasets import MemoryClaims, RecordingRecompute
from shared.settings.connections import StorageConnection
from shared.storage.tables import RowConflict, Table, key
from shared.trends.datasets.claims import Claim
from shared.trends.datasets.errors import ClaimTaken, ClaimUnreadable
from shared.trends.datasets.flows import process_dataset
from shared.trends.datasets.flows.process_dataset import ClaimStore
from shared.trends.datasets.processing import DatasetWork
from shared.trends.store.claims import TABLE_NAME, TAKES_MAX, TableClaims, _keys
from shared.values.messages import Message, Order, Result
from tests.builders import NOW, ago
from tests.storage.faulty_network import FAULTS, MOSTLY_NOT, Fault, Network
from tests.storage.stateful import HOSTILE, Both
from tests.storage.table_machine import TableMachine, run_table_machine

LABEL = "2026-03-01T02:00Z/PT2H"


@pytest.fixture(params=["memory", "tables"])
async def claims(request: pytest.FixtureRequest) -> AsyncIterator[ClaimStore]:
    if request.param == "memory":
        yield MemoryClaims(lambda: datetime.now(UTC))
        return
    string = request.getfixturevalue("azurite").connection_string
    store = TableClaims(StorageConnection("Storage", string))
    yield store
    await store.close()


@pytest.fixture
def work() -> DatasetWork:
    return DatasetWork(f"sales-{uuid.uuid4().hex[:8]}", LABEL, ago(7200), NOW)


async def test_the_first_message_gets_the_claim_and_later_ones_see_it_by_the_stores_time(
    claims: ClaimStore, work: DatasetWork
) -> None:
    begun = datetime.now(UTC) - timedelta(seconds=1)
    mine = await claims.take(work, "m1")
    assert (mine.holder, mine.taken_at, mine.done_at) == ("m1", mine.seen_at, None)
    assert await claims.take(work, "m2") == mine
    done = await claims.change(mine, "m1", done=True)
    assert (done.holder, done.taken_at, done.done_at) == ("m1", mine.taken_at, done.seen_at)
    seen = await claims.take(work, "m2")
    assert seen == done
    assert begun <= mine.seen_at <= seen.seen_at <= datetime.now(UTC)


async def test_after_a_takeover_the_old_holder_can_no_longer_change_the_claim(
    claims: ClaimStore, work: DatasetWork
) -> None:
    old = await claims.take(work, "m1")
    new = await claims.change(old, "m2", done=False)
    assert (new.holder, new.taken_at, new.done_at) == ("m2", new.seen_at, None)
    with pytest.raises(ClaimTaken):
        await claims.change(old, "m1", done=True)
    await claims.change(new, "m2", done=True)


async def test_each_turn_period_and_data_set_has_its_own_claim(
    claims: ClaimStore, work: DatasetWork
) -> None:
    others = [replace(work, late=1), replace(work, label="2026-03-01")]
    others.append(replace(work, dataset=f"{work.dataset}/ü#?"))
    for number, each in enumerate([work, *others]):
        mine = await claims.take(each, f"m{number}")
        assert mine.holder == f"m{number}"
        await claims.change(mine, mine.holder, done=True)


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
    assert key(LABEL) == "2026-03-01T02:00Z=2FPT2H"
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
    told = rf"row '{work.dataset}/.*' of table Claims cannot be read .* correct the row, or delete"
    with pytest.raises(ClaimUnreadable, match=told):
        await claims.take(work, "m2")
    await table.close()
    await claims.close()


# --- random calls -----------------------------------------------------------------------------

SALES = DatasetWork("sales", "2026-03-01", ago(7200), NOW)
works = st.sampled_from(
    (
        *[SALES] * 3,
        *[replace(SALES, late=1), replace(SALES, late=2), replace(SALES, start=ago(3600))],
        *[DatasetWork(name, LABEL, ago(7200), NOW) for name in HOSTILE],
    )
)
holders = st.sampled_from(("m1", "m2", "m3"))


def shown(claim: Claim) -> Any:
    """The claim without its version, which differs between stores."""
    return claim.work, claim.holder, claim.taken_at, claim.seen_at, claim.done_at


class Sent:
    """A MessageSender that only records the messages."""

    def __init__(self) -> None:
        self.messages: list[tuple[str | None, datetime | None]] = []

    async def send(self, messages: Sequence[Message], _order: Order = Order.KEPT) -> Result:
        self.messages += [(m.message_id, m.scheduled_at) for m in messages]
        return Result(len(messages), 1, 0, 0, 0, ())


class ClaimsMachine(TableMachine):
    errors = conflicts = (ClaimTaken,)
    claims = Bundle("claims")

    def __init__(self, runner: asyncio.Runner, network: Network, real: TableClaims) -> None:
        super().__init__(runner, network, MemoryClaims(lambda: network.now), real)
        self.prefix = uuid.uuid4().hex[:8]
        self.touched: DatasetWork | None = None

    def of_this_example(self, work: DatasetWork) -> DatasetWork:
        self.touched = replace(work, dataset=f"{self.prefix}{work.dataset}")
        return self.touched

    @rule(target=claims, work=works, holder=holders, fault=FAULTS, raced=MOSTLY_NOT)
    def take(self, work: DatasetWork, holder: str, fault: Fault, raced: bool) -> Any:
        own = self.of_this_example(work)
        found = self.on_both(
            lambda store, _: store.take(own, holder),
            first=(lambda store, _: store.take(own, "other")) if raced else None,
            shown=shown,
            fault=fault,
        )
        return found or multiple()

    @rule(target=claims, claim=claims, holder=holders, done=st.booleans(), fault=FAULTS,
          raced=MOSTLY_NOT)  # fmt: skip
    def change(self, claim: Both[Any], holder: str, done: bool, fault: Fault, raced: bool) -> Any:
        self.touched = claim.memory.work
        found = self.on_both(
            lambda store, seen: store.change(seen, holder, done=done),
            claim,
            first=(lambda store, seen: store.change(seen, "other", done=False)) if raced else None,
            shown=shown,
            fault=fault,
        )
        return found or multiple()

    @rule(work=works)
    def an_operator_deletes_the_row(self, work: DatasetWork) -> None:
        own = self.of_this_example(work)
        self.memory.delete(own)
        keys = dict(zip(("PartitionKey", "RowKey"), _keys(own), strict=True))
        self.run(lambda: self.real._table.delete([keys]))

    @rule(work=works, holder=holders)
    def a_message_comes(self, work: DatasetWork, holder: str) -> None:
        """Run the whole flow, which processes, skips, takes over or defers the work."""
        own, lease = self.of_this_example(work), timedelta(minutes=30)

        async def process(claims: ClaimStore, _: object) -> Any:
            recompute, sent = RecordingRecompute(), Sent()
            done = await process_dataset.process_data_set(
                own, holder, claims, recompute, sent, lease
            )
            return done, recompute.calls, sent.messages

        self.on_both(process)

    @rule(seconds=st.sampled_from((1, 60, 1799, 1800, 86400)))
    def time_passes(self, seconds: int) -> None:
        self.later(seconds)

    @invariant()
    def both_have_stored_the_same(self) -> None:
        work, self.touched = self.touched, None
        if work is not None and self.memory.knows(work):
            self.on_both(lambda store, _: store.take(work, "looks"), shown=shown)


def test_claims_in_tables_behave_like_those_in_memory(azurite: Azurite) -> None:
    run_table_machine(ClaimsMachine, TableClaims, azurite)
