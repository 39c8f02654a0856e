"""The in-memory adapter of NotificationStore: it records which notifications were sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from shared.notifications.ports import NotificationConflict, NotificationHistory, SourceProgress
from shared.notifications.selection import Key, Notification, NotificationRecord


class MemoryNotificationStore:
    """See NotificationStore."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._records: dict[Key, NotificationRecord] = {}
        self._progress: dict[str, SourceProgress] = {}
        self._writes = 0

    async def read(self) -> NotificationHistory:
        return NotificationHistory(dict(self._records), self._clock(), dict(self._progress))

    async def save(self, notification: Notification) -> None:
        current = self._records.get(notification.key)
        if (current.version if current else None) != notification.record.version:
            raise NotificationConflict(notification.key)
        self._writes += 1
        self._records[notification.key] = replace(notification.record, version=str(self._writes))

    async def save_progress(self, source: str, progress: SourceProgress) -> None:
        current = self._progress.get(source)
        if (current.version if current else None) != progress.version:
            raise NotificationConflict(source)
        self._writes += 1
        self._progress[source] = replace(progress, version=str(self._writes))

    async def close(self) -> None: ...
