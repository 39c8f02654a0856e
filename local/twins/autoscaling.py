"""In-memory adapters of the ports of autoscaling, for unit tests, simulation and replays.

They keep the same contract as the real adapters, without I/O.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import count
from typing import Any

from shared.autoscaling.azure_monitor.source import AzureMonitorMetric, PlatformMetrics, Together
from shared.autoscaling.deciding.decide import EntryKind, LogEntry, quarter_of
from shared.autoscaling.deciding.stretches import Stretch, extended
from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.errors import CapacityRefused, ReadFailed, StateConflict
from shared.autoscaling.plan_facts import PlanReading
from shared.autoscaling.ports import CapacityControl, Snapshot, Wrote, wrote_nothing
from shared.autoscaling.sources import IngestionBreaker, ServiceBusSource, Source, StorageQueue
from shared.autoscaling.state import (
    DESIRED_ROW,
    LEARNED_ROW,
    METRIC_PREFIX,
    OVERRIDE_ROW,
    PLAN_ROW,
    RECOMMENDATIONS_ROW,
    RULES_ROW,
    Override,
    ScalingState,
    changed_rows,
)
from shared.autoscaling.store.entries import LAST_ROW
from shared.values.measurements import CAPACITY_SANE_MAX, MetricValue

Clock = Callable[[], datetime]
LogKey = tuple[datetime, int, int, str]


class MemoryStateStore:
    """See StateStore. It keeps rows with versions, as a table does, and writes nothing if there is
    a conflict. As with ETags, no two writes have the same version. A row that does not exist has no
    version.
    """

    _new_versions = count(1)

    def __init__(self, clock: Clock, wrote: Wrote = wrote_nothing) -> None:
        self._clock, self._wrote = clock, wrote
        self._states: dict[str, ScalingState] = {}
        self._versions: dict[tuple[str, str], int] = {}
        self._log: dict[str, dict[LogKey, LogEntry]] = defaultdict(dict)
        self._decided: dict[str, LogEntry] = {}

    async def load(self, resource_name: str) -> Snapshot:
        state = self._states.get(resource_name, ScalingState())
        versions = {k: v for k, v in self._versions.items() if k[0] == resource_name}
        decided = self._decided.get(resource_name)
        return Snapshot(resource_name, state, self._clock(), versions, decided=decided)

    async def commit(
        self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry] = ()
    ) -> None:
        name = snapshot.resource_name
        rows = dict(changed_rows(snapshot.state, state))
        last = [LAST_ROW] if any(each.kind is EntryKind.DECISION for each in entries) else []
        written = [*rows, *last]
        self._check(snapshot, written, [each for each in entries if not each.requests_nothing])
        stored = self._states.get(name, ScalingState())
        self._states[name] = with_rows(stored, state, set(rows))
        for row in written:
            self._versions[name, row] = next(self._new_versions)
        for entry in entries:
            self._write(entry)
            if entry.kind is EntryKind.DECISION:
                self._decided[name] = entry
        self._wrote(entries, state)

    async def put_override(
        self, snapshot: Snapshot, override: Override | None, entry: LogEntry
    ) -> None:
        name = snapshot.resource_name
        existed = (name, OVERRIDE_ROW) in snapshot.version
        writes = override is not None or existed
        self._check(snapshot, [OVERRIDE_ROW] if writes else [], [entry])
        if writes:
            self.override(name, override)
        self._write(entry)
        self._wrote([entry], snapshot.state)

    async def record(self, entry: LogEntry) -> None:
        self._write(entry)
        self._wrote([entry], ScalingState())

    def _check(self, snapshot: Snapshot, rows: Iterable[str], entries: Sequence[LogEntry]) -> None:
        name = snapshot.resource_name
        keys = [(name, row) for row in rows]
        if any(self._versions.get(key) != snapshot.version.get(key) for key in keys):
            raise StateConflict(f"{name}: its rows changed since they were read")
        if any(_log_key(entry) in self._log[name] for entry in entries):
            raise StateConflict(f"{name}: the decision log already has this entry")

    def _write(self, entry: LogEntry) -> None:
        lines = self._log[entry.resource_name]
        lines.pop(_log_key(entry), None)  # the last one written is at the end
        lines[_log_key(entry)] = entry

    async def log(
        self,
        resource_name: str,
        limit: int = 50,
        since: datetime | None = None,
        *,
        before: datetime | None = None,
        changes_only: bool = False,
    ) -> list[LogEntry]:
        entries = list(self._log[resource_name].values())[::-1]
        kept = [e for e in entries if e.is_within(since, before)]
        if changes_only:
            kept = [e for e in kept if not e.requests_nothing]
        return sorted(kept, key=_newest_first)[:limit]

    async def course(
        self, resource_name: str, since: datetime, before: datetime
    ) -> tuple[list[Stretch], int]:
        quarters: dict[datetime, list[Stretch]] = {}
        for entry in self._log[resource_name].values():
            quarter = quarter_of(entry.time)
            if entry.requests_nothing and quarter_of(since) <= quarter <= quarter_of(before):
                quarters[quarter] = extended(quarters.get(quarter, []), entry)
        return [each for quarter in sorted(quarters) for each in quarters[quarter]], 0

    async def prune_log(self, resource_name: str, before: datetime) -> int:
        log, rows = self._log[resource_name], set()
        for key, entry in list(log.items()):
            start = quarter_of(entry.time) if entry.requests_nothing else entry.time
            if start < (quarter_of(before) if entry.requests_nothing else before):
                rows.add(start if entry.requests_nothing else key)
                del log[key]
        return len(rows)

    async def close(self) -> None: ...

    def override(self, resource_name: str, override: Override | None) -> None:
        """Set or remove the override, as an operator may do in the table by hand."""
        state = self._states.get(resource_name, ScalingState())
        self._states[resource_name] = replace(state, override=override)
        self._versions.pop((resource_name, OVERRIDE_ROW), None)
        if override is not None:
            self._versions[resource_name, OVERRIDE_ROW] = next(self._new_versions)


def with_rows(kept: ScalingState, new: ScalingState, keys: set[str]) -> ScalingState:
    """The state ``kept``, in which the rows named in ``keys`` are replaced by those of ``new``."""
    changed = {n: h for n, h in new.histories.items() if METRIC_PREFIX + n in keys}
    return replace(
        kept,
        histories={**kept.histories, **changed},
        desired=new.desired if DESIRED_ROW in keys else kept.desired,
        recommendations=new.recommendations
        if RECOMMENDATIONS_ROW in keys
        else kept.recommendations,
        learned=new.learned if LEARNED_ROW in keys else kept.learned,
        rules=new.rules if RULES_ROW in keys else kept.rules,
        plan=new.plan if PLAN_ROW in keys else kept.plan,
    )


def _log_key(entry: LogEntry) -> LogKey:
    """The identity of an entry."""
    rank = (entry.kind is EntryKind.DECISION) + entry.requests_nothing
    return entry.time, entry.epoch or 0, rank, entry.entry_id


def _newest_first(entry: LogEntry) -> tuple[float, int, bool]:
    decision = entry.kind is EntryKind.DECISION
    return -entry.time.timestamp(), -(entry.epoch or 0), decision


class MemoryQueueSender:
    """See QueueSender. ``texts`` lists all messages that were sent."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def send_texts(self, texts: Sequence[str]) -> None:
        self.texts += texts

    async def close(self) -> None: ...


