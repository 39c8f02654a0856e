"""Random calls on RunStore, in memory and in Azure Tables, give the same answers."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from datetime import date
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, invariant, multiple, rule

from local.azurite import Azurite
from local.twins.nightly import MemoryRunStore
from shared.settings.connections import StorageConnection
from shared.trends.nightly.errors import RunTaken
from shared.trends.nightly.model import Demand, Ledger, Run, RunState
from shared.trends.store.runs import TableRunStore
from tests.builders import NOW, ago
from tests.contract.faulty_network import FAULTS, MOSTLY_NOT, Fault, Network
from tests.contract.stateful import HOSTILE, Both, SideBySide, run_machine, texts

DAYS = st.sampled_from((*[date(2026, 2, 28)] * 4, date(2026, 3, 1)))
TIMES = st.sampled_from((NOW, ago(3600), ago(0.123456), ago(-86400)))
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
        "untold": st.booleans(),
        "notifying_until": st.none() | TIMES,
    },
)


def a_run(dataset: str, day: date, number: int, changed: dict[str, Any]) -> Run:
    run = Run(dataset, day, number, 1, "token", NOW, RunState.SUBMITTING, NOW, NOW)
    return replace(run, **changed)


def days(ledger: Ledger) -> Any:
    """The days of the ledger. Runs are compared without their versions, which differ by store."""
    return ledger.dataset, ledger.now, dict(ledger.days)


class RunsMachine(SideBySide):
    errors = conflicts = (RunTaken,)
    runs = Bundle("runs")

    def __init__(self, runner: asyncio.Runner, network: Network, real: TableRunStore) -> None:
        super().__init__(runner, network)
        self.memory, self.real = MemoryRunStore(lambda: network.now), real
        self.dataset = ""

    @initialize(name=st.sampled_from(HOSTILE))
    def named(self, name: str) -> None:
        self.dataset = f"{name}{uuid.uuid4().hex[:8]}"

    @rule(demand=demands, other=demands, fault=FAULTS, raced=MOSTLY_NOT)
    def ask(self, demand: Demand, other: Demand, fault: Fault, raced: bool) -> None:
        self.both(
            lambda: self.memory.ask(self.dataset, demand),
            lambda: self.real.ask(self.dataset, demand),
            fault=fault,
            knows_own=True,
            first=(
                lambda: self.memory.ask(self.dataset, other),
                lambda: self.real.ask(self.dataset, other),
            )
            if raced
            else None,
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
        run = a_run(self.dataset, day, number, changed)
        other = replace(run, token="other")
        answer = self.both(
            lambda: self.memory.insert(run),
            lambda: self.real.insert(run),
            fault=fault,
            knows_own=True,
            first=(lambda: self.memory.insert(other), lambda: self.real.insert(other))
            if raced
            else None,
        )
        return answer or multiple()

    @rule(target=runs, run=runs, changed=changes, fault=FAULTS, raced=MOSTLY_NOT)
    def replace(self, run: Both[Any], changed: dict[str, Any], fault: Fault, raced: bool) -> Any:
        def changed_first() -> tuple[Any, Any]:
            return (
                lambda: self.memory.replace(replace(run.memory, error="other")),
                lambda: self.real.replace(replace(run.real, error="other")),
            )

        answer = self.both(
            lambda: self.memory.replace(replace(run.memory, **changed)),
            lambda: self.real.replace(replace(run.real, **changed)),
            fault=fault,
            knows_own=True,
            first=changed_first() if raced else None,
        )
        return answer or multiple()

    @rule(day=DAYS, fault=FAULTS)
    def forget(self, day: date, fault: Fault) -> None:
        self.both(
            lambda: self.memory.forget(self.dataset, day),
            lambda: self.real.forget(self.dataset, day),
            fault=fault,
            knows_own=True,
        )

    @rule(target=runs)
    def latest(self) -> Any:
        """A run as another instance reads it, for later changes."""
        answer = self.both(
            lambda: self.memory.read(self.dataset), lambda: self.real.read(self.dataset), shown=days
        )
        assert answer is not None
        return multiple(
            *[
                Both(day.latest, answer.real.days[on].latest)
                for on, day in answer.memory.days.items()
                if day.latest
            ]
        )

    @rule(seconds=st.integers(1, 86400))
    def time_passes(self, seconds: int) -> None:
        self.later(seconds)

    @invariant()
    def both_have_stored_the_same(self) -> None:
        if self.dataset:
            self.both(
                lambda: self.memory.read(self.dataset),
                lambda: self.real.read(self.dataset),
                shown=days,
            )


def test_runs_in_tables_behave_like_those_in_memory(azurite: Azurite) -> None:
    network = Network()
    with asyncio.Runner() as runner, network.installed():
        real = TableRunStore(StorageConnection("Storage", azurite.connection_string))
        runner.run(real._table.create())
        try:
            run_machine(lambda: RunsMachine(runner, network, real), examples=8)
        finally:
            runner.run(real.close())
