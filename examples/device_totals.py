"""Totals per device, exactly once: tables of your own in the transaction that accounts for events.

With an event hub and a database in the settings, in a Function App by the setting
``IngestionHandler=examples.device_totals:handling``, or without one by

``python -m shared run --handler examples.device_totals:handling``

Two parts make it exact. ``handle`` says what an event leads to, without doing it: it may run more
than once. ``add_totals`` does it, in the transaction that moves the checkpoint: it counts only
where that transaction is committed, and then no event of it is ever handled again.
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


handling = Handling(lambda _stream: handle, take_part=add_totals, tables=own)
