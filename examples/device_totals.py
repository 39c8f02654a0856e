"""Totals per device, exactly once: tables of one's own in the transaction that accounts for events.

``python -m examples.device_totals`` feeds a partition of 1,000 events, most of them several
times, into an embedded database, and prints totals that are exact. With a URL of PostgreSQL as
its argument it does the same there.

Two parts make it exact. The handler says what an event leads to, without doing it: it may run
more than once. ``add_totals`` does it, in the transaction that moves the checkpoint: it counts
only where that transaction stands, and then no event of it is ever handled again.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import uuid
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import BigInteger, Column, Connection, MetaData, String, Table, select
from sqlalchemy.dialects import postgresql, sqlite

from shared.adapters.ingestion_memory import MemoryHubReader
from shared.adapters.ingestion_retry import JitteredRetrying
from shared.adapters.ingestion_sql import SqlIngestionStore
from shared.adapters.ingestion_sql_schema import metadata
from shared.adapters.sql import Sql
from shared.ingestion.accounting import Writer
from shared.ingestion.flows.process_batch import Consumer, run
from shared.ingestion.flows.settle import side_by_side
from shared.ingestion.model import Effect, Event, Stream

STREAM = Stream("ns", "devices", "$Default", "0")

own = MetaData()
totals = Table(
    "DeviceTotal",
    own,
    Column("Device", String(100), key="device", primary_key=True),
    Column("Events", BigInteger, key="events", nullable=False),
    Column("Units", BigInteger, key="units", nullable=False),
)


async def handle(event: Event) -> Effect:
    """``{"device": "d-1", "units": 3}``; anything else is poison, a dead letter."""
    reading = json.loads(event.body)
    device, units = str(reading["device"]), int(reading["units"])
    return Effect(event.sequence, json.dumps({"device": device, "units": units}))


def add_totals(connection: Connection, _stream: Stream, effects: Sequence[Effect]) -> None:
    """Add a commit's readings; by device, so that no two transactions wait for each other."""
    events, units = Counter[str](), Counter[str]()
    for effect in effects:
        reading = json.loads(effect.value or "{}")
        events[reading["device"]] += 1
        units[reading["device"]] += reading["units"]
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    new = insert(totals)
    added = {name: totals.c[name] + new.excluded[name] for name in ("events", "units")}
    upsert = new.on_conflict_do_update(index_elements=[totals.c.device], set_=added)
    rows = [
        {"device": each, "events": events[each], "units": units[each]} for each in sorted(events)
    ]
    connection.execute(upsert, rows)


async def read_totals(sql: Sql) -> dict[str, tuple[int, int]]:
    """Events and units of each device."""
    rows = await sql.read(lambda c: c.execute(select(totals)).all())
    return {row.device: (row.events, row.units) for row in rows}


def consumer(sql: Sql, hub: MemoryHubReader, stream: Stream = STREAM) -> Consumer:
    return Consumer(
        stream=stream,
        writer=Writer("example"),
        store=SqlIngestionStore(sql, add_totals),
        hub=hub,
        handle=handle,
        retry=JitteredRetrying(),
        together=side_by_side(4),
        new_txid=lambda: uuid.uuid4().hex,
    )


def readings(count: int) -> list[Event]:
    now = datetime.now(UTC)
    devices = [f"d-{n}" for n in range(5)]
    return [
        Event(n, str(n), now, json.dumps({"device": devices[n % 5], "units": n}).encode())
        for n in range(count)
    ]


async def main(url: str) -> None:
    sql, hub, events = Sql(url, metadata, own), MemoryHubReader(), readings(1000)
    hub.add(STREAM, *events)
    delivery = consumer(sql, hub)
    for start in range(0, len(events), 50):
        again = random.randint(0, start)  # the host starts over, as it does after a crash
        await run(events[again : start + 50], delivery)
    for device, (count, units) in sorted((await read_totals(sql)).items()):
        print(f"{device}: {count} events, {units} units")
    await sql.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite://"))
