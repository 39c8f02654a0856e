"""Random calls on ClaimStore, in memory and in Azure Tables, give the same answers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, invariant, multiple, rule

from local.azurite import Azurite
from local.twins.datasets import MemoryClaims, RecordingRecompute
from shared.settings.connections import StorageConnection
from shared.trends.datasets.claims import Claim
from shared.trends.datasets.errors import ClaimTaken
from shared.trends.datasets.flows import process_dataset
from shared.trends.datasets.ports import ClaimStore
from shared.trends.datasets.processing import DatasetWork
from shared.trends.store.claims import TableClaims, _keys
from shared.values.messages import Message, Order, Result
from tests.builders import NOW, ago
from tests.contract.faulty_network import FAULTS, MOSTLY_NOT, NO_FAULT, Fault, Network
from tests.contract.stateful import HOSTILE, Both, SideBySide, run_machine

LEASE = timedelta(minutes=30)
SALES = DatasetWork("sales", "2026-03-01", ago(7200), NOW)
LABEL = "2026-03-01T02:00Z/PT2H"
works = st.sampled_from(
    (
        *[SALES] * 3,
        replace(SALES, late=1),
        replace(SALES, late=2),
        replace(SALES, start=ago(3600)),
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


class ClaimsMachine(SideBySide):
    errors = conflicts = (ClaimTaken,)
    claims = Bundle("claims")

    def __init__(self, runner: asyncio.Runner, network: Network, real: TableClaims) -> None:
        super().__init__(runner, network)
        self.memory, self.real = MemoryClaims(lambda: network.now), real
        self.prefix = uuid.uuid4().hex[:8]
        self.touched: DatasetWork | None = None

    def of_this_example(self, work: DatasetWork) -> DatasetWork:
        own = replace(work, dataset=f"{self.prefix}{work.dataset}")
        self.touched = own
        return own

    @rule(target=claims, work=works, holder=holders, fault=FAULTS, raced=MOSTLY_NOT)
    def take(self, work: DatasetWork, holder: str, fault: Fault, raced: bool) -> Any:
        work = self.of_this_example(work)
        found = self.both(
            lambda: self.memory.take(work, holder),
            lambda: self.real.take(work, holder),
            shown=shown,
            fault=fault,
            knows_own=True,
            first=self.taken_first(work) if raced else None,
        )
        return found or multiple()

    def taken_first(self, work: DatasetWork) -> tuple[Any, Any]:
        return lambda: self.memory.take(work, "other"), lambda: self.real.take(work, "other")

    @rule(
        target=claims,
        claim=claims,
        holder=holders,
        done=st.booleans(),
        fault=FAULTS,
        raced=MOSTLY_NOT,
    )
    def change(self, claim: Both[Any], holder: str, done: bool, fault: Fault, raced: bool) -> Any:
        self.touched = claim.memory.work

        def changed_first() -> tuple[Any, Any]:
            return (
                lambda: self.memory.change(claim.memory, "other", done=False),
                lambda: self.real.change(claim.real, "other", done=False),
            )

        found = self.both(
            lambda: self.memory.change(claim.memory, holder, done=done),
            lambda: self.real.change(claim.real, holder, done=done),
            shown=shown,
            fault=fault,
            knows_own=True,
            first=changed_first() if raced else None,
        )
        return found or multiple()

    @rule(work=works)
    def an_operator_deletes_the_row(self, work: DatasetWork) -> None:
        work = self.of_this_example(work)
        self.memory.delete(work)
        table = self.real._table._table
        self.run(lambda: table.delete_entity(*_keys(work)))

    @rule(work=works, holder=holders, fault=FAULTS)
    def a_message_comes(self, work: DatasetWork, holder: str, fault: Fault) -> None:
        """Run the whole flow, which processes, skips, takes over or defers the work."""
        work = self.of_this_example(work)

        async def process(claims: ClaimStore) -> Any:
            recompute, sent = RecordingRecompute(), Sent()
            done = await process_dataset.process_data_set(
                work, holder, claims, recompute, sent, LEASE
            )
            return done, recompute.calls, sent.messages

        if fault is NO_FAULT:  # a fault would end the flow midway; take and change cover faults
            self.both(lambda: process(self.memory), lambda: process(self.real))

    @rule(seconds=st.sampled_from((1, 60, 1799, 1800, 86400)))
    def time_passes(self, seconds: int) -> None:
        self.later(seconds)

    @invariant()
    def both_have_stored_the_same(self) -> None:
        work, self.touched = self.touched, None
        if work is not None and self.memory.knows(work):
            self.both(
                lambda: self.memory.take(work, "looks"),
                lambda: self.real.take(work, "looks"),
                shown=shown,
            )


def test_claims_in_tables_behave_like_those_in_memory(azurite: Azurite) -> None:
    network = Network()
    with asyncio.Runner() as runner, network.installed():
        real = TableClaims(StorageConnection("Storage", azurite.connection_string))
        runner.run(real._table.create())
        try:
            run_machine(lambda: ClaimsMachine(runner, network, real), examples=8)
        finally:
            runner.run(real.close())
