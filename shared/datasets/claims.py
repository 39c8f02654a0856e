"""Who processes a data set for a period: decided once, by a row that can be inserted once.

Duplicate detection forgets; the row does not. A message that slips past the window finds the work
done and does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from shared.datasets.processing import DatasetWork, processing_message
from shared.messaging.model import Message

WAIT_MIN = timedelta(seconds=5)
"""The clocks of the claims and of Service Bus differ: a message that comes a moment too early must
not be put off again and again within that moment."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim as it was read. ``holder`` names a message; ``version`` is the store's mark.

    All times are the store's. ``seen_at`` is its time when it answered.
    """

    work: DatasetWork
    holder: str
    taken_at: datetime
    seen_at: datetime = field(compare=False)
    done_at: datetime | None = None
    version: Any = None


class ClaimDecision(Enum):
    """What a message may do in view of the claim that stands."""

    WORK = "work"
    TAKE_OVER = "take over"
    LEAVE = "leave"
    WAIT = "wait"


def judge(claim: Claim, holder: str, lease: timedelta) -> ClaimDecision:
    """What the message ``holder`` may do.

    1. Work that is done is left alone.
    2. The holder works, also when its message comes again because it failed or crashed before.
    3. Others wait, and take over when the holder has been silent for longer than the lease.
    """
    if claim.done_at is not None:
        return ClaimDecision.LEAVE
    if claim.holder == holder:
        return ClaimDecision.WORK
    return ClaimDecision.WAIT if claim.seen_at - claim.taken_at < lease else ClaimDecision.TAKE_OVER


def postponed(claim: Claim, holder: str, lease: timedelta) -> Message:
    """The message that replaces ``holder``, due when the claim that ``holder`` has met expires.

    Its id says which message it replaces and because of which claim. However often that message is
    delivered, duplicate detection lets one replacement through; and a replacement that has to wait
    again is replaced by a message with another id, which duplicate detection does not swallow.
    """
    remaining = claim.taken_at + lease - claim.seen_at
    due = claim.seen_at + min(max(remaining, WAIT_MIN), lease)
    message_id = f"{claim.work.dataset}:again-{holder}-{claim.taken_at:%Y%m%dT%H%M%SZ}"
    return processing_message(claim.work, message_id, due)
