"""Writes the values through the adapters of this version, and reads what a version has written."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, timedelta
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

from shared.autoscaling.deciding.decide import EntryKind
from shared.autoscaling.messages import decode_action, decode_samples, encode_action
from shared.autoscaling.store.tables import TABLE_NAME as SCALING
from shared.autoscaling.store.tables import TableStateStore
from shared.ingestion.breaker.approval import issue, verify
from shared.ingestion.decoding.decode import decode
from shared.ingestion.decoding.readings import MetricSubscriptions
from shared.ingestion.model import LONG_AGO
from shared.ingestion.store.breakers import BreakerStore
from shared.ingestion.store.events import EventStore
from shared.ingestion.store.owners import OwnershipStore
from shared.ingestion.store.sql import SqlRows
from shared.ingestion.store.sql_engine import Sql
from shared.ingestion.store.sql_schema import metadata
from shared.ingestion.store.tables import TableRows
from shared.notifications.store import TableNotificationStore
from shared.sampling.profile import profile_row
from shared.sampling.trend_rows import ALARMS, ALARMS_UNTIL, alarm_keys, trend_row
from shared.sampling.verdict import LOST
from shared.settings.connections import StorageConnection
from shared.storage.tables import Table
from shared.trends.datasets.processing import decode_work, encode_work
from shared.trends.store.claims import TableClaims
from shared.trends.store.runs import TableRunStore
from shared.trends.store.trends import TABLE_NAME as TRENDS
from shared.trends.store.trends import TableTrends
from shared.values.samples import encode_metrics, encode_samples
from spark_jobs.publish import publishing, results
from spark_jobs.publish.publishing import Manifest
from spark_jobs.publish.stores import LocalStore
from tests.builders import NOW, encode_metric, trend_from_json
from tests.upgrades import values

ROWS_MAX = 100
VARYING = {"version", "modified_at", "seen_at", "read_at", "waited"}
"""Fields that hold the time or the number of a write, and so differ in each run."""


class Closes(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=Closes)


@dataclass(frozen=True)
class Stores:
    """All stores of the app: tables, a database, and the output folder of the nightly job."""

    connection: StorageConnection
    database: Path
    output: LocalStore
    stack: AsyncExitStack

    def opened(self, store: C) -> C:
        self.stack.push_async_callback(store.close)
        return store

    @cached_property
    def scaling(self) -> TableStateStore:
        return self.opened(TableStateStore(self.connection))

    @cached_property
    def sql(self) -> Sql:
        return self.opened(Sql(f"sqlite:///{self.database}", metadata))

    @cached_property
    def of_events(self) -> Mapping[str, tuple[EventStore, OwnershipStore, BreakerStore]]:
        """The stores of ingestion: checkpoints and outcomes, owners, and the breaker."""
        stream, name = values.STREAM, values.BREAKER_NAME
        group = (stream.namespace, stream.hub, stream.consumer_group)
        return {
            "tables": (
                self.opened(EventStore(TableRows(self.connection))),
                self.opened(OwnershipStore(TableRows(self.connection), *group)),
                self.opened(BreakerStore(TableRows(self.connection), name)),
            ),
            "sql": (
                EventStore(SqlRows(self.sql)),
                OwnershipStore(SqlRows(self.sql), *group),
                BreakerStore(SqlRows(self.sql), name),
            ),
        }

    @cached_property
    def claims(self) -> TableClaims:
        return self.opened(TableClaims(self.connection))

    @cached_property
    def runs(self) -> TableRunStore:
        return self.opened(TableRunStore(self.connection))

    @cached_property
    def notifications(self) -> TableNotificationStore:
        return self.opened(TableNotificationStore(self.connection))

    def table(self, name: str) -> Table:
        return self.opened(Table(self.connection, name))


@asynccontextmanager
async def stores(connection_string: str, folder: Path) -> AsyncIterator[Stores]:
    async with AsyncExitStack() as stack:
        connection = StorageConnection("Storage", connection_string)
        yield Stores(connection, folder / "events.db", LocalStore(folder / "output"), stack)


# --- writing ----------------------------------------------------------------------------------


async def write(at: Stores) -> dict[str, Any]:
    """Write every value. Returns what a reader must find."""
    await _write_scaling(at)
    for parts in at.of_events.values():
        await _write_events(*parts)
    await at.claims.finish(values.WORK, "message-2")
    await at.runs.ask(values.DATASET, values.DEMAND)
    await at.runs.write(values.RUN)
    await at.table(TRENDS).overwrite(trend_row(values.TREND))
    await at.table(TRENDS).overwrite({**trend_row(values.LOSS), **alarm_keys(values.LOSS)})
    until = {"PartitionKey": ALARMS, "RowKey": ALARMS_UNTIL, "date": values.LOSS.date}
    await at.table(TRENDS).overwrite(until)
    await at.notifications.save(values.NOTIFICATION)
    _publish(at.output)
    notification = values.NOTIFICATION
    found = {
        "state": {
            **plain(values.STATE),
            "override": plain(values.OVERRIDE),
            "profile": plain(values.PROFILE),
        },
        "newest decision": values.HOLD,
        "decision log": [values.HOLD, values.DECISION],
        "poison": [values.POISON],
        **{f"events in {kind}": _events() for kind in at.of_events},
        "claim": await at.claims.done(values.WORK),
        "demand": values.DEMAND,
        "run": values.RUN,
        "trends": [values.TREND],
        "alarms": [values.LOSS],
        "notification": notification.record,
        "manifest": values.MANIFEST,
        "totals": values.TOTALS,
        "operations": values.OPERATIONS,
        "published trends": [values.TREND],
    }
    return {name: plain(value) for name, value in {**found, **_messages()}.items()}


async def _write_scaling(at: Stores) -> None:
    store, name = at.scaling, values.RESOURCE
    await at.table(SCALING).overwrite(profile_row(name, values.USUAL_WEEK))
    await store.commit(await store.load(name), values.STATE, [values.DECISION])
    await store.commit(await store.load(name), values.STATE, [values.HOLD])
    await store.put_override(await store.load(name), values.OVERRIDE, values.OVERRIDDEN)
    await store.record(values.POISON)


async def _write_events(store: EventStore, owners: OwnershipStore, breaker: BreakerStore) -> None:
    stream = values.STREAM
    await store.commit(stream, await store.load(stream), values.COMMIT)
    await store.take(stream, await store.outbox(stream, ROWS_MAX))
    await store.mark_at_work(stream)
    await store.put_mark(stream, values.MARK)
    await owners.write(values.CLAIM_OF_PARTITION)
    await breaker.replace(await breaker.load(), values.BREAKER)
    await breaker.put_tally(values.TALLY)


def _events() -> dict[str, Any]:
    claim = values.CLAIM_OF_PARTITION
    ((message,),) = (effect.messages for effect in values.COMMIT.effects)
    return {
        "streams": [values.STREAM],
        "checkpoint": values.CHECKPOINT,
        "outbox": [{"message": message, "taken": 1}],
        "dead letters": values.LETTERS,
        "gaps": values.COMMIT.gaps,
        "marks": [values.MARK],
        "owners": [{"partition_id": "3", "owner": claim.owner, "epoch": claim.epoch}],
        "breaker": values.BREAKER,
        "tallies": [values.TALLY],
        "effects": len(values.COMMIT.effects),
    }


def texts() -> dict[str, str]:
    """The messages and tokens that are on their way while the app is upgraded."""
    key, until = values.APPROVAL_KEY, timedelta(days=1)
    return {
        "queue metrics, one sample": encode_metric(values.METRICS[0]),
        "queue metrics, many samples": encode_metrics(values.METRICS)[0],
        "queue actions": encode_action(values.ACTION),
        "queue working": encode_work(values.WORK).decode(),
        "event hub": encode_samples([values.READING]),
        "token of a link": issue(key, values.DEPLOYMENT, values.BREAKER_NAME, 3, NOW, until),
    }


def _messages() -> dict[str, Any]:
    until = NOW + timedelta(days=1)
    token = {
        "breaker": values.BREAKER_NAME,
        "deployment": values.DEPLOYMENT,
        "epoch": 3,
        "expires_at": int(until.timestamp()),
    }
    return {
        "queue metrics, one sample": values.METRICS[:1],
        "queue metrics, many samples": values.METRICS,
        "queue actions": values.ACTION,
        "queue working": values.WORK,
        "event hub": [values.READING],
        "token of a link": token,
    }


def _publish(output: LocalStore) -> None:
    def write_results(new: Manifest, _changed: set[str], _old: str) -> None:
        of = values.TOTALS, values.OPERATIONS, [values.TREND], new
        for name, content in results.files_of(*of).items():
            if name not in results.TABLES:  # the job does not read them
                output.write(f"results/{new.results}/{name}", content)

    manifest = values.MANIFEST
    publishing.publish(
        output, Manifest(), manifest.entries, values.SHAPE, manifest.results, write_results
    )


# --- reading ----------------------------------------------------------------------------------


async def read(at: Stores, sent: Mapping[str, str]) -> dict[str, Any]:
    """What this version finds in the stores, and in messages that were sent."""
    log = await at.scaling.log(values.RESOURCE)
    snapshot = await at.scaling.load(values.RESOURCE)
    ledger = await at.runs.read(values.DATASET)
    day = ledger.days[values.DAY]
    history = await at.notifications.read()
    manifest = publishing.latest(at.output, values.SHAPE)
    trends = at.output.read(f"results/{manifest.results}/{results.TRENDS}").splitlines()
    found = {
        "state": snapshot.state,
        "newest decision": snapshot.decided,
        "decision log": [entry for entry in log if entry.kind is EntryKind.DECISION],
        "poison": await at.scaling.log(values.POISON.resource_name),
        **{f"events in {kind}": await _read_events(*of) for kind, of in at.of_events.items()},
        "claim": await at.claims.done(values.WORK),
        "demand": day.demand,
        "run": day.latest,
        "trends": await at.opened(TableTrends(at.connection)).since(values.DAY),
        "alarms": await at.opened(TableTrends(at.connection)).since(values.DAY, LOST),
        "notification": history.records[values.NOTIFICATION.key],
        "manifest": manifest,
        "totals": results.read(at.output, manifest.results)[0],
        "operations": results.read(at.output, manifest.results)[1],
        "published trends": [trend_from_json(line) for line in trends],
    }
    return {name: plain(value) for name, value in {**found, **_read_texts(sent)}.items()}


async def _read_events(
    store: EventStore, owners: OwnershipStore, breaker: BreakerStore
) -> dict[str, Any]:
    stream = values.STREAM
    outbox = await store.outbox(stream, ROWS_MAX)
    assert await store.idle_for(stream) is not None
    return {
        "streams": await store.streams(),
        "checkpoint": (await store.load(stream)).checkpoint,
        "outbox": [{"message": each.message, "taken": each.taken} for each in outbox],
        "dead letters": [each.letter for each in await store.dead_letters(stream, None, ROWS_MAX)],
        "gaps": await store.gaps(stream, None, ROWS_MAX),
        "marks": await store.marks(stream),
        "owners": (await owners.owners()).rows,
        "breaker": (await breaker.load()).breaker,
        "tallies": await breaker.tallies(LONG_AGO),
        "effects": await store.purge_effects(stream, values.CHECKPOINT.sequence, ROWS_MAX),
    }


def _read_texts(sent: Mapping[str, str]) -> dict[str, Any]:
    pushed = MetricSubscriptions(frozenset({(values.RESOURCE, values.READING.name)}), {})
    token, keys = sent["token of a link"], [values.APPROVAL_KEY]
    return {
        "queue metrics, one sample": decode_samples(sent["queue metrics, one sample"]).metrics,
        "queue metrics, many samples": decode_samples(sent["queue metrics, many samples"]).metrics,
        "queue actions": decode_action(sent["queue actions"]),
        "queue working": decode_work(sent["queue working"]),
        "event hub": decode(sent["event hub"].encode(), pushed).readings,
        "token of a link": verify(keys, token, values.DEPLOYMENT, values.BREAKER_NAME, NOW),
    }


def plain(value: Any) -> Any:
    """The value as JSON, without the fields that differ in each run."""
    if is_dataclass(value):
        return {
            each.name: plain(getattr(value, each.name))
            for each in fields(value)
            if each.name not in VARYING
        }
    if isinstance(value, Mapping):
        return {_name(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, date):  # or a datetime
        return value.isoformat()
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return str(value) if isinstance(value, StrEnum) else value


def _name(key: Any) -> str:
    return key if isinstance(key, str) else repr(plain(key))
