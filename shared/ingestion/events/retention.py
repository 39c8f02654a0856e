"""Removes the effects of old events. Effects have no time of their own, so now and then a mark
records the checkpoint's position: all effects up to there are at least as old."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shared.ingestion.errors import IngestionError, RowUnreadable
from shared.ingestion.model import Mark, Stream
from shared.ingestion.store.events import EventStore

MARKS_KEPT = 10
"""The number of marks within the retention time. Effects are removed up to a tenth of it late."""


@dataclass(frozen=True, slots=True)
class Cleanup:
    """A mark to write for one stream, up to where to remove effects, and marks to delete."""

    mark: Mark | None = None
    purge_to: int | None = None
    expired: tuple[Mark, ...] = ()


def plan_cleanup(marks: Sequence[Mark], sequence: int, now: datetime, keep: timedelta) -> Cleanup:
    """Plan the cleanup of a stream. The marks are sorted, and all times are the store's."""
    due = not marks or now - marks[-1].at >= keep / MARKS_KEPT
    expired = tuple([mark for mark in marks if now - mark.at >= keep])
    covered = max([mark.sequence for mark in expired], default=None)
    return Cleanup(
        Mark(now, sequence) if due else None,
        None if covered is None else min(covered, sequence),
        expired,
    )


log = logging.getLogger(__name__)

EVERY_SECONDS = 3600
AGAIN_SECONDS = 60
"""Seconds to wait after a failure, or after a call that ran out of time."""
SECONDS_MAX = 20
"""The longest duration of one call, because its timer has other work."""
ROWS_AT_ONCE = 100


@dataclass(slots=True)
class EffectRetention:
    """Removes old effects now and then, also beside other instances."""

    store: EventStore
    keep: timedelta | None
    elapsed: Callable[[], float]
    due: float = 0

    async def clean_up(self) -> int:
        """Clean up all streams if it is due, and return how many effects were removed. A failure is
        logged and tried again. A row that cannot be read stops only its own stream."""
        began = self.elapsed()
        if self.keep is None or began < self.due:
            return 0
        self.due, removed = began + AGAIN_SECONDS, 0
        try:
            for stream in await self.store.streams():
                try:
                    removed += await self._clean_up(stream, self.keep, began + SECONDS_MAX)
                except RowUnreadable as error:
                    log.warning("[not_tidied] %s", error)
        except IngestionError as error:
            log.warning("[not_tidied] %s", error)
        else:
            if self.elapsed() < began + SECONDS_MAX:
                self.due = began + EVERY_SECONDS
        if removed:
            log.info("[tidied] %s effect(s) older than %s days", removed, self.keep.days)
        return removed

    async def _clean_up(self, stream: Stream, keep: timedelta, until: float) -> int:
        saved = await self.store.load(stream)
        if saved.checkpoint is None:
            return 0
        marks = await self.store.marks(stream)
        cleanup = plan_cleanup(marks, saved.checkpoint.sequence, saved.read_at, keep)
        if cleanup.mark is not None:
            await self.store.put_mark(stream, cleanup.mark)
        removed = 0
        while cleanup.purge_to is not None and self.elapsed() < until:
            purged = await self.store.purge_effects(stream, cleanup.purge_to, ROWS_AT_ONCE)
            removed += purged
            if purged < ROWS_AT_ONCE:
                await self.store.remove_marks(stream, cleanup.expired)
                break
        return removed
