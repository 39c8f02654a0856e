"""Replays a load that rises and falls, with sources that lag behind, and watches the capacity.

The collector, the state and the decisions are those of the app. The plan, the queue and Azure
Monitor are models: a fluid queue, whose instances each finish ``RATE`` items a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from local.twins.autoscaling import MemoryCapacityControl, MemoryReader
from local.twins.platform_metrics import MemoryPlatformMetrics
from shared.autoscaling import Resource
from shared.autoscaling.flows import metric_collector
from shared.autoscaling.sources import Source
from shared.autoscaling.state import ScalingState
from shared.autoscaling.transition import advance
from shared.values.measurements import Metric, MetricValue

START = datetime(2026, 3, 2, 20, 0, tzinfo=UTC)
"""A Monday evening, outside office hours."""
MINUTE = TICK = timedelta(minutes=1)
RATE = 30.0
LOW, HIGH = 6.0, 250.0
"""Items that arrive in a minute."""
QUIET, BUSY, AFTER = timedelta(hours=1), timedelta(hours=1), timedelta(hours=5)
START_UP_TIME = timedelta(minutes=2)
DELAYS_MINUTES = range(11)


@dataclass(slots=True)
class _Minute:
    """What was measured in one minute."""

    cpu: list[float] = field(default_factory=list)
    arrived: float = 0.0
    finished: float = 0.0
    backlog: list[float] = field(default_factory=list)


class _Replay:
    def __init__(self, resource: Resource, delay: timedelta) -> None:
        self.resource, self.delay = resource, delay
        self.now, self.backlog, self.state = START, 0.0, ScalingState()
        self.minutes: dict[datetime, _Minute] = {}
        self.control = MemoryCapacityControl(
            lambda: self.now, {resource.target.name: resource.limits.minimum}
        )
        self.platform = MemoryPlatformMetrics(lambda: self.now, delay + MINUTE)
        self.reader = MemoryReader(lambda: self.now, {}, self.control, self.platform)
        self.capacities: dict[datetime, int] = {}

    @property
    def capacity(self) -> int:
        return self.control.capacities[self.resource.target.name]

    async def run(self) -> None:
        while self.now < START + QUIET + BUSY + AFTER:
            self._work()
            self._publish()
            collection = await metric_collector.collect([self.resource], self.reader, 1)
            samples = [*collection.metrics, *self._pushed()]
            self.state = advance(self.resource, self.state, samples, self.now).state
            self._change()
            self.capacities[self.now] = self.capacity
            self.now += TICK

    def _work(self) -> None:
        busy = START + QUIET <= self.now < START + QUIET + BUSY
        arrived = (HIGH if busy else LOW) * (TICK / MINUTE)
        able = RATE * self.capacity * (TICK / MINUTE)
        finished = min(self.backlog + arrived, able)
        self.backlog += arrived - finished
        minute = self.minutes.setdefault(self.now.replace(second=0), _Minute())
        minute.cpu.append(100 * finished / able)
        minute.backlog.append(self.backlog)
        minute.arrived += arrived
        minute.finished += finished

    def _publish(self) -> None:
        """The current values, and the points of the minutes so far."""
        for source in self.resource.metrics.values():
            if source.series:
                points = self.platform.points.setdefault(source, {})
                start = self.now.replace(second=0)
                points[start] = _measured(source, self.minutes[start])
                for old in [time for time in points if time < self.now - timedelta(minutes=30)]:
                    del points[old]
            elif path := getattr(source, "path", ""):
                url = getattr(source, "url", "")
                self.reader.documents[url] = _document(path, self.backlog)
            elif getattr(source, "count", "active") == "active":
                self.reader.values[source] = self.backlog
            else:
                self.reader.values[source] = 0.0

    def _pushed(self) -> Iterator[Metric]:
        """Samples that a sender sent once a minute, and that arrive late."""
        for name, source in self.resource.metrics.items():
            minute = self.minutes.get(self.now - self.delay - MINUTE)
            if source.pushed and minute is not None:
                value = MetricValue(self.now - self.delay, _measured(source, minute))
                yield Metric(self.resource.name, name, value)

    def _change(self) -> None:
        """Carry out a pending action after the start-up time. The next reading confirms it."""
        desired = self.state.desired
        if (
            desired is not None
            and desired.pending
            and self.now >= desired.requested_at + START_UP_TIME
        ):
            self.control.capacities[self.resource.target.name] = desired.target


def _document(path: str, value: object) -> object:
    """The smallest document that has the value at the path."""
    for key in reversed(path.split(".")):
        value = [None] * int(key) + [value] if key.isdigit() else {key: value}
    return value


def _measured(source: Source, minute: _Minute) -> float:
    """The value of a minute, by the name of the metric."""
    series = source.series
    if series is None:
        return minute.backlog[-1]
    name = series.metric.lower()
    if "incoming" in name or series.aggregation == "count":
        return minute.arrived
    if "complete" in name:
        return minute.finished
    values = minute.cpu if "percentage" in name else minute.backlog
    if series.aggregation == "total":
        return sum(values)
    if series.aggregation == "maximum":
        return max(values)
    return min(values) if series.aggregation == "minimum" else sum(values) / len(values)


@dataclass(frozen=True, slots=True)
class Course:
    """The capacity before the load rose, its highest afterwards, and the one in the end."""

    before: int
    highest: int
    after: int

    @property
    def returned(self) -> bool:
        return self.highest > self.before >= self.after


def replay(resource: Resource, delay_minutes: int) -> Course:
    """The course of the capacity if the sources lag by this much."""
    each = _Replay(resource, delay_minutes * MINUTE)
    asyncio.run(each.run())
    rise = START + QUIET
    return Course(
        each.capacities[rise - TICK],
        max(capacity for time, capacity in each.capacities.items() if time >= rise),
        each.capacity,
    )


def replay_state(resource: Resource, delay_minutes: int) -> ScalingState:
    """The state at the end, with what was learned."""
    each = _Replay(resource, delay_minutes * MINUTE)
    asyncio.run(each.run())
    return each.state


def may_lag(resource: Resource) -> bool:
    """True if a source is read late or pushed. The others are read at the time of the decision."""
    return any(source.pushed or source.series for source in resource.metrics.values())
