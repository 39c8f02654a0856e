"""Watches a proof from outside: the plan, the decision log and the conditions, as they come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta

from backtest.safety import Safety
from local.prove.checks import Sample
from local.prove.load import Load
from local.prove.places import Place
from shared.autoscaling.deciding.decide import Decision, EntryKind, LogEntry
from shared.autoscaling.operating.conditions import conditions
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import ScalingState
from shared.wiring.app import App

log = logging.getLogger(__name__)

ENTRIES_MAX, OVERLAP = 500, timedelta(seconds=30)


@dataclass(slots=True)
class Watch:
    """Looks until cancelled. A look that fails is counted, and the next one sees more."""

    app: App
    resource: Resource
    place: Place
    load: Load
    minute: Callable[[], float]
    safety: Safety
    samples: list[Sample] = field(default_factory=list)
    entries: dict[tuple[datetime, str], LogEntry] = field(default_factory=dict)
    conditions: dict[str, None] = field(default_factory=dict)
    failed: int = 0
    last_epoch: int = 0
    restarted_at: datetime | None = None
    resumed: float | None = None
    """The minute at which the app decided again after its restart."""

    async def run(self, every_seconds: float) -> None:
        while True:
            try:
                await self.look()
            except Exception as error:  # the proof must outlive what it provokes
                self.failed += 1
                log.warning("[look_failed] %s: %s", type(error).__name__, error)
            await asyncio.sleep(every_seconds)

    async def look(self) -> None:
        capacity, now = await self.place.capacity(), datetime.now(UTC)
        changed = bool(self.samples) and capacity != self.samples[-1].capacity
        self.load.capacity = capacity
        self.safety.minute(capacity, now, capacity_changed=changed)
        waiting = self.load.sent - len(self.load.received)
        self.samples.append(Sample(self.minute(), capacity, waiting, self.load.oldest_minutes))
        await self.read_log()

    async def read_log(self) -> None:
        store, name = self.app.scaling.store, self.resource.name
        snapshot = await store.load(name)
        if snapshot.state.desired is not None:
            self.last_epoch = snapshot.state.desired.epoch
        decided, since = snapshot.decided, self.restarted_at
        if decided and since and self.resumed is None and decided.time > since:
            self.resumed = self.minute()
        for each in conditions(self.resource, snapshot, 15):
            self.conditions.setdefault(each.what)
        newest = max((each.time for each in self.entries.values()), default=None)
        after = None if newest is None else newest - OVERLAP
        for entry in reversed(await store.log(name, ENTRIES_MAX, after)):
            self._entry(entry, snapshot.state)

    def _entry(self, entry: LogEntry, state: ScalingState) -> None:
        key = (entry.time, entry.entry_id)
        is_new = key not in self.entries
        self.entries[key] = entry
        if is_new and entry.kind is EntryKind.DECISION and entry.applies:
            self.safety.decision(_decision(entry), state)


def _decision(entry: LogEntry) -> Decision:
    """The decision of an entry of the log, which has all of its fields but one."""
    names = (each.name for each in fields(Decision) if each.name != "fallback")
    return Decision(**{name: getattr(entry, name) for name in names})
