"""Until when what handlers kept is kept: by marks of how far a stream was, and when. Pure.

Rows of effects have no time of their own, which would cost each event. Instead a mark is written
now and then beside the checkpoint; what a mark of long ago covers is older than the mark. All of it
is behind the checkpoint, which is what knows a replay again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shared.ingestion.model import Mark

MARKS_KEPT = 10
"""So many are in the time that rows are kept: they go up to a tenth of it later than they could."""


@dataclass(frozen=True, slots=True)
class Tidying:
    """What to do about a stream's age: a mark to write, a number up to which effects are to go,
    and marks that are over once they are gone."""

    mark: Mark | None = None
    purge_to: int | None = None
    over: tuple[Mark, ...] = ()


def tidy(marks: Sequence[Mark], sequence: int, now: datetime, keep: timedelta) -> Tidying:
    """For a stream whose checkpoint is at ``sequence``; marks by time, times of the store."""
    due = not marks or now - marks[-1].at >= keep / MARKS_KEPT
    over = tuple([mark for mark in marks if now - mark.at >= keep])
    covered = max([mark.sequence for mark in over], default=None)
    return Tidying(
        Mark(now, sequence) if due else None,
        None if covered is None else min(covered, sequence),
        over,
    )
