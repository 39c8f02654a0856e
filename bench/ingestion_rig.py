"""Events, consumers and stores for the ingestion benchmarks."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

from local.azurite import Azurite
from local.twins.event_hub import MemoryHubReader
from shared.ingestion.events.accounting import Writer, plan_commits
from shared.ingestion.events.process_batch import Consumer
from shared.ingestion.model import Commit, Effect, Event, Stream
from shared.ingestion.store.events import EventStore
from shared.ingestion.store.rows import CommitLimits
from shared.ingestion.store.sql import SqlRows
from shared.ingestion.store.sql_engine import Sql
from shared.ingestion.store.sql_schema import metadata
from shared.ingestion.store.tables import TableRows
from shared.settings.connections import StorageConnection
from shared.values.concurrency import JitteredRetrying, task_runner

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
BODY = json.dumps({"resource_name": "plan-1", "name": "backlog", "value": 12.5, "pad": "x" * 60})
KEYS = 16


def new_stream() -> Stream:
    return Stream("ns.servicebus.windows.net", f"hub-{uuid.uuid4().hex[:8]}", "$Default", "0")


def events(count: int, first: int = 0) -> list[Event]:
    return [
        Event(n, str(n), START + timedelta(milliseconds=n), BODY.encode(), f"k{n % KEYS}")
        for n in range(first, first + count)
    ]


async def handle(event: Event) -> Effect:
    """One row of about a hundred bytes for each event."""
    return Effect(event.sequence, event.body.decode())


def consumer(store: EventStore, stream: Stream) -> Consumer:
    return Consumer(
        stream,
        Writer("bench"),
        store,
        MemoryHubReader(),
        handle,
        JitteredRetrying(),
        task_runner(4),
        partial(token_hex, 16),
    )


def planned(batches: Sequence[Sequence[Event]], limits: CommitLimits) -> list[Commit]:
    """The commits that the batches lead to, planned before the measurement."""
    commits: list[Commit] = []
    previous = None
    for batch in batches:
        outcomes = [Effect(event.sequence, event.body.decode()) for event in batch]
        txid = uuid.uuid4().hex
        commits += plan_commits(previous, batch, outcomes, (), Writer("bench"), txid, START, limits)
        previous = commits[-1].checkpoint
    return commits


async def write_all(store: EventStore, stream: Stream, commits: Sequence[Commit]) -> None:
    """Write the commits by the store alone."""
    saved = await store.load(stream)
    for commit in commits:
        saved = await store.commit(stream, saved, commit)


@asynccontextmanager
async def sqlite_store() -> AsyncIterator[tuple[EventStore, Path]]:
    """A store in a new file."""
    with TemporaryDirectory(prefix="bench-") as folder:
        path = Path(folder) / "ingestion.db"
        sql = Sql(f"sqlite:///{path}", metadata)
        try:
            yield EventStore(SqlRows(sql)), path
        finally:
            await sql.close()


@asynccontextmanager
async def table_store() -> AsyncIterator[tuple[EventStore, StorageConnection]]:
    """A store in a new emulator."""
    with Azurite() as azurite:
        connection = StorageConnection("Storage", azurite.connection_string)
        store = EventStore(TableRows(connection))
        try:
            yield store, connection
        finally:
            await store.close()
