"""The last hours of the log, kept between requests: a page that looks again reads what is new."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import datetime, timedelta

from shared.autoscaling.ports import StateStore
from shared.autoscaling.state import LogEntry

LINES_MAX = 20_000
"""Of one resource: a day of decisions every 15 s on three metrics."""
OVERLAP = timedelta(seconds=30)
"""Lines of one time are not written at once; those of the last moments are read again."""


class RecentLog:
    """Lines by resource, newest first, from the store and from memory."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._kept: dict[str, dict[tuple[datetime, str], LogEntry]] = defaultdict(dict)
        self._from: dict[str, datetime] = {}
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def lines(self, resource_name: str, since: datetime) -> list[LogEntry]:
        """All lines since then, but no more than LINES_MAX of the newest."""
        async with self._locks[resource_name]:
            await self._catch_up(resource_name, since)
        kept = self._kept[resource_name].values()
        return sorted((e for e in kept if e.time >= since), key=lambda e: e.time, reverse=True)

    async def _catch_up(self, name: str, since: datetime) -> None:
        """Lines are kept without a gap, from the earliest time asked for; or the newest, at most.

        So where the caller looks before that time, or only after the newest line, all is read anew.
        """
        kept, start = self._kept[name], since
        newest = max((time for time, _ in kept), default=None)
        if newest is not None and self._from[name] <= since <= newest:
            start = newest - OVERLAP
        else:
            kept.clear()
            self._from[name] = since
        for line in await self._store.log(name, LINES_MAX, since=start):
            kept[line.time, line.entry_id] = line
        for key in sorted(kept)[: max(len(kept) - LINES_MAX, 0)]:
            del kept[key]
