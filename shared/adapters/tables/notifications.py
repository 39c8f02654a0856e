"""Records in the table ``Notifications`` which notifications were sent, by kind and subject.

The partition ``!look`` has a row for each source: the time up to which the source was processed.
These rows have the same columns as the others, because older versions of the app read them as
notifications.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

from shared.adapters.azure.transport import server_time
from shared.adapters.tables.table import RowConflict, Table, key, text_fields, text_of
from shared.notifications.ports import NotificationConflict, NotificationHistory, SourceProgress
from shared.notifications.selection import Key, Notification, NotificationRecord
from shared.settings.connections import StorageConnection
from shared.values.redaction import redacting

TABLE_NAME = "Notifications"
LOOK = "!look"
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
FAR_AHEAD = datetime(2999, 12, 31, tzinfo=UTC)
"""Times from LONG_AGO to FAR_AHEAD are accepted, because adding a duration to them cannot overflow.
"""
TIMES = ("seen_until", "sent_at", "lasting_since")

log = logging.getLogger(__name__)


@redacting
class TableNotificationStore:
    """See NotificationStore. Versions are the rows' ETags."""

    def __init__(self, connection: StorageConnection) -> None:
        self._table = Table(connection, TABLE_NAME)

    async def read(self) -> NotificationHistory:
        rows = await self._table.rows("PartitionKey ge @start", {"start": ""})
        sent = [row for row in rows if row["PartitionKey"] != LOOK]
        progress = [row for row in rows if row["PartitionKey"] == LOOK]
        records = filter(None, map(_record_or_none, sent))
        return NotificationHistory(dict(records), server_time(), dict(map(_progress, progress)))

    async def save(self, notification: Notification) -> None:
        await self._put(_row(notification), notification.record.version)

    async def save_progress(self, source: str, progress: SourceProgress) -> None:
        row = {"kind": LOOK, "subject": source, "seen_until": progress.until.isoformat()}
        await self._put({"PartitionKey": LOOK, "RowKey": key(source), **row}, progress.version)

    async def _put(self, row: dict[str, Any], version: str | None) -> None:
        try:
            await self._table.put_marked(row, version)
        except RowConflict as error:
            raise NotificationConflict(row["kind"], row["subject"]) from error

    async def close(self) -> None:
        await self._table.close()


def _row(notification: Notification) -> dict[str, Any]:
    kind, subject = notification.key
    record = notification.record
    times = {name: getattr(record, name) for name in TIMES}
    return {
        "PartitionKey": key(kind),
        "RowKey": key(subject),
        "kind": kind,
        "subject": subject,
        "headline": notification.news.headline[:500],
        **text_fields("seen", " ".join(record.seen)),
        **{name: time.isoformat() for name, time in times.items() if time is not None},
    }


def _record_or_none(row: Any) -> tuple[Key, NotificationRecord] | None:
    """The record of a row. If the row cannot be read, the record is empty, so that its subject is
    notified once more. None if not even the subject can be read.
    """
    try:
        return _record(row)
    except Exception as error:  # another version or an operator may have written anything
        where = f"{row['PartitionKey']}/{row['RowKey']}"
        log.warning("[memory_unreadable] %s: %s: %s", where, type(error).__name__, error)
        named = isinstance(row.get("kind"), str) and isinstance(row.get("subject"), str)
        version = row.metadata["etag"]
        return (
            ((row["kind"], row["subject"]), NotificationRecord(version=version)) if named else None
        )


def _progress(row: Any) -> tuple[str, SourceProgress]:
    source, version = str(row.get("subject")), row.metadata["etag"]
    try:
        return source, SourceProgress(_time(row["seen_until"]), version)
    except Exception as error:  # as above; the source is then processed again from the start
        log.warning("[look_unreadable] %s: %s: %s", row["RowKey"], type(error).__name__, error)
        return source, SourceProgress(LONG_AGO, version)


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    if not LONG_AGO <= time.astimezone(UTC) <= FAR_AHEAD:
        raise ValueError(f"{text} is not between {LONG_AGO:%Y} and {FAR_AHEAD:%Y}")
    return time


def _record(row: Any) -> tuple[Key, NotificationRecord]:
    times = {name: _time(row[name]) for name in TIMES if row.get(name)}
    seen = tuple((text_of(row, "seen") or "").split())
    return (row["kind"], row["subject"]), NotificationRecord(
        seen, version=row.metadata["etag"], **times
    )
