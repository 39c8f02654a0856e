"""In-memory adapters of the ports of autoscaling, for unit tests, simulation and replays.

They keep the same contract as the real adapters, without I/O.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import count

from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.declaring import CapacityTarget, MetricSource, PlanCapacity
from shared.autoscaling.errors import CapacityRefused, ReadFailed, StateConflict
from shared.autoscaling.measurements import CAPACITY_SANE_MAX, MetricValue
from shared.autoscaling.ports import CapacityControl, Snapshot, Wrote, wrote_nothing
from shared.autoscaling.state import OVERRIDE_ROW, Override, ScalingState, changed_rows, with_rows

Clock = Callable[[], datetime]
LogKey = tuple[datetime, int, bool, str]


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

    async def load(self, resource_name: str) -> Snapshot:
        state = self._states.get(resource_name, ScalingState())
        versions = {k: v for k, v in self._versions.items() if k[0] == resource_name}
        return Snapshot(resource_name, state, self._clock(), versions)

    async def commit(
        self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry] = ()
    ) -> None:
        name = snapshot.resource_name
        rows = dict(changed_rows(snapshot.state, state))
        self._check(snapshot, rows, entries)
        stored = self._states.get(name, ScalingState())
        self._states[name] = with_rows(stored, state, set(rows))
        for row in rows:
            self._versions[name, row] = next(self._new_versions)
        for entry in entries:
            self._write(entry)
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
        """Set or remove the override, as an operator may do in the table by hand."""
        state = self._states.get(resource_name, ScalingState())
        self._states[resource_name] = replace(state, override=override)
        self._versions.pop((resource_name, OVERRIDE_ROW), None)
        if override is not None:
            self._versions[resource_name, OVERRIDE_ROW] = next(self._new_versions)


def _log_key(entry: LogEntry) -> LogKey:
    """The identity of an entry."""
    return entry.time, entry.epoch or 0, entry.kind is EntryKind.DECISION, entry.entry_id


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

    async def read(self, target: CapacityTarget) -> MetricValue:
        self._check(target)
        return MetricValue(self._clock(), float(self.capacities[target.name]))

    async def change(self, target: CapacityTarget, capacity: int) -> None:
        self._check(target)
        if not 1 <= capacity <= self._maximum:
            raise CapacityRefused(
                f"plan {target.name}: the capacity is {capacity}: must be 1 to {self._maximum}"
            )
        self.changes.append((target.name, capacity))
        self.capacities[target.name] = capacity

    async def close(self) -> None: ...

    def _check(self, target: CapacityTarget) -> None:
        if target.name not in self.capacities:
            raise CapacityRefused(f"plan {target.name} does not exist")


class MemoryReader:
    """Reads the values that were set for each source. A source without a value raises
    ReadFailed."""

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
