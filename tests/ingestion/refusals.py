"""A reader whose handler makes effects that every engine of the store refuses for ever.

Table Storage refuses the long id of such an effect's message, a SQL database the row in the user's
own table, and the store in memory its value. The handler also meets events that are damaged, and
effects that fit into no transaction or no queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import count

from sqlalchemy import BigInteger, CheckConstraint, Column, Connection, MetaData, Table, Text
from sqlalchemy import insert as insert_into

from local.twins.event_hub import MemoryHubReader
from local.twins.ingestion import MemoryIngestionStore
from local.twins.rows import MemoryRows
from shared.ingestion.errors import BadEvent, RowRefused
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.process_batch import Consumer
from shared.ingestion.model import Effect, Event, FailureKind, OutboxMessage, Stream, message_id
from shared.ingestion.store.events import EventStore
from shared.ingestion.store.rows import CommitLimits
from shared.values.concurrency import task_runner
from tests.builders import thrice

REFUSED = "refused for ever"
ROWS_MAX = 6
"""The rows of a transaction of the reader, so that most batches need several."""
DEAD = {
    "refused": FailureKind.POISON,
    "damaged": FailureKind.POISON,
    "not bytes": FailureKind.NOT_BYTES,
    "too many rows": FailureKind.TOO_LARGE,
    "too large for the queue": FailureKind.TOO_LARGE,
}
"""The events that become dead letters."""
KINDS = (*["refused"] * 4, *DEAD, "value", "messages", "nothing")
REFUSED_MAX = 4
"""After five refusals in a row, no single event is at fault."""

own = MetaData()
own_rows = Table(
    "OwnRow",
    own,
    Column("stream", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("length", BigInteger, CheckConstraint('"length" >= 0'), nullable=False),
)


def write_own_rows(connection: Connection, stream: Stream, effects: Sequence[Effect]) -> None:
    """Write a row for each value. The database refuses that of a refused effect."""
    rows = [
        {
            "stream": stream.key,
            "number": each.sequence,
            "length": -1 if each.value == REFUSED else len(each.value),
        }
        for each in effects
        if each.value is not None
    ]
    if rows:
        connection.execute(insert_into(own_rows), rows)


class RefusingStore(MemoryIngestionStore):
    """Refuses each transaction with a refused effect as a whole, after all other checks."""

    def record(self, rows: MemoryRows, stream: Stream, effects: Sequence[Effect]) -> None:
        if any(each.value == REFUSED for each in effects):
            raise RowRefused(REFUSED)
        super().record(rows, stream, effects)


def reader(stream: Stream, store: EventStore, txid: str) -> Consumer:
    async def handle(event: Event) -> Effect:
        return effect_of(stream, event.sequence, event.body.decode())

    numbers, limited = count(), copy(store)
    limited.limits = CommitLimits(ROWS_MAX)
    return Consumer(
        stream,
        Writer("reader"),
        limited,
        MemoryHubReader(),
        handle,
        thrice,
        task_runner(4),
        lambda: f"{txid}.{next(numbers)}",
    )


def effect_of(stream: Stream, sequence: int, kind: str) -> Effect:
    """What the handler makes of an event whose body is its kind."""
    if kind == "damaged":
        raise BadEvent(kind)
    if kind == "refused":
        return Effect(sequence, REFUSED, (OutboxMessage("x" * 40_000, "text"),))
    if kind == "nothing":
        return Effect(sequence)
    body = "x" * 70_000 if kind == "too large for the queue" else "text"
    messages = {"value": 0, "too many rows": ROWS_MAX}.get(kind, 2)
    sent = [OutboxMessage(message_id(stream, sequence, n), body) for n in range(messages)]
    return Effect(sequence, "text" if kind == "value" else None, tuple(sent))
