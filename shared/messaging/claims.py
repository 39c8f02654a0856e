"""Who processes a data set for a period: decided once, by a row that can be inserted once.

Duplicate detection forgets; the row does not. A message that slips past the window finds the work
done and does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from shared.messaging.processing import Work


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim as it was read. ``holder`` names a message; ``version`` is the store's mark."""

    work: Work
    holder: str
    taken_at: datetime
    done_at: datetime | None = None
    version: Any = None


class Verdict(Enum):
    """What a message may do in view of the claim that stands."""

    WORK = "work"
    TAKE_OVER = "take over"
    LEAVE = "leave"
    WAIT = "wait"


def judge(claim: Claim, holder: str, now: datetime, lease: timedelta) -> Verdict:
    """What the message ``holder`` may do.

    1. Work that is done is left alone.
    2. The holder works, also when its message comes again because it failed or crashed before.
    3. Others wait, and take over when the holder has been silent for longer than the lease.
    """
    if claim.done_at is not None:
        return Verdict.LEAVE
    if claim.holder == holder:
        return Verdict.WORK
    return Verdict.WAIT if now - claim.taken_at < lease else Verdict.TAKE_OVER
