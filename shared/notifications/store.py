"""Records in the table ``Notifications`` which notifications were sent."""

from __future__ import annotations

import logging
from typing import Any

from shared.notifications.ports import NotificationConflict, NotificationHistory
from shared.notifications.selection import Key, Notification, NotificationRecord
from shared.settings.connections import StorageConnection
from shared.storage.tables import RowConflict, Table, joined, key, long_fields, long_of
from shared.values.redaction import redacting
from shared.values.row_values import properties, value_of, zoned

TABLE_NAME = "Notifications"

log = logging.getLogger(__name__)


@redacting
class TableNotificationStore:
    """See NotificationStore. Versions are the rows' ETags."""

    def __init__(self, connection: StorageConnection) -> None:
        self._table = Table(connection, TABLE_NAME)

    async def read(self) -> NotificationHistory:
        records = filter(None, map(_record_or_none, await self._table.all_rows()))
        return NotificationHistory(dict(records), self._table.now())

    async def save(self, notification: Notification) -> None:
        try:
            await self._table.put_marked(_row(notification), notification.record.version)
        except RowConflict as error:
            raise NotificationConflict(*notification.key) from error

    async def close(self) -> None:
        await self._table.close()


def _row(notification: Notification) -> dict[str, Any]:
    kind, subject, *receiver = notification.key
    record = notification.record
    return {
        "PartitionKey": key(kind),
        "RowKey": joined(subject, *receiver),
        "kind": kind,
        "subject": subject,
        **dict(zip(["receiver"], receiver, strict=False)),
        "headline": notification.news.headline[:500],
        **long_fields("seen", " ".join(record.seen)),
        **properties(record, ("seen", "version"), times_as_text=True),
    }


def _record_or_none(row: Any) -> tuple[Key, NotificationRecord] | None:
    """A row's record: empty if unreadable, to notify once more; None if even the subject is."""
    receiver = [row["receiver"]] if "receiver" in row else []
    version = row.metadata["etag"]
    try:
        seen = tuple((long_of(row, "seen") or "").split())
        record = value_of(NotificationRecord, row, time=zoned, seen=seen, version=version)
        return (row["kind"], row["subject"], *receiver), record
    except Exception as error:  # another version or an operator may have written anything
        where = f"{row['PartitionKey']}/{row['RowKey']}"
        log.warning("[memory_unreadable] %s: %s: %s", where, type(error).__name__, error)
        found = (row.get("kind"), row.get("subject"), *receiver)
        named = all(isinstance(each, str) for each in found)
        return (found, NotificationRecord(version=version)) if named else None
