"""In-memory twins of the ports: for unit tests, simulation and replays. Same contract, no I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from shared.adapters.state_changes import OVERRIDE_ROW, changed_rows, with_rows
from shared.autoscaling.errors import ReadFailed, StateConflict
from shared.autoscaling.model import (
    CapacityTarget,
    EntryKind,
    LogEntry,
    MetricSource,
    MetricValue,
    Override,
    PlanCapacity,
    ScalingState,
)
from shared.autoscaling.ports import CapacityControl, Snapshot

Clock = Callable[[], datetime]


class MemoryStateStore:
    """Rows with versions, as a table has them: a commit that comes too late is refused whole."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._states: dict[str, ScalingState] = {}
        self._versions: dict[tuple[str, str], int] = {}
        self._log: dict[str, dict[tuple[datetime, str], LogEntry]] = defaultdict(dict)

    async def load(self, resource_name: str) -> Snapshot:
        state = self._states.get(resource_name, ScalingState())
        versions = {k: v for k, v in self._versions.items() if k[0] == resource_name}
        return Snapshot(resource_name, state, self._clock(), versions)

    async def commit(
        self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry] = ()
    ) -> None:
        name = snapshot.resource_name
        rows = dict(changed_rows(snapshot.state, state))
        if any(
            self._versions.get((name, row)) != snapshot.version.get((name, row)) for row in rows
        ):
            raise StateConflict(f"{name}: changed since it was read")
        if any((e.time, e.entry_id) in self._log[name] for e in entries):
            raise StateConflict(f"{name}: this decision is logged already")
        kept = self._states.get(name, ScalingState())
        self._states[name] = with_rows(kept, state, set(rows))
        for row in rows:
            self._versions[name, row] = self._versions.get((name, row), 0) + 1
        for entry in entries:
            self._write(entry)

    async def put_override(
        self, snapshot: Snapshot, override: Override | None, entry: LogEntry
    ) -> None:
        name = snapshot.resource_name
        row = (name, OVERRIDE_ROW)
        if self._versions.get(row) != snapshot.version.get(row):
            raise StateConflict(f"{name}: overridden by somebody else since it was read")
        self.override(name, override)
        self._write(entry)

    async def record(self, entry: LogEntry) -> None:
        self._write(entry)

    def _write(self, entry: LogEntry) -> None:
        self._log[entry.resource_name][entry.time, entry.entry_id] = entry

    async def log(
        self, resource_name: str, limit: int = 50, since: datetime | None = None
    ) -> list[LogEntry]:
        entries = list(self._log[resource_name].values())[::-1]
        newest_first = sorted(
            (entry for entry in entries if since is None or entry.time >= since), key=_newest_first
        )
        return newest_first[:limit]

    async def prune_log(self, resource_name: str, before: datetime) -> int:
        old = [key for key in self._log[resource_name] if key[0] < before]
        for key in old:
            del self._log[resource_name][key]
        return len(old)

    async def close(self) -> None: ...

    def override(self, resource_name: str, override: Override | None) -> None:
        """What a person does to the table by hand."""
        state = self._states.get(resource_name, ScalingState())
        self._states[resource_name] = replace(state, override=override)
        row = (resource_name, OVERRIDE_ROW)
        self._versions[row] = self._versions.get(row, 0) + 1


def _newest_first(entry: LogEntry) -> tuple[float, int, bool]:
    decision = entry.kind is EntryKind.DECISION
    return -entry.time.timestamp(), -(entry.epoch or 0), decision


class MemoryCapacityControl:
    """Capacities in a dictionary; ``changes`` remembers every change that was ordered."""

    def __init__(self, clock: Clock, capacities: Mapping[str, int]) -> None:
        self._clock = clock
        self.capacities = dict(capacities)
        self.changes: list[tuple[str, int]] = []

    async def read(self, target: CapacityTarget) -> MetricValue:
        return MetricValue(self._clock(), float(self.capacities[target.name]))

    async def change(self, target: CapacityTarget, capacity: int) -> None:
        self.changes.append((target.name, capacity))
        self.capacities[target.name] = capacity

    async def close(self) -> None: ...


class MemoryReader:
    """Values by source; a source without a value fails to read."""

    def __init__(
        self, clock: Clock, values: Mapping[MetricSource, float], control: CapacityControl
    ) -> None:
        self._clock = clock
        self.values = dict(values)
        self._control = control

    async def read(self, source: MetricSource) -> MetricValue:
        if isinstance(source, PlanCapacity):
            return await self._control.read(source.plan)
        if source not in self.values:
            raise ReadFailed(f"{source} has no value")
        return MetricValue(self._clock(), self.values[source])

    async def close(self) -> None: ...
