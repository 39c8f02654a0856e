"""Decides which message processes a data set for a period, by a row that can be inserted only once.

Service Bus forgets message ids after its duplicate detection window, but the row stays. So if a
duplicate arrives after the window, the row shows that the work is done, and the duplicate is
ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from shared.trends.datasets.processing import DatasetWork, processing_message
from shared.values.leases import is_held
from shared.values.messages import Message

WAIT_MIN = timedelta(seconds=5)
"""The shortest postponement. The clocks of the claim store and of Service Bus differ, so a message
may be delivered a moment too early. Without this minimum, it could then be postponed many times
within that moment.
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim as it was read. ``holder`` is the id of a message; ``version`` is the row's ETag or
    version number.

    All times are those of the store's clock. ``seen_at`` is the store's time of the reply.
    """

    work: DatasetWork
    holder: str
    taken_at: datetime
    seen_at: datetime = field(compare=False)
    done_at: datetime | None = None
    version: Any = None


class ClaimDecision(Enum):
    """What the handler of a message may do, given the stored claim."""

    WORK = "work"
    TAKE_OVER = "take over"
    LEAVE = "leave"
    WAIT = "wait"


def judge(claim: Claim, holder: str, lease: timedelta) -> ClaimDecision:
    """What the message ``holder`` may do.

    1. If the work is done, do nothing.
    2. The holder of the claim works. It may do so again if its message is redelivered after a
       failure or crash.
    3. Other messages wait, and take the claim over once its holder has not renewed it for the
       length of the lease.
    """
    if claim.done_at is not None:
        return ClaimDecision.LEAVE
    if claim.holder == holder:
        return ClaimDecision.WORK
    remaining = claim.taken_at + lease - claim.seen_at
    return ClaimDecision.WAIT if is_held(remaining, lease) else ClaimDecision.TAKE_OVER


def postponed(claim: Claim, holder: str, lease: timedelta) -> Message:
    """The message that replaces ``holder``. It is due when the present claim expires.

    Its id contains the id of the message that it replaces and the time of the claim. So duplicate
    detection lets only one replacement through, however often ``holder`` is delivered. If the
    replacement has to wait again, it is replaced by a message with another id, which duplicate
    detection accepts.
    """
    remaining = claim.taken_at + lease - claim.seen_at
    due = claim.seen_at + min(max(remaining, WAIT_MIN), lease)
    message_id = f"{claim.work.dataset}:again-{holder}-{claim.taken_at:%Y%m%dT%H%M%SZ}"
    return processing_message(claim.work, message_id, due)
