"""Stores that record OpenTelemetry metrics about what passes through them.

The instruments use OpenTelemetry's API, which costs next to nothing while no exporter is
configured. docs/operations.md explains each metric.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta

from opentelemetry import metrics

from shared.autoscaling.backlogs import age_minutes
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.learning import rate_estimate
from shared.autoscaling.measurements import NOTHING
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import Snapshot, StateStore
from shared.autoscaling.state import Override, ScalingState
from shared.ingestion.breaker.breaker import Breaker, BreakerMode
from shared.ingestion.breaker.failure_window import Tally
from shared.ingestion.model import Commit, Stream, set_aside_among
from shared.ingestion.store.breakers import BreakerSnapshot, BreakerStore
from shared.ingestion.store.events import EventStore, StoredCheckpoint, StoredMessage
from shared.ingestion.store.rows import CommitLimits
from shared.nightly.model import DateRuns, Demand, Ledger, Run, RunState
from shared.nightly.ports import RunStore
from shared.values.redaction import redacting

NAME = "app-service-autoscaler"
DURATION_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 270)
"""The bounds of the histogram of durations. A function stops itself after 270 seconds."""
LEVELS = {
    BreakerMode.CLOSED: 0,
    BreakerMode.HALF_OPEN: 1,
    BreakerMode.OPEN: 2,
    BreakerMode.ISOLATED: 3,
}
DAYS_COUNTED = timedelta(days=7)
REQUESTED = "requested"
"""The state of a date that has been requested but has no run yet."""


class InvocationMeter:
    """Records the duration and the error of each invocation of a function.

    - ``functions.duration``: seconds that an invocation took, by function and error
    """

    def __init__(self, meter: metrics.Meter | None = None) -> None:
        meter = meter or metrics.get_meter(NAME)
        self._duration = meter.create_histogram(
            "functions.duration", "s", explicit_bucket_boundaries_advisory=DURATION_SECONDS
        )

    def record(self, function: str, seconds: float, error: str) -> None:
        """``error`` is the class of the error, or empty if the function succeeded."""
        self._duration.record(seconds, {"function": function, "error": error or "none"})


@redacting
class MeasuredStore:
    """A StateStore that records metrics about the decision log entries that it writes.

    - ``autoscaler.metric``: value of the sample that led to a decision, by resource and metric
    - ``autoscaler.capacity``, ``autoscaler.desired``: current and desired capacity, in instances
    - ``autoscaler.minimum``, ``autoscaler.maximum``: declared limits, in instances
    - ``autoscaler.age``, ``autoscaler.age.limit``: estimated age of the oldest waiting item, and
      the age limit of the goal, in seconds
    - ``autoscaler.throughput``: items that an instance finishes in a minute, with
      ``autoscaler.throughput.low``, the value that policies plan with, and
      ``autoscaler.throughput.error``, the relative standard error
    - ``autoscaler.decisions``: number of decisions, by outcome and guard
    - ``autoscaler.log``: number of all other entries of the decision log, by kind
    - ``autoscaler.sample.age``: seconds from the time of a sample to the decision
    """

    def __init__(
        self,
        store: StateStore,
        resources: Mapping[str, Resource] = NOTHING,
        meter: metrics.Meter | None = None,
    ) -> None:
        meter = meter or metrics.get_meter(NAME)
        self._store = store
        self._resources = resources
        self._metric = meter.create_gauge("autoscaler.metric")
        self._capacity = meter.create_gauge("autoscaler.capacity", "{instance}")
        self._desired = meter.create_gauge("autoscaler.desired", "{instance}")
        self._minimum = meter.create_gauge("autoscaler.minimum", "{instance}")
        self._maximum = meter.create_gauge("autoscaler.maximum", "{instance}")
        self._age = meter.create_gauge("autoscaler.age", "s")
        self._age_limit = meter.create_gauge("autoscaler.age.limit", "s")
        self._throughput = meter.create_gauge("autoscaler.throughput", "{item}/min")
        self._throughput_low = meter.create_gauge("autoscaler.throughput.low", "{item}/min")
        self._throughput_error = meter.create_gauge("autoscaler.throughput.error", "1")
        self._decisions = meter.create_counter("autoscaler.decisions", "{decision}")
        self._lines = meter.create_counter("autoscaler.log", "{line}")
        self._sample_age = meter.create_histogram("autoscaler.sample.age", "s")

    async def load(self, resource_name: str) -> Snapshot:
        return await self._store.load(resource_name)

    async def commit(
        self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry] = ()
    ) -> None:
        await self._store.commit(snapshot, state, entries)
        for entry in entries:
            self._count(entry, state)

    async def put_override(
        self, snapshot: Snapshot, override: Override | None, entry: LogEntry
    ) -> None:
        await self._store.put_override(snapshot, override, entry)
        self._count(entry, snapshot.state)

    async def record(self, entry: LogEntry) -> None:
        await self._store.record(entry)
        self._count(entry, ScalingState())

    async def log(
        self, resource_name: str, limit: int = 50, since: datetime | None = None
    ) -> list[LogEntry]:
        return await self._store.log(resource_name, limit, since)

    async def prune_log(self, resource_name: str, before: datetime) -> int:
        return await self._store.prune_log(resource_name, before)

    async def close(self) -> None:
        await self._store.close()

    def _count(self, entry: LogEntry, state: ScalingState) -> None:
        resource = {"resource": entry.resource_name}
        if entry.kind is not EntryKind.DECISION:
            self._lines.add(1, {**resource, "kind": str(entry.kind)})
            return
        guard = entry.limited_by[-1] if entry.limited_by else "none"
        self._decisions.add(1, {**resource, "outcome": _outcome(entry), "guard": guard})
        if entry.current is not None and entry.desired is not None:
            self._capacity.set(entry.current, resource)
            self._desired.set(entry.desired, resource)
        if entry.metric and entry.value is not None:
            self._metric.set(entry.value, {**resource, "metric": entry.metric})
            history = state.histories.get(entry.metric)
            if history and history.samples:
                age = (entry.time - history.samples[-1].time).total_seconds()
                self._sample_age.record(max(age, 0), {**resource, "metric": entry.metric})
        age_in_minutes = age_minutes(entry.evidence)
        if age_in_minutes is not None:
            self._age.set(60 * age_in_minutes, resource)
        if declared := self._resources.get(entry.resource_name):
            self._describe(declared, state)

    def _describe(self, declared: Resource, state: ScalingState) -> None:
        """Record what is declared for the resource, and what was learned about it."""
        resource = {"resource": declared.name}
        self._minimum.set(declared.limits.minimum, resource)
        self._maximum.set(declared.limits.maximum, resource)
        self._age_limit.set(60 * declared.goal.age_limit_minutes, resource)
        estimate = rate_estimate(declared.throughput, state.learned)
        if estimate is not None:
            self._throughput.set(estimate.likely, resource)
            self._throughput_low.set(estimate.low, resource)
            self._throughput_error.set(estimate.relative_error, resource)


@redacting
class MeasuredIngestion:
    """An EventStore that records metrics about what it commits.

    - ``ingestion.lag``: seconds from when the newest committed event of a partition was enqueued
      to its commit
    - ``ingestion.outcomes``: number of effects, dead letters, events set aside, and events
      lost in gaps
    """

    def __init__(self, store: EventStore, meter: metrics.Meter | None = None) -> None:
        meter = meter or metrics.get_meter(NAME)
        self._store = store
        self._lag = meter.create_gauge("ingestion.lag", "s")
        self._outcomes = meter.create_counter("ingestion.outcomes", "{event}")

    @property
    def limits(self) -> CommitLimits:
        return self._store.limits

    async def load(self, stream: Stream) -> StoredCheckpoint:
        return await self._store.load(stream)

    async def commit(
        self, stream: Stream, saved: StoredCheckpoint, commit: Commit
    ) -> StoredCheckpoint:
        stored = await self._store.commit(stream, saved, commit)
        partition = {"hub": stream.hub, "partition": stream.partition_id}
        lag = (stored.read_at - commit.checkpoint.enqueued_at).total_seconds()
        self._lag.set(max(lag, 0), partition)
        lost = sum([gap.count for gap in commit.gaps])
        aside = set_aside_among(commit.effects)
        counts = {"effect": len(commit.effects) - aside, "set_aside": aside, "gap": lost}
        for outcome, count in {**counts, "dead_letter": len(commit.dead_letters)}.items():
            if count:
                self._outcomes.add(count, {**partition, "outcome": outcome})
        return stored

    async def outbox(self, stream: Stream, limit: int) -> Sequence[StoredMessage]:
        return await self._store.outbox(stream, limit)

    async def take(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        await self._store.take(stream, messages)

    async def sent(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        await self._store.sent(stream, messages)

    async def mark_at_work(self, stream: Stream) -> None:
        await self._store.mark_at_work(stream)

    async def idle_for(self, stream: Stream) -> timedelta | None:
        return await self._store.idle_for(stream)


@redacting
class MeasuredBreaker:
    """A BreakerStore that records the mode of the breaker whenever it is read or changed.

    - ``ingestion.breaker``: 0 if closed, 1 if half open, 2 if open, 3 if isolated
    """

    def __init__(self, store: BreakerStore, name: str, meter: metrics.Meter | None = None) -> None:
        meter = meter or metrics.get_meter(NAME)
        self._store = store
        self._name = name
        self._mode = meter.create_gauge("ingestion.breaker")

    async def load(self) -> BreakerSnapshot:
        return self._recorded(await self._store.load())

    async def replace(self, seen: BreakerSnapshot, breaker: Breaker) -> BreakerSnapshot:
        return self._recorded(await self._store.replace(seen, breaker))

    async def put_tally(self, tally: Tally) -> None:
        await self._store.put_tally(tally)

    async def tallies(self, since: datetime) -> Sequence[Tally]:
        return await self._store.tallies(since)

    def _recorded(self, snapshot: BreakerSnapshot) -> BreakerSnapshot:
        self._mode.set(LEVELS[snapshot.breaker.mode], {"breaker": self._name})
        return snapshot


@redacting
class MeasuredRuns:
    """A RunStore that records the states of the last week's dates whenever it is read.

    - ``trends.dates``: number of dates of the last seven days, by data set and the state of the
      latest run; ``requested`` if the date has no run yet
    """

    def __init__(self, store: RunStore, meter: metrics.Meter | None = None) -> None:
        meter = meter or metrics.get_meter(NAME)
        self._store = store
        self._dates = meter.create_gauge("trends.dates", "{date}")

    async def read(self, dataset: str) -> Ledger:
        ledger = await self._store.read(dataset)
        since = ledger.now.date() - DAYS_COUNTED
        states = Counter(_state(day) for day in ledger.days.values() if day.date >= since)
        for state in (REQUESTED, *map(str, RunState)):
            self._dates.set(states[state], {"dataset": dataset, "state": state})
        return ledger

    async def ask(self, dataset: str, demand: Demand) -> bool:
        return await self._store.ask(dataset, demand)

    async def insert(self, run: Run) -> Run:
        return await self._store.insert(run)

    async def replace(self, run: Run) -> Run:
        return await self._store.replace(run)

    async def forget(self, dataset: str, day: date) -> None:
        await self._store.forget(dataset, day)

    async def close(self) -> None:
        await self._store.close()


def _state(day: DateRuns) -> str:
    return str(day.latest.state) if day.latest else REQUESTED


def _outcome(entry: LogEntry) -> str:
    if not entry.applies or entry.current is None or entry.desired is None:
        return "hold"
    return "out" if entry.desired > entry.current else "in"
