"""What was told, as rows of the table ``Notifications``: kind and subject are the keys.

The partition ``!look`` has a row for each source: up to when it was looked through. These rows have
the columns of the others, for versions that know no looks read them too.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

from shared.adapters.azure.transport import server_time
from shared.adapters.tables.table import RowConflict, Table
from shared.adapters.tables.values import key, text_fields, text_of
from shared.notifications.ports import Forgotten, Look, NotificationHistory
from shared.notifications.telling import Key, NotificationRecord, Telling
from shared.settings.connections import StorageConnection
from shared.values.redaction import redacting

TABLE_NAME = "Notifications"
LOOK = "!look"
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
FAR_AHEAD = datetime(2999, 12, 31, tzinfo=UTC)
"""Between the two all times can be reckoned with."""
TIMES = ("seen_until", "sent_at", "lasting_since")

log = logging.getLogger(__name__)


@redacting
class TableNotificationStore:
    """See Memories. A version is the row's ETag."""

    def __init__(self, connection: StorageConnection) -> None:
        self._table = Table(connection, TABLE_NAME)

    async def read(self) -> NotificationHistory:
        rows = await self._table.rows("PartitionKey ge @start", {"start": ""})
        told = [row for row in rows if row["PartitionKey"] != LOOK]
        looks = [row for row in rows if row["PartitionKey"] == LOOK]
        memories = filter(None, map(_memory_or_none, told))
        return NotificationHistory(dict(memories), server_time(), dict(map(_look, looks)))

    async def remember(self, telling: Telling) -> None:
        await self._put(_row(telling), telling.memory.version)

    async def looked(self, source: str, look: Look) -> None:
        row = {"kind": LOOK, "subject": source, "seen_until": look.until.isoformat()}
        await self._put({"PartitionKey": LOOK, "RowKey": key(source), **row}, look.version)

    async def _put(self, row: dict[str, Any], version: str | None) -> None:
        try:
            await self._table.put_marked(row, version)
        except RowConflict as error:
            raise Forgotten(row["kind"], row["subject"]) from error

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


def _memory_or_none(row: Any) -> tuple[Key, NotificationRecord] | None:
    """Of a row that cannot be read nothing is remembered: it is told of once more."""
    try:
        return _memory(row)
    except Exception as error:  # whatever another version, or a person, may have written there
        where = f"{row['PartitionKey']}/{row['RowKey']}"
        log.warning("[memory_unreadable] %s: %s: %s", where, type(error).__name__, error)
        named = isinstance(row.get("kind"), str) and isinstance(row.get("subject"), str)
        version = row.metadata["etag"]
        return (
            ((row["kind"], row["subject"]), NotificationRecord(version=version)) if named else None
        )


def _look(row: Any) -> tuple[str, Look]:
    source, version = str(row.get("subject")), row.metadata["etag"]
    try:
        return source, Look(_time(row["seen_until"]), version)
    except Exception as error:  # as above: the source is looked through anew
        log.warning("[look_unreadable] %s: %s: %s", row["RowKey"], type(error).__name__, error)
        return source, Look(LONG_AGO, version)


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    if not LONG_AGO <= time.astimezone(UTC) <= FAR_AHEAD:
        raise ValueError(f"{text} is not from {LONG_AGO:%Y} to {FAR_AHEAD:%Y}")
    return time


def _memory(row: Any) -> tuple[Key, NotificationRecord]:
    times = {name: _time(row[name]) for name in TIMES if row.get(name)}
    seen = tuple((text_of(row, "seen") or "").split())
    return (row["kind"], row["subject"]), NotificationRecord(
        seen, version=row.metadata["etag"], **times
    )
