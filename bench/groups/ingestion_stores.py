"""ingestion_stores: events a second with all guarantees, compared with each store alone.

``python -m bench.groups.ingestion_stores 1000000`` measures the cost of an event in a store of up
to one million events.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

from azure.data.tables.aio import TableClient

from bench.filled_storage import lean_transport
from bench.ingestion_rig import (
    consumer,
    events,
    handle,
    new_stream,
    planned,
    sqlite_store,
    table_store,
    write_all,
)
from bench.measurement import Measurement
from bench.repeats import medians
from shared.ingestion.events.process_batch import process_batch
from shared.ingestion.model import Commit, Event, Stream
from shared.ingestion.store.events import EventStore, commit_writes, effect_writes
from shared.ingestion.store.sql import SqlRows
from shared.ingestion.store.sql_engine import Sql
from shared.ingestion.store.sql_schema import metadata
from shared.ingestion.store.tables import EVENTS, TableRows, operations_of
from shared.settings.connections import StorageConnection
from shared.storage.tables import joined

T = TypeVar("T")
Clock = Callable[[], float]
Work = Callable[[], Awaitable[None]]

BATCH = 100
TABLE_BATCH = 99
"""With the checkpoint's row, this fills a transaction."""
PLANNED = "baseline: the same transactions by the store alone, planned before the measurement"
CPU = f"CPU time, which other processes do not disturb; {PLANNED}"
UNGUARDED = f"handler and rows, one transaction a batch, no checkpoint, no accounting; {PLANNED}"
PARTITIONS = 4
AT_ONCE = f"{PARTITIONS} partitions at a time; {PLANNED}"
DRIVER = "baseline: the same rows by the driver alone, in one transaction a batch"
COUNTS = (1_000, 10_000, 100_000)
COST_EVENTS = 2_000
SQLITE_TURNS, SQLITE_LENGTH = 2, 3
"""More and longer runs than for a store over the network. A hundred batches take a tenth of a
second, and the start of a run (a first read, fresh memory) should be a small part of the time."""
CREATE = "CREATE TABLE Bare (a, b, c, d, n, value, PRIMARY KEY (a, b, c, d, n)) WITHOUT ROWID"


