"""Until when what handlers kept is kept, and its removal.

Rows of effects have no time of their own, which would cost each event. Instead a mark is written
now and then beside the checkpoint; what a mark of long ago covers is older than the mark. All of it
is behind the checkpoint, which is what knows a replay again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shared.ingestion.errors import IngestionError
from shared.ingestion.events.ports import RetentionStore
from shared.ingestion.model import Mark, Stream

MARKS_KEPT = 10
"""So many are in the time that rows are kept: they go up to a tenth of it later than they could."""


@dataclass(frozen=True, slots=True)
class Cleanup:
    """What to do about a stream's age: a mark to write, a number up to which effects are to go,
    and marks that are over once they are gone."""

    mark: Mark | None = None
    purge_to: int | None = None
    over: tuple[Mark, ...] = ()


def plan_cleanup(marks: Sequence[Mark], sequence: int, now: datetime, keep: timedelta) -> Cleanup:
    """For a stream whose checkpoint is at ``sequence``; marks by time, times of the store."""
    due = not marks or now - marks[-1].at >= keep / MARKS_KEPT
    over = tuple([mark for mark in marks if now - mark.at >= keep])
    covered = max([mark.sequence for mark in over], default=None)
    return Cleanup(
        Mark(now, sequence) if due else None,
        None if covered is None else min(covered, sequence),
        over,
    )


log = logging.getLogger(__name__)

EVERY_SECONDS = 3600
AGAIN_SECONDS = 60
"""After a failure, or where the time was not enough."""
SECONDS_MAX = 20
"""Of one call: the timer has other work."""
ROWS_AT_ONCE = 100


@dataclass(slots=True)
class EffectRetention:
    """``elapsed`` counts seconds, from anywhere. Several at a time do no harm to each other."""

    store: RetentionStore
    keep: timedelta | None
    """None: for ever."""
    elapsed: Callable[[], float]
    due: float = 0
    """When to look again; at once when the process starts."""

    async def run(self) -> int:
        """Look after all streams if it is time to; answers how many effects were removed.

        What fails is told in the log and tried again: nothing depends on it.
        """
        began = self.elapsed()
        if self.keep is None or began < self.due:
            return 0
        self.due, removed = began + AGAIN_SECONDS, 0
        try:
            for stream in await self.store.streams():
                removed += await self._look_after(stream, self.keep, began + SECONDS_MAX)
        except IngestionError as error:
            log.warning("[not_tidied] %s", error)
        else:
            if self.elapsed() < began + SECONDS_MAX:
                self.due = began + EVERY_SECONDS
        if removed:
            log.info("[tidied] %s effect(s) older than %s days", removed, self.keep.days)
        return removed

    async def _look_after(self, stream: Stream, keep: timedelta, until: float) -> int:
        saved = await self.store.load(stream)
        if saved.checkpoint is None:
            return 0
        marks = await self.store.marks(stream)
        what = plan_cleanup(marks, saved.checkpoint.sequence, saved.read_at, keep)
        if what.mark is not None:
            await self.store.put_mark(stream, what.mark)
        removed = 0
        while what.purge_to is not None and self.elapsed() < until:
            gone = await self.store.purge_effects(stream, what.purge_to, ROWS_AT_ONCE)
            removed += gone
            if gone < ROWS_AT_ONCE:
                await self.store.remove_marks(stream, what.over)
                break
        return removed
