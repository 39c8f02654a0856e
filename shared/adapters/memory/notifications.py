"""What was told, in memory: the twin of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from shared.notifications.ports import Forgotten, Look, NotificationHistory
from shared.notifications.telling import Key, NotificationRecord, Telling


class MemoryNotificationStore:
    """See Memories."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._kept: dict[Key, NotificationRecord] = {}
        self._looks: dict[str, Look] = {}
        self._writes = 0

    async def read(self) -> NotificationHistory:
        return NotificationHistory(dict(self._kept), self._clock(), dict(self._looks))

    async def remember(self, telling: Telling) -> None:
        kept = self._kept.get(telling.key)
        if (kept.version if kept else None) != telling.memory.version:
            raise Forgotten(telling.key)
        self._writes += 1
        self._kept[telling.key] = replace(telling.memory, version=str(self._writes))

    async def looked(self, source: str, look: Look) -> None:
        kept = self._looks.get(source)
        if (kept.version if kept else None) != look.version:
            raise Forgotten(source)
        self._writes += 1
        self._looks[source] = replace(look, version=str(self._writes))

    async def close(self) -> None: ...