def measure(
    repeats: int = 5, batches: int = 40, counts: Sequence[int] = COUNTS
) -> Iterator[Measurement]:
    """SQLite, then Table Storage (Azurite), then the cost of an event as a store fills up."""
    yield from asyncio.run(_sqlite(SQLITE_TURNS * repeats, SQLITE_LENGTH * batches))
    yield from asyncio.run(_tables(repeats, max(batches // 8, 2)))
    yield from asyncio.run(_costs(counts))


# --- events a second --------------------------------------------------------------------------


async def _sqlite(repeats: int, batches: int) -> list[Measurement]:
    async with sqlite_store() as (store, path):
        await store.load(new_stream())  # The first call creates the tables.
        bare = SqlRows(Sql(f"sqlite:///{path}", metadata))
        rate = partial(_rate, batches=batches)
        cpu = time.process_time
        figures = await medians(
            [
                lambda: rate(_guarded, store),
                lambda: rate(_alone, store),
                lambda: rate(_unguarded, bare),
                lambda: _by_driver(path, batches),
                lambda: rate(_guarded, store, clock=cpu),
                lambda: rate(_alone, store, clock=cpu),
                lambda: rate(_guarded, store, partitions=PARTITIONS),
                lambda: rate(_alone, store, partitions=PARTITIONS),
            ],
            repeats=repeats,
        )
        await bare.close()
    guarded, alone, unguarded, driver, guarded_cpu, alone_cpu, guarded_many, alone_many = figures
    return [
        Measurement(
            "ingestion_stores.sqlite", guarded, "events/s", alone, "≥ 40,000; ratio ≥ 0.8", PLANNED
        ),
        Measurement(
            "ingestion_stores.sqlite_partitions",
            guarded_many,
            "events/s",
            alone_many,
            "≥ 40,000; ratio ≥ 0.8",
            AT_ONCE,
        ),
        Measurement(
            "ingestion_stores.sqlite_cpu", 1e6 / guarded_cpu, "µs/event", 1e6 / alone_cpu, "", CPU
        ),
        Measurement(
            "ingestion_stores.sqlite_unguarded", unguarded, "events/s", alone, "", UNGUARDED
        ),
        Measurement("ingestion_stores.sqlite_store", alone, "events/s", driver, "", DRIVER),
        Measurement("ingestion_stores.sqlite_driver", guarded, "events/s", driver, "", DRIVER),
    ]


async def _tables(repeats: int, batches: int) -> list[Measurement]:
    async with table_store() as (store, connection):
        await write_all(store, new_stream(), planned([events(1)], store.limits))
        guarded, alone, commit_ms, bare_ms = await medians(
            [
                lambda: _rate(_guarded, store, batches, TABLE_BATCH),
                lambda: _rate(_alone, store, batches, TABLE_BATCH),
                lambda: _commit_ms(store, batches),
                lambda: _transaction_ms(connection, batches),
            ],
            repeats=repeats,
        )
    bare = "baseline: a transaction of the same 100 rows by the client alone"
    return [
        Measurement("ingestion_stores.table", guarded, "events/s", alone, "ratio ≥ 0.8", PLANNED),
        Measurement("ingestion_stores.table_commit", commit_ms, "ms", bare_ms, "ratio ≤ 1.2", bare),
    ]


def _guarded(store: EventStore, batches: int, size: int) -> Work:
    """The whole flow, with all guarantees."""
    each, reader = _batches(batches, size), consumer(store, new_stream())

    async def work() -> None:
        for batch in each:
            await process_batch(batch, reader)

    return work


def _alone(store: EventStore, batches: int, size: int) -> Work:
    """The transactions that the flow would write, by the store alone."""
    commits, stream = planned(_batches(batches, size), store.limits), new_stream()
    return lambda: write_all(store, stream, commits)


def _unguarded(rows: SqlRows, batches: int, size: int) -> Work:
    """The same handler, library and rows without accounting, as in a consumer that leaves its
    checkpoints to the host."""
    stream, each = new_stream(), _batches(batches, size)

    async def work() -> None:
        for batch in each:
            made = [await handle(event) for event in batch]
            await rows.write(stream.place, effect_writes(made))

    return work


async def _rate(
    make: Callable[[T, int, int], Work],
    of: T,
    batches: int,
    size: int = BATCH,
    *,
    partitions: int = 1,
    clock: Clock = time.perf_counter,
) -> float:
    """Events a second, with the given number of partitions at the same time."""
    each = [make(of, batches // partitions, size) for _ in range(partitions)]
    began = clock()
    await asyncio.gather(*[work() for work in each])
    return batches // partitions * partitions * size / (clock() - began)


async def _by_driver(path: Path, batches: int) -> float:
    """The driver that comes with SQLite, with the same settings."""
    stream = new_stream()
    names = (stream.namespace, stream.hub, stream.consumer_group, stream.partition_id)
    rows = [
        [(*names, event.sequence, event.body.decode()) for event in batch]
        for batch in _batches(batches, BATCH)
    ]
    connection = sqlite3.connect(path.with_name("bare.db"), isolation_level=None)
    connection.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; {CREATE}")

    began = time.perf_counter()
    for batch in rows:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO Bare VALUES (?, ?, ?, ?, ?, ?)", batch)
        connection.execute("COMMIT")
    seconds = time.perf_counter() - began
    connection.execute("DROP TABLE Bare")
    connection.close()
    return batches * BATCH / seconds


async def _commit_ms(store: EventStore, count: int) -> float:
    stream = new_stream()
    saved, times = await store.load(stream), []
    for commit in planned(_batches(count, TABLE_BATCH), TableRows.limits):
        began = time.perf_counter()
        saved = await store.commit(stream, saved, commit)
        times.append(time.perf_counter() - began)
    return 1000 * median(times[1:])  # The first commit also registers the stream.


async def _transaction_ms(connection: StorageConnection, count: int) -> float:
    """The rows of the commits, written by the client alone, unconditionally and unchecked."""
    stream, times = new_stream(), []
    client = TableClient.from_connection_string(
        connection.connection_string, EVENTS, transport=lean_transport()
    )
    async with client:
        for commit in planned(_batches(count, TABLE_BATCH), TableRows.limits):
            operations = _operations(stream, commit)
            began = time.perf_counter()
            await client.submit_transaction(operations)
            times.append(time.perf_counter() - began)
    return 1000 * median(times[1:])


def _operations(stream: Stream, commit: Commit) -> list[tuple[str, dict[str, object]]]:
    partition, writes = joined(*stream.place), commit_writes(commit, None)
    operations = [each for write in writes for each in operations_of(partition, write)]
    return [("create" if n else "upsert", each.row) for n, each in enumerate(operations)]


# --- cost per event ---------------------------------------------------------------------------


async def _costs(counts: Sequence[int]) -> list[Measurement]:
    """The cost of the last events before each count, in one stream of one growing file."""
    costs: list[float] = []
    async with sqlite_store() as (store, _):
        stream, done = new_stream(), 0
        reader = consumer(store, stream)
        for count in counts:
            measured = min(COST_EVENTS, count // 2)
            for until, timed in ((count - measured, False), (count, True)):
                each = _chunks(events(until - done, done), BATCH)
                began = time.process_time()
                for batch in each:
                    await process_batch(batch, reader)
                done = until
                if timed:
                    costs.append(1e6 * (time.process_time() - began) / measured)
    note = f"CPU time; baseline: the same in a store of {counts[0]:,} events"
    return [
        Measurement(
            f"ingestion_stores.cost_at_{count}", cost, "µs/event", costs[0], "ratio ≤ 1.3", note
        )
        for count, cost in zip(counts[1:], costs[1:], strict=True)
    ]


def _batches(count: int, size: int) -> list[list[Event]]:
    return _chunks(events(count * size), size)


def _chunks(of: Sequence[Event], size: int) -> list[list[Event]]:
    return [list(of[start : start + size]) for start in range(0, len(of), size)]


if __name__ == "__main__":
    largest = int(sys.argv[1]) if len(sys.argv) > 1 else COUNTS[-1]
    steps = [*[count for count in COUNTS if count < largest], largest]
    for measurement in asyncio.run(_costs(steps)):
        print(measurement.line, flush=True)
