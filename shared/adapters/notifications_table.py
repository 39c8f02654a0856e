"""What was told, as rows of the table ``Notifications``: kind and subject are the keys."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from shared.adapters.table import RowConflict, Table
from shared.adapters.table_keys import key
from shared.adapters.table_values import text_fields, text_of
from shared.adapters.transport import server_time
from shared.connections import StorageConnection
from shared.notifications.ports import Forgotten, Remembered
from shared.notifications.telling import Key, Memory, Telling
from shared.redaction import redacting

TABLE_NAME = "Notifications"
TIMES = ("seen_until", "sent_at", "lasting_since")


@redacting
class TableMemories:
    """See Memories. A version is the row's ETag."""

    def __init__(self, connection: StorageConnection) -> None:
        self._table = Table(connection, TABLE_NAME)

    async def read(self) -> Remembered:
        rows = await self._table.rows("PartitionKey ge @start", {"start": ""})
        return Remembered(dict(map(_memory, rows)), server_time())

    async def remember(self, telling: Telling) -> None:
        try:
            await self._table.put(_row(telling), telling.memory.version)
        except RowConflict as error:
            raise Forgotten(telling.key) from error

    async def close(self) -> None:
        await self._table.close()


def _row(telling: Telling) -> dict[str, Any]:
    kind, subject = telling.key
    memory = telling.memory
    times = {name: getattr(memory, name) for name in TIMES}
    return {
        "PartitionKey": key(kind),
        "RowKey": key(subject),
        "kind": kind,
        "subject": subject,
        "headline": telling.news.headline[:500],
        **text_fields("seen", " ".join(memory.seen)),
        **{name: time.isoformat() for name, time in times.items() if time is not None},
    }


def _memory(row: Any) -> tuple[Key, Memory]:
    times = {name: datetime.fromisoformat(row[name]) for name in TIMES if row.get(name)}
    seen = tuple((text_of(row, "seen") or "").split())
    return (row["kind"], row["subject"]), Memory(seen, version=row.metadata["etag"], **times)
