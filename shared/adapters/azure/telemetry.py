"""OpenTelemetry metrics of the app: scaling decisions and their inputs, and the lag of ingestion.

The instruments use OpenTelemetry's API, which costs next to nothing while no exporter is
configured. Importing the exporter to Azure Monitor takes a second, so a thread imports it during
the first invocation.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from opentelemetry import metrics

from shared.adapters.azure.deferred_log import LogLine, lines
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.ports import Snapshot, StateStore
from shared.autoscaling.state import Override, ScalingState
from shared.ingestion.events.accounting import CommitLimits
from shared.ingestion.events.ports import IngestionStore, StoredCheckpoint, StoredMessage
from shared.ingestion.model import Commit, Stream
from shared.values.redaction import redacted, redacting
from shared.values.text import one_line

log = logging.getLogger(__name__)

NAME = "app-service-autoscaler"
OWN_INSTRUMENTATIONS = ("azure_sdk",)
OTHERS = ("django", "fastapi", "flask", "psycopg2", "requests", "urllib", "urllib3")


@redacting
class MeasuredStore:
    """A StateStore that records metrics about the decision log entries that it writes.

    - ``autoscaler.metric``: value of the sample that led to a decision, by resource and metric
    - ``autoscaler.capacity``, ``autoscaler.desired``: current and desired capacity, in instances
    - ``autoscaler.decisions``: number of decisions, by outcome and guard
    - ``autoscaler.log``: number of all other entries of the decision log, by kind
    - ``autoscaler.sample.age``: seconds from the time of a sample to the decision
    """

    def __init__(self, store: StateStore, meter: metrics.Meter | None = None) -> None:
        meter = meter or metrics.get_meter(NAME)
        self._store = store
        self._metric = meter.create_gauge("autoscaler.metric")
        self._capacity = meter.create_gauge("autoscaler.capacity", "{instance}")
        self._desired = meter.create_gauge("autoscaler.desired", "{instance}")
        self._decisions = meter.create_counter("autoscaler.decisions", "{decision}")
        self._lines = meter.create_counter("autoscaler.log", "{line}")
        self._age = meter.create_histogram("autoscaler.sample.age", "s")

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
        if entry.current is not None and entry.desired is not None:
            self._capacity.set(entry.current, resource)
            self._desired.set(entry.desired, resource)
        guard = entry.limited_by[-1] if entry.limited_by else "none"
        self._decisions.add(1, {**resource, "outcome": _outcome(entry), "guard": guard})
        if entry.metric and entry.value is not None:
            self._metric.set(entry.value, {**resource, "metric": entry.metric})
            history = state.histories.get(entry.metric)
            if history and history.samples:
                age = (entry.time - history.samples[-1].time).total_seconds()
                self._age.record(max(age, 0), {**resource, "metric": entry.metric})


@redacting
class MeasuredIngestion:
    """An IngestionStore that records metrics about what it commits.

    - ``ingestion.lag``: seconds from when the newest committed event of a partition was enqueued
      to its commit
    - ``ingestion.outcomes``: number of effects, dead letters, and events lost in gaps
    """

    def __init__(self, store: IngestionStore, meter: metrics.Meter | None = None) -> None:
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
        counts = {"effect": len(commit.effects), "dead_letter": len(commit.dead_letters)}
        for outcome, count in {**counts, "gap": lost}.items():
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


def _outcome(entry: LogEntry) -> str:
    if not entry.applies or entry.current is None or entry.desired is None:
        return "hold"
    return "out" if entry.desired > entry.current else "in"


def export(connection_string: str, authentication: str = "") -> threading.Thread:
    """Start to send metrics and traces to Application Insights. The host sends the logs itself.

    ``authentication`` has the form of the host's setting: ``Authorization=AAD``, followed by
    ``;ClientId=…`` for a user-assigned identity.
    """
    worker = threading.Thread(
        target=_export, args=(connection_string, authentication), name="telemetry", daemon=True
    )
    worker.start()
    return worker


def _export(connection_string: str, authentication: str) -> None:
    try:
        from azure.monitor.opentelemetry import configure_azure_monitor  # noqa: PLC0415  slow

        enabled = {name: {"enabled": True} for name in OWN_INSTRUMENTATIONS}
        disabled = {name: {"enabled": False} for name in OTHERS}
        configure_azure_monitor(
            connection_string=connection_string,
            disable_logging=True,
            enable_live_metrics=False,
            enable_performance_counters=False,
            instrumentation_options=enabled | disabled,
            **_credential(authentication),
        )
    except Exception as error:  # scaling must not depend on telemetry
        text = redacted(f"{type(error).__name__}: {one_line(error)}")
        lines.write(LogLine(log, logging.WARNING, "telemetry_failed", text))


def _credential(authentication: str) -> dict[str, Any]:
    pairs = dict(part.partition("=")[::2] for part in authentication.split(";") if part)
    if pairs.get("Authorization") != "AAD":
        return {}
    from azure.identity import ManagedIdentityCredential  # noqa: PLC0415

    client_id = pairs.get("ClientId")
    return {"credential": ManagedIdentityCredential(client_id=client_id)}
