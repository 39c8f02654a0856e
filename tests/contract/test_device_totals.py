"""The totals of the example device_totals are exact despite crashes and lost replies."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

import pytest
from sqlalchemy import Connection, delete, func, select
from sqlalchemy.exc import OperationalError

from examples.device_totals import add_totals, handle, own, totals
from local.twins.event_hub import MemoryHubReader
from shared.azure.retry import JitteredRetrying
from shared.ingestion.errors import IngestionError
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.process_batch import Consumer, process_batch
from shared.ingestion.model import Effect, Event, Stream
from shared.ingestion.store.events import EventStore
from shared.ingestion.store.sql import SqlRows
from shared.ingestion.store.sql_engine import Sql
from shared.ingestion.store.sql_schema import effects, metadata
from shared.values.concurrency import task_runner

T = TypeVar("T")
EVENTS = 300
FAULT_RATE = 0.15


class Crash(BaseException):
    """The end of the process."""


class Faults:
    """Random faults before and after the commits of a database, and while totals are written."""

    def __init__(self, seed: int, sql: Sql) -> None:
        self.random = random.Random(seed)
        self.struck: Counter[str] = Counter()
        self.active = True
        dialect = sql.engine.dialect
        commit = dialect.do_commit

        def do_commit(connection: object) -> None:
            self.strike("crash before the commit", Crash())
            commit(connection)  # type: ignore[arg-type]  # a DBAPI connection of the dialect
            self.strike("crash after the commit", Crash())
            self.strike("lost reply", OperationalError("COMMIT", None, ConnectionError("lost")))

        dialect.do_commit = do_commit  # type: ignore[method-assign, assignment]

    def strike(self, name: str, error: BaseException) -> None:
        if self.active and self.random.random() < FAULT_RATE:
            self.struck[name] += 1
            raise error

    def add_totals(
        self, connection: Connection, stream: Stream, new_effects: Sequence[Effect]
    ) -> None:
        add_totals(connection, stream, new_effects)
        self.strike("crash among the totals", Crash())
        self.strike("bug among the totals", ZeroDivisionError("a bug"))


@pytest.fixture(params=["sqlite", "postgres"])
async def sql(request: pytest.FixtureRequest) -> AsyncIterator[Sql]:
    # Work runs inline, because a thread would not pass on a BaseException.
    sql = Sql(request.getfixturevalue(f"{request.param}_url"), metadata, own, run=inline)
    await sql.write(lambda c: c.execute(delete(totals)))
    yield sql
    await sql.close()


async def inline(work: Callable[[], T]) -> T:
    return work()


def readings(count: int) -> list[Event]:
    now = datetime.now(UTC)
    return [
        Event(n, str(n), now, json.dumps({"device": f"d-{n % 5}", "units": n}).encode())
        for n in range(count)
    ]


async def read_totals(sql: Sql) -> dict[str, tuple[int, int]]:
    """The numbers of events and units, by device."""
    rows = await sql.read(lambda c: c.execute(select(totals)).all())
    return {row.device: (row.events, row.units) for row in rows}


def consumer(sql: Sql, hub: MemoryHubReader, stream: Stream) -> Consumer:
    return Consumer(
        stream=stream,
        writer=Writer("example"),
        store=EventStore(SqlRows(sql), add_totals),
        hub=hub,
        handle=handle,
        retry=JitteredRetrying(),
        run_tasks=task_runner(4),
        new_txid=lambda: uuid.uuid4().hex,
    )


def exact(events: Sequence[Event]) -> dict[str, tuple[int, int]]:
    totals_by_device: dict[str, tuple[int, int]] = {}
    for event in events:
        reading = json.loads(event.body)
        count, units = totals_by_device.get(reading["device"], (0, 0))
        totals_by_device[reading["device"]] = (count + 1, units + reading["units"])
    return totals_by_device


def hostile(sql: Sql, hub: MemoryHubReader, stream: Stream, faults: Faults) -> Consumer:
    return replace(
        consumer(sql, hub, stream),
        store=EventStore(SqlRows(sql), write_in_transaction=faults.add_totals),
    )


@pytest.mark.parametrize("seed", range(3))
async def test_totals_are_exact_under_crashes_and_lost_replies(sql: Sql, seed: int) -> None:
    stream = Stream("ns", f"devices-{uuid.uuid4().hex[:8]}", "$Default", "0")
    hub, events = MemoryHubReader(), readings(EVENTS)
    hub.add(stream, *events)
    faults = Faults(seed, sql)
    position = 0
    for _delivery in range(100):
        batch = events[position : position + 20]
        with suppress(Crash, IngestionError, ZeroDivisionError):
            await process_batch(batch, hostile(sql, hub, stream, faults))
        back = faults.random.randint(-20, 20)  # the host repeats or skips events
        position = min(max(position + 10 + back, 0), EVENTS - 1)
    faults.active = False
    await process_batch(events, hostile(sql, hub, stream, faults))
    assert await read_totals(sql) == exact(events)
    assert len(faults.struck) == 5, faults.struck


async def test_a_redriven_event_counts_once(sql: Sql) -> None:
    stream = Stream("ns", f"devices-{uuid.uuid4().hex[:8]}", "$Default", "0")
    hub, events = MemoryHubReader(), readings(3)
    events[1] = replace(events[1], body=b"not json")
    hub.add(stream, *events)
    await process_batch(events, consumer(sql, hub, stream))
    store = EventStore(SqlRows(sql), add_totals)
    (stored,) = await store.dead_letters(stream, None, 9)
    assert await read_totals(sql) == exact([events[0], events[2]])
    await store.redrive(stored, Effect(1, json.dumps({"device": "d-1", "units": 5})))
    with pytest.raises(IngestionError):
        await store.redrive(stored, Effect(1, json.dumps({"device": "d-1", "units": 5})))
    assert (await read_totals(sql))["d-1"] == (1, 5)


async def test_without_faults_each_effect_is_a_row(sql: Sql) -> None:
    stream = Stream("ns", f"devices-{uuid.uuid4().hex[:8]}", "$Default", "0")
    hub, events = MemoryHubReader(), readings(250)
    hub.add(stream, *events)
    await process_batch(events, consumer(sql, hub, stream))
    count = select(func.count()).select_from(effects).where(effects.c.hub == stream.hub)
    assert await sql.read(lambda c: c.execute(count).scalar_one()) == 250
