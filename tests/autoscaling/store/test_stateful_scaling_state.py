"""Random calls on StateStore, in memory and in Azure Tables, give the same answers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, invariant, rule

from local.azurite import Azurite
from local.twins.autoscaling import MemoryStateStore
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.declaring import Mode
from shared.autoscaling.errors import StateConflict
from shared.autoscaling.plan_facts import PlanFacts
from shared.autoscaling.policy import Recommendation
from shared.autoscaling.ports import Snapshot, StateStore
from shared.autoscaling.state import (
    ActionStatus,
    BacklogTrend,
    BusyIntervals,
    Desired,
    Learned,
    Override,
    RateClaim,
    RulesInForce,
    ScalingState,
    Stall,
)
from shared.autoscaling.store.tables import TableStateStore
from shared.values.measurements import MEASURE_MAX, MetricValue, Window
from tests.builders import NOW, ago
from tests.storage.faulty_network import FAULTS, MOSTLY_NOT, NO_FAULT, Fault, Network
from tests.storage.stateful import Both, texts
from tests.storage.table_machine import TableMachine, run_table_machine

TIMES = st.sampled_from((NOW, ago(1), ago(0.123456), ago(3600), ago(-60)))
MAYBE_TIMES = st.none() | TIMES
PLANS = st.sampled_from(("plan-1", "plan-1", "plan-1", "Plan-1~x._"))
METRICS = st.sampled_from(("backlog", "Backlog", "capacity", "~"))
numbers = st.one_of(st.sampled_from((0, 0.1, 5e-324, MEASURE_MAX)), st.floats(0, 1e9))
samples = st.builds(MetricValue, TIMES, numbers)
histories = st.lists(samples, max_size=4).map(lambda values: Window(tuple(values)))
counts = st.integers(0, 1000)
finite = st.floats(-1e9, 1e9)
pairs = st.lists(st.tuples(finite, st.floats(0.5, 9)), max_size=3).map(tuple)
trends = st.builds(BacklogTrend, MAYBE_TIMES, *[finite] * 9)
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
    changes=st.lists(counts, max_size=3).map(tuple),
)
learned = st.builds(
    Learned,
    counts,
    counts,
    finite,
    st.builds(BusyIntervals, MAYBE_TIMES, recent=pairs),
    trends,
    st.lists(st.builds(Stall, METRICS, st.just(NOW), MAYBE_TIMES), max_size=2).map(tuple),
    st.none() | st.builds(RateClaim, finite, finite, MAYBE_TIMES, MAYBE_TIMES, st.booleans()),
)
versions = st.sampled_from(("a", "b", "local-c"))
rules = st.builds(RulesInForce, versions, TIMES, st.just(("b",)), MAYBE_TIMES, versions)
changes = st.fixed_dictionaries(
    {},
    optional={
        "histories": st.dictionaries(METRICS, histories, max_size=3),
        "desired": desired,
        "recommendations": histories,
        "learned": learned,
        "rules": rules,
        "plan": st.builds(PlanFacts, texts, st.sampled_from((1, 2)), st.integers(2, 100), texts),
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
).filter(lambda override: replace(override, reason="", expires_at=None) != Override())
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
    """The identity of an entry."""
    return line.time, line.epoch or 0, line.kind is EntryKind.DECISION, line.entry_id


def shown_state(snapshot: Snapshot) -> Any:
    """The snapshot without its version, which differs between stores."""
    seen = replace(snapshot, version=None)
    return [getattr(seen, each.name) for each in fields(seen)]


def shown_log(entries: Sequence[LogEntry], limit: int = 50) -> Any:
    """The entries in a form that is equal on both sides.

    Entries that differ only in their ids are in the order of writing, but the emulator's clock is
    too coarse for that order, so they are compared as a set. If a limit cuts such a group, the port
    does not define which entries are left, so they are only counted.
    """
    groups = [(group, [*lines]) for group, lines in groupby(entries, lambda line: key(line)[:3])]
    whole = groups if len(entries) < limit else groups[:-1]
    return [(group, sorted(lines, key=repr)) for group, lines in whole], len(entries)


def with_changes(state: ScalingState, changed: dict[str, Any]) -> ScalingState:
    kept = {**state.histories, **changed.get("histories", {})}
    return replace(state, **{**changed, "histories": kept})


class StateMachine(TableMachine):
    errors = conflicts = (StateConflict,)
    snapshots = Bundle("snapshots")

    def __init__(self, runner: asyncio.Runner, network: Network, real: TableStateStore) -> None:
        super().__init__(runner, network, MemoryStateStore(lambda: network.now), real)
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
        return self.on_both(lambda store, _: store.load(name), shown=shown_state)

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
        own = [replace(entry, resource_name=name) for entry in entries]

        def call(store: StateStore, snapshot: Snapshot, own: Sequence[LogEntry] = own) -> Any:
            return store.commit(snapshot, with_changes(snapshot.state, changed), own)

        first = partial(call, own=()) if raced else None
        self.on_both(call, seen, first=first, fault=fault, knows_own=False)

    def seen_by_writer(self, seen: Both[Any], fresh: bool) -> tuple[Both[Any], str]:
        """The snapshot of a writer, current or outdated, and the name of its resource."""
        name = seen.memory.resource_name
        if fresh:
            loaded = [self.run(partial(each.load, name)) for each in (self.memory, self.real)]
            seen = Both(*loaded)
        self.touched = name
        return seen, name

    @rule(
        seen=snapshots,
        override=st.none() | overrides,
        line=lines,
        fault=FAULTS,
        raced=MOSTLY_NOT,
        fresh=st.booleans(),
    )
    def put_override(
        self,
        seen: Both[Any],
        override: Override | None,
        line: LogEntry,
        fault: Fault,
        raced: bool,
        fresh: bool,
    ) -> None:
        seen, name = self.seen_by_writer(seen, fresh)
        line = replace(line, resource_name=name, applies=True)
        other = replace(line, entry_id="other")
        self.on_both(
            lambda store, snapshot: store.put_override(snapshot, override, line),
            seen,
            first=(lambda store, old: store.put_override(old, override, other)) if raced else None,
            fault=fault,
            knows_own=False,
        )

    @rule(seen=snapshots, override=overrides, line=lines)
    def an_override_is_set_and_removed(
        self, seen: Both[Any], override: Override, line: LogEntry
    ) -> None:
        for number, change in enumerate((override, None)):
            named = replace(line, entry_id=f"{line.entry_id}{number}")
            self.put_override(seen, change, named, NO_FAULT, False, True)

    @rule(name=PLANS, line=lines, fault=FAULTS)
    def record(self, name: str, line: LogEntry, fault: Fault) -> None:
        line = replace(line, resource_name=self.named(name, writes=True), applies=True)
        self.on_both(lambda store, _: store.record(line), fault=fault)

    @rule(
        name=PLANS,
        limit=st.sampled_from((1, 2, 50)),
        since=MAYBE_TIMES,
        before=MAYBE_TIMES,
        changes_only=st.booleans(),
    )
    def log(
        self,
        name: str,
        limit: int,
        since: datetime | None,
        before: datetime | None,
        changes_only: bool,
    ) -> None:
        name, part = self.named(name), {"before": before, "changes_only": changes_only}
        self.on_both(
            lambda store, _: store.log(name, limit, since, **part),
            shown=lambda entries: shown_log(entries, limit),
        )

    @rule(name=PLANS, before=TIMES, fault=FAULTS)
    def prune_log(self, name: str, before: datetime, fault: Fault) -> None:
        name = self.named(name, writes=True)
        self.on_both(lambda store, _: store.prune_log(name, before), fault=fault, knows_own=False)

    @rule(seconds=st.integers(1, 86400))
    def time_passes(self, seconds: int) -> None:
        self.later(seconds)

    @invariant()
    def both_remember_the_same(self) -> None:
        name, self.touched = self.touched, ""
        if name:
            self.on_both(lambda store, _: store.load(name), shown=shown_state)
            self.on_both(lambda store, _: store.log(name), shown=shown_log)


def test_state_in_tables_behaves_like_that_in_memory(azurite: Azurite) -> None:
    run_table_machine(StateMachine, TableStateStore, azurite)
