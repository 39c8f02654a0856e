"""Random calls on the scaling state in memory and in Azure Tables: the answers are the same."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, invariant, rule

from local.azurite import Azurite
from shared.adapters.memory.autoscaling import MemoryStateStore
from shared.adapters.tables.scaling import TableStateStore
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.declaring import Mode
from shared.autoscaling.errors import StateConflict
from shared.autoscaling.measurements import MEASURE_MAX, MetricValue, Window
from shared.autoscaling.policy import Recommendation
from shared.autoscaling.ports import Snapshot, StateStore
from shared.autoscaling.state import (
    ActionStatus,
    BusyIntervals,
    Desired,
    Learned,
    Override,
    RegressionSums,
    ScalingState,
)
from shared.settings.connections import StorageConnection
from tests.builders import NOW, ago
from tests.contract.faulty_network import FAULTS, MOSTLY_NOT, NO_FAULT, Fault, Network
from tests.contract.stateful import Both, SideBySide, run_machine, texts

TIMES = st.sampled_from((NOW, ago(1), ago(0.123456), ago(3600), ago(-60)))
MAYBE_TIMES = st.none() | TIMES
PLANS = st.sampled_from(("plan-1", "plan-1", "plan-1", "Plan-1~x._"))
METRICS = st.sampled_from(("backlog", "Backlog", "capacity", "~"))
numbers = st.one_of(st.sampled_from((0, 0.1, 5e-324, MEASURE_MAX)), st.floats(0, 1e9))
samples = st.builds(MetricValue, TIMES, numbers)
histories = st.lists(samples, max_size=4).map(lambda found: Window(tuple(found)))
counts = st.integers(0, 1000)
finite = st.floats(-1e9, 1e9)
pairs = st.lists(st.tuples(finite, st.floats(0.5, 9)), max_size=3).map(tuple)
lessons = st.builds(RegressionSums, finite, finite, finite, finite, pairs)
desired = st.builds(
    Desired,
    target=counts,
    epoch=counts,
    reason=texts,
    requested_at=TIMES,
    previous=counts,
    superseded=st.lists(counts, max_size=3).map(tuple),
    status=st.sampled_from(ActionStatus),
    sent_at=MAYBE_TIMES,
    changed_at=MAYBE_TIMES,
    changed_out=st.none() | st.booleans(),
    changed_by_hand=st.booleans(),
    retry_at=MAYBE_TIMES,
    attempts=counts,
    last_error=texts,
)
learned = st.builds(
    Learned,
    counts,
    lessons,
    lessons,
    counts,
    finite,
    st.builds(BusyIntervals, MAYBE_TIMES, recent=pairs),
)
changes = st.fixed_dictionaries(
    {},
    optional={
        "histories": st.dictionaries(METRICS, histories, max_size=3),
        "desired": desired,
        "wishes": histories,
        "learned": learned,
    },
)
overrides = st.builds(
    Override,
    mode=st.none() | st.sampled_from(Mode),
    reason=texts,
    expires_at=MAYBE_TIMES,
    freeze_scale_in=st.booleans(),
    floor=st.none() | counts,
    exact=st.none() | counts,
).filter(lambda said: replace(said, reason="", expires_at=None) != Override())
recommendations = st.builds(
    Recommendation,
    counts,
    texts,
    texts,
    st.dictionaries(texts, st.none() | st.booleans() | finite | texts, max_size=2),
)
lines = st.builds(
    LogEntry,
    resource_name=st.just(""),
    time=st.sampled_from((NOW, NOW, ago(0.123456))),
    kind=st.sampled_from((EntryKind.DECISION, EntryKind.DECISION, EntryKind.OVERRIDE)),
    entry_id=st.sampled_from(("a-1", "b-2", "c.3~")),
    reason=texts,
    current=st.none() | counts,
    desired=st.none() | counts,
    epoch=st.sampled_from((None, None, 0, 1)),
    applies=st.booleans(),
    limited_by=st.lists(texts, max_size=2).map(tuple),
    candidates=st.lists(recommendations, max_size=2).map(tuple),
    evidence=st.dictionaries(texts, st.none() | finite, max_size=2),
    counterfactual=texts,
    metric=st.sampled_from(("", "backlog")),
    value=st.none() | numbers,
    body=texts,
)


def key(line: LogEntry) -> Any:
    """What tells two lines apart."""
    return line.time, line.epoch or 0, line.kind is EntryKind.DECISION, line.entry_id


def shown_state(snapshot: Snapshot) -> Any:
    """All but the version, which is the store's own."""
    return snapshot.resource_name, snapshot.state, snapshot.read_at, snapshot.unreadable


def shown_log(found: Sequence[LogEntry], limit: int = 50) -> Any:
    """Lines that differ by their ids alone come in the order of writing, which the emulator's
    clock does not always tell: they are compared as a set. Of those that the limit cuts off the
    port does not say which ones: they are counted."""
    groups = [(group, [*lines]) for group, lines in groupby(found, lambda line: key(line)[:3])]
    whole = groups if len(found) < limit else groups[:-1]
    return [(group, sorted(lines, key=repr)) for group, lines in whole], len(found)


def with_changes(state: ScalingState, changed: dict[str, Any]) -> ScalingState:
    kept = {**state.histories, **changed.get("histories", {})}
    return replace(state, **{**changed, "histories": kept})


