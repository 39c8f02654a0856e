"""The contract of RunStore, tested on the in-memory adapter and on Azure Tables (Azurite)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, invariant, multiple, rule

from local.azurite import Azurite
from local.twins.nightly import MemoryRunStore
from shared.settings.connections import StorageConnection
from shared.storage.tables import RowConflict, Table
from shared.trends.nightly import runs
from shared.trends.nightly.model import Demand, Ledger, Run, RunPolicy, RunState, RunStore, RunTaken
from shared.trends.store.runs import ASKS_MAX, TABLE_NAME, TableRunStore
from tests.builders import NOW as THEN
from tests.builders import ago
from tests.storage.faulty_network import FAULTS, MOSTLY_NOT, Fault, Network
from tests.storage.stateful import HOSTILE, Both, texts
from tests.storage.table_machine import TableMachine, run_table_machine

NOW = datetime.now(UTC)
DAY = date(2026, 2, 28)
OTHER = DAY - timedelta(days=1)
DEMAND = Demand(DAY, datetime(2026, 3, 1, 0, 10, 0, 123456, tzinfo=UTC), "nightly run")


@pytest.fixture(params=["memory", "tables"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[RunStore]:
    if request.param == "memory":
        yield MemoryRunStore(lambda: datetime.now(UTC))
        return
    string = request.getfixturevalue("azurite").connection_string
    opened = TableRunStore(StorageConnection("Storage", string))
    yield opened
    await opened.close()


@pytest.fixture
def run() -> Run:
    dataset = f"insights/{uuid.uuid4().hex[:8]}"
    return runs.started(dataset, DEMAND, None, "token", NOW, RunPolicy())


async def test_a_demand_is_only_replaced_by_one_for_newer_data(store: RunStore, run: Run) -> None:
    more = replace(DEMAND, data_until=DEMAND.data_until + timedelta(seconds=1), reason="late")
    assert await store.ask(run.dataset, DEMAND)
    assert not await store.ask(run.dataset, DEMAND)
    assert await store.ask(run.dataset, more)
    assert not await store.ask(run.dataset, DEMAND)
    assert (await store.read(run.dataset)).days[DAY].demand == more


async def test_all_fields_of_a_run_are_stored(store: RunStore, run: Run) -> None:
    inserted = await store.write(run)
    assert (await store.read(run.dataset)).days[DAY].latest == inserted == run
    full = replace(
        inserted,
        state=RunState.FAILED,
        submits=2,
        lease_until=None,
        submitted_at=NOW,
        handle="7",
        log_url="https://log",
        error="no memory\n  at line 1",
        warning="2 dates of files",
        retry_at=NOW + timedelta(minutes=10),
    )
    written = await store.write(full)
    assert (await store.read(run.dataset)).days[DAY].latest == written == full
    assert written.version != inserted.version


async def test_only_one_of_many_concurrent_inserts_or_changes_of_a_run_wins(
    store: RunStore, run: Run
) -> None:
    both = [store.write(replace(run, token=f"t{n}")) for n in range(6)]
    answers = await asyncio.gather(*both, return_exceptions=True)
    (won,) = [answer for answer in answers if isinstance(answer, Run)]
    assert sum(isinstance(answer, RunTaken) for answer in answers) == 5
    changes = [store.write(replace(won, submits=2)) for _ in range(6)]
    answers = await asyncio.gather(*changes, return_exceptions=True)
    assert [type(answer) for answer in answers].count(Run) == 1, "equal changes conflict too"
    with pytest.raises(RunTaken):
        await store.write(replace(won, submits=3))


async def test_the_latest_run_of_each_date_and_data_set_is_read(store: RunStore, run: Run) -> None:
    await store.ask(run.dataset, DEMAND)
    await store.write(run)
    second = await store.write(replace(run, number=2, token="second"))
    await store.write(replace(run, date=OTHER))
    other = replace(run, dataset=f"{run.dataset}#?")
    await store.write(other)
    ledger = await store.read(run.dataset)
    assert set(ledger.days) == {DAY, OTHER}
    assert (ledger.days[DAY].latest, ledger.days[DAY].demand) == (second, DEMAND)
    assert ledger.days[OTHER].demand is None
    assert ledger.open_runs == 2
    assert set((await store.read(other.dataset)).days) == {DAY}


async def test_runs_of_a_forgotten_date_can_no_longer_be_changed(store: RunStore, run: Run) -> None:
    await store.ask(run.dataset, DEMAND)
    inserted = await store.write(run)
    await store.write(replace(run, date=OTHER))
    await store.forget(run.dataset, DAY)
    assert set((await store.read(run.dataset)).days) == {OTHER}
    with pytest.raises(RunTaken):
        await store.write(inserted)


class AlwaysChanged(Table):
    """A table in which another instance always writes first."""

    puts = 0

    async def put(self, row: dict[str, object], _version: str | None) -> str:
        self.puts += 1
        raise RowConflict(row["RowKey"])


async def test_a_demand_that_other_instances_keep_changing_raises_an_error(
    azurite: Azurite, run: Run
) -> None:
    connection = StorageConnection("Storage", azurite.connection_string)
    store = TableRunStore(connection)
    await store.close()
    store._table = table = AlwaysChanged(connection, TABLE_NAME)
    with pytest.raises(RunTaken, match="changed during each of"):
        await store.ask(run.dataset, DEMAND)
    assert table.puts == ASKS_MAX
    await store.close()


# --- random calls -----------------------------------------------------------------------------

DAYS = st.sampled_from((*[DAY] * 4, date(2026, 3, 1)))
TIMES = st.sampled_from((THEN, ago(3600), ago(0.123456), ago(-86400)))
demands = st.builds(Demand, DAYS, TIMES, texts)
changes = st.fixed_dictionaries(
    {},
    optional={
        "state": st.sampled_from(RunState),
        "submits": st.integers(0, 9),
        "lease_until": st.none() | TIMES,
        "submitted_at": st.none() | TIMES,
        "retry_at": st.none() | TIMES,
        "handle": texts,
        "log_url": texts,
        "error": texts,
        "warning": texts,
    },
)


def days(ledger: Ledger) -> Any:
    """The days of the ledger. Runs are compared without their versions, which differ by store."""
    return ledger.dataset, ledger.now, dict(ledger.days)


class RunsMachine(TableMachine):
    errors = conflicts = (RunTaken,)
    runs = Bundle("runs")

    def __init__(self, runner: asyncio.Runner, network: Network, real: TableRunStore) -> None:
        super().__init__(runner, network, MemoryRunStore(lambda: network.now), real)
        self.dataset = ""

    @initialize(name=st.sampled_from(HOSTILE))
    def named(self, name: str) -> None:
        self.dataset = f"{name}{uuid.uuid4().hex[:8]}"

    @rule(demand=demands, other=demands, fault=FAULTS, raced=MOSTLY_NOT)
    def ask(self, demand: Demand, other: Demand, fault: Fault, raced: bool) -> None:
        self.on_both(
            lambda store, _: store.ask(self.dataset, demand),
            first=(lambda store, _: store.ask(self.dataset, other)) if raced else None,
            fault=fault,
        )

    @rule(
        target=runs,
        day=DAYS,
        number=st.sampled_from((1, 1, 1, 2, 3)),
        changed=changes,
        fault=FAULTS,
        raced=MOSTLY_NOT,
    )
    def insert(
        self, day: date, number: int, changed: dict[str, Any], fault: Fault, raced: bool
    ) -> Any:
        run = Run(self.dataset, day, number, 1, "token", THEN, RunState.SUBMITTING, THEN, THEN)
        run = replace(run, **changed)
        answer = self.on_both(
            lambda store, _: store.write(run),
            first=(lambda store, _: store.write(replace(run, token="other"))) if raced else None,
            fault=fault,
        )
        return answer or multiple()

    @rule(target=runs, run=runs, changed=changes, fault=FAULTS, raced=MOSTLY_NOT)
    def replace(self, run: Both[Any], changed: dict[str, Any], fault: Fault, raced: bool) -> Any:
        answer = self.on_both(
            lambda store, seen: store.write(replace(seen, **changed)),
            run,
            first=(lambda store, seen: store.write(replace(seen, error="x"))) if raced else None,
            fault=fault,
        )
        return answer or multiple()

    @rule(day=DAYS, fault=FAULTS)
    def forget(self, day: date, fault: Fault) -> None:
        self.on_both(lambda store, _: store.forget(self.dataset, day), fault=fault)

    @rule(target=runs)
    def latest(self) -> Any:
        """A run as another instance reads it, for later changes."""
        answer = self.on_both(lambda store, _: store.read(self.dataset), shown=days)
        assert answer is not None
        read = answer.memory.days.items()
        real = answer.real.days
        return multiple(*[Both(day.latest, real[on].latest) for on, day in read if day.latest])

    @rule(seconds=st.integers(1, 86400))
    def time_passes(self, seconds: int) -> None:
        self.later(seconds)

    @invariant()
    def both_have_stored_the_same(self) -> None:
        if self.dataset:
            self.on_both(lambda store, _: store.read(self.dataset), shown=days)


def test_runs_in_tables_behave_like_those_in_memory(azurite: Azurite) -> None:
    run_table_machine(RunsMachine, TableRunStore, azurite)
