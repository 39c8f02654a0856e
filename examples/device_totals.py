"""Totals per device, counted exactly once in a table of your own.

The settings must name an event hub and a database. In a Function App, set
``IngestionHandler=examples.device_totals:handling``. Without a Function App, run

``python -m shared run --handler examples.device_totals:handling``

Two functions make the totals exact. ``handle`` turns an event into an effect, and writes nothing:
it may run more than once for an event. ``add_totals`` writes the effects, in the same transaction
that moves the checkpoint. If that transaction is committed, its events are never handled again; if
not, it has written nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from sqlalchemy import BigInteger, Column, Connection, MetaData, String, Table
from sqlalchemy.dialects import postgresql, sqlite

from shared.ingestion.events.handling import Handling
from shared.ingestion.model import Effect, Event, Stream

own = MetaData()
totals = Table(
    "DeviceTotal",
    own,
    Column("Device", String(100), key="device", primary_key=True),
    Column("Events", BigInteger, key="events", nullable=False),
    Column("Units", BigInteger, key="units", nullable=False),
)


async def handle(event: Event) -> Effect:
    """Read a body such as ``{"device": "d-1", "units": 3}``. Any other body is dead-lettered."""
    reading = json.loads(event.body)
    device, units = str(reading["device"]), int(reading["units"])
    return Effect(event.sequence, json.dumps({"device": device, "units": units}))


def add_totals(connection: Connection, _stream: Stream, effects: Sequence[Effect]) -> None:
    """Add the readings of a commit to the totals.

    The rows are sorted by device, so that concurrent transactions cannot deadlock.
    """
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


handling = Handling(lambda _stream: handle, write_in_transaction=add_totals, tables=own)