class StateMachine(SideBySide):
    errors = conflicts = (StateConflict,)
    snapshots = Bundle("snapshots")

    def __init__(self, runner: asyncio.Runner, network: Network, real: TableStateStore) -> None:
        super().__init__(runner, network)
        self.twin, self.real = MemoryStateStore(lambda: network.now), real
        self.prefix = uuid.uuid4().hex[:8]
        self.touched = ""

    def named(self, name: str, *, writes: bool = False) -> str:
        own = f"{self.prefix}-{name}"
        self.touched = own if writes else ""
        return own

    @initialize(target=snapshots)
    def empty(self) -> Any:
        return self.load("plan-1")

    @rule(target=snapshots, name=PLANS)
    def load(self, name: str) -> Any:
        name = self.named(name)
        return self.both(
            lambda: self.twin.load(name), lambda: self.real.load(name), shown=shown_state
        )

    @rule(
        seen=snapshots,
        changed=changes,
        entries=st.lists(lines, max_size=2, unique_by=key),
        fault=FAULTS,
        raced=MOSTLY_NOT,
        fresh=st.booleans(),
    )
    def commit(
        self,
        seen: Both[Any],
        changed: dict[str, Any],
        entries: list[LogEntry],
        fault: Fault,
        raced: bool,
        fresh: bool,
    ) -> None:
        seen, name = self.seen_by_writer(seen, fresh)
        told = [replace(entry, resource_name=name) for entry in entries]

        def call(store: StateStore, snapshot: Snapshot, told: Sequence[LogEntry]) -> Any:
            return lambda: store.commit(snapshot, with_changes(snapshot.state, changed), told)

        first = call(self.twin, seen.twin, ()), call(self.real, seen.real, ())
        self.both(
            call(self.twin, seen.twin, told),
            call(self.real, seen.real, told),
            fault=fault,
            first=first if raced else None,
        )

    def seen_by_writer(self, seen: Both[Any], fresh: bool) -> tuple[Both[Any], str]:
        """What a writer knows, of now or of long ago, and the resource."""
        name = seen.twin.resource_name
        if fresh:
            seen = Both(
                self.run(lambda: self.twin.load(name)), self.run(lambda: self.real.load(name))
            )
        self.touched = name
        return seen, name

    @rule(
        seen=snapshots,
        said=st.none() | overrides,
        line=lines,
        fault=FAULTS,
        raced=MOSTLY_NOT,
        fresh=st.booleans(),
    )
    def put_override(
        self,
        seen: Both[Any],
        said: Override | None,
        line: LogEntry,
        fault: Fault,
        raced: bool,
        fresh: bool,
    ) -> None:
        seen, name = self.seen_by_writer(seen, fresh)
        line = replace(line, resource_name=name)
        other = replace(line, entry_id="other")

        def call(store: StateStore, snapshot: Snapshot, entry: LogEntry) -> Any:
            return lambda: store.put_override(snapshot, said, entry)

        first = call(self.twin, seen.twin, other), call(self.real, seen.real, other)
        self.both(
            call(self.twin, seen.twin, line),
            call(self.real, seen.real, line),
            fault=fault,
            first=first if raced else None,
        )

    @rule(seen=snapshots, said=overrides, line=lines)
    def a_word_is_said_and_taken_back(
        self, seen: Both[Any], said: Override, line: LogEntry
    ) -> None:
        for number, word in enumerate((said, None)):
            named = replace(line, entry_id=f"{line.entry_id}{number}")
            self.put_override(seen, word, named, NO_FAULT, False, True)

    @rule(name=PLANS, line=lines, fault=FAULTS)
    def record(self, name: str, line: LogEntry, fault: Fault) -> None:
        line = replace(line, resource_name=self.named(name, writes=True))
        self.both(
            lambda: self.twin.record(line),
            lambda: self.real.record(line),
            fault=fault,
            knows_own=True,
        )

    @rule(name=PLANS, limit=st.sampled_from((1, 2, 50)), since=MAYBE_TIMES)
    def log(self, name: str, limit: int, since: datetime | None) -> None:
        name = self.named(name)
        self.both(
            lambda: self.twin.log(name, limit, since),
            lambda: self.real.log(name, limit, since),
            shown=lambda found: shown_log(found, limit),
        )

    @rule(name=PLANS, before=TIMES, fault=FAULTS)
    def prune_log(self, name: str, before: datetime, fault: Fault) -> None:
        name = self.named(name, writes=True)
        self.both(
            lambda: self.twin.prune_log(name, before),
            lambda: self.real.prune_log(name, before),
            fault=fault,
        )

    @rule(seconds=st.integers(1, 86400))
    def time_passes(self, seconds: int) -> None:
        self.later(seconds)

    @invariant()
    def both_remember_the_same(self) -> None:
        name, self.touched = self.touched, ""
        if name:
            self.both(lambda: self.twin.load(name), lambda: self.real.load(name), shown=shown_state)
            self.both(lambda: self.twin.log(name), lambda: self.real.log(name), shown=shown_log)


def test_state_in_tables_answers_as_that_in_memory(azurite: Azurite) -> None:
    network = Network()
    with asyncio.Runner() as runner, network.installed():
        real = TableStateStore(StorageConnection("Storage", azurite.connection_string))
        runner.run(real._table.create())
        try:
            run_machine(lambda: StateMachine(runner, network, real), examples=6)
        finally:
            runner.run(real.close())