class MemoryCapacityControl:
    """See CapacityControl. It keeps capacities by plan name; ``changes`` lists all changes made."""

    def __init__(
        self, clock: Clock, capacities: Mapping[str, int], maximum: int = CAPACITY_SANE_MAX
    ) -> None:
        self._clock = clock
        self._maximum = maximum
        self.capacities = dict(capacities)
        self.changes: list[tuple[str, int]] = []

    async def read(self, target: AppServicePlan) -> PlanReading:
        self._check(target)
        return PlanReading(self._clock(), float(self.capacities[target.name]))

    async def describe(self, target: AppServicePlan) -> MetricValue:
        read = await self.read(target)
        return MetricValue(read.time, read.value)

    async def change(
        self,
        target: AppServicePlan,
        capacity: int,
        read: PlanReading,  # noqa: ARG002  the port has it
    ) -> int | None:
        self._check(target)
        if not 1 <= capacity <= self._maximum:
            raise CapacityRefused(
                f"plan {target.name}: the capacity is {capacity}: must be 1 to {self._maximum}"
            )
        self.changes.append((target.name, capacity))
        self.capacities[target.name] = capacity
        return capacity

    async def close(self) -> None: ...

    def _check(self, target: AppServicePlan) -> None:
        if target.name not in self.capacities:
            raise CapacityRefused(f"plan {target.name} does not exist")


class MemoryReader:
    """See Services. It reads the values that were set for each source, and ``documents`` by their
    address. What has no value raises ReadFailed. ``platform`` stands for Azure Monitor; without it,
    there are no samples.
    """

    def __init__(
        self,
        clock: Clock,
        values: Mapping[Source, float],
        control: CapacityControl,
        platform: PlatformMetrics | None = None,
    ) -> None:
        self._clock = clock
        self.values = dict(values)
        self.documents: dict[str, Any] = {}
        self._control = control
        self._platform = Together(lambda: platform) if platform else None

    async def read(self, source: Source) -> MetricValue:
        """The value that was set for the source."""
        if source not in self.values:
            raise ReadFailed(f"{source} has no value")
        return MetricValue(self._clock(), self.values[source])

    async def message_count(self, source: ServiceBusSource) -> MetricValue:
        return await self.read(source)

    async def queue_length(self, source: StorageQueue) -> MetricValue:
        return await self.read(source)

    async def breaker(self) -> MetricValue:
        return await self.read(IngestionBreaker())

    async def capacity(self, plan: AppServicePlan) -> MetricValue:
        return await self._control.describe(plan)

    async def azure_monitor(self, source: AzureMonitorMetric) -> Sequence[MetricValue]:
        return await self._platform.read(source) if self._platform else ()

    async def get_json(self, url: str, _headers: Mapping[str, str]) -> tuple[Any, datetime | None]:
        if url not in self.documents:
            raise ReadFailed(f"no document was set for {url}")
        return self.documents[url], self._clock()

    def now(self) -> datetime:
        return self._clock()

    def advice(self) -> Sequence[str]:
        return ()

    async def close(self) -> None: ...
