"""Decides which message processes a data set for a period, by a row that can be inserted only once.

The row stays when Service Bus has forgotten the message ids, after its duplicate detection window.
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
"""The shortest postponement, because the clocks of the claim store and of Service Bus differ, and a
message that comes a moment too early must not be postponed many times within that moment."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim as it was read at ``seen_at``, with the times of the store's clock. ``holder`` is the
    id of a message; ``version`` is the row's ETag.
    """

    work: DatasetWork
    holder: str
    taken_at: datetime
    seen_at: datetime = field(compare=False)
    done_at: datetime | None = None
    version: Any = None


class ClaimDecision(Enum):
    WORK = "work"
    TAKE_OVER = "take over"
    LEAVE = "leave"
    WAIT = "wait"


def judge(claim: Claim, holder: str, lease: timedelta) -> ClaimDecision:
    """What the message ``holder`` may do. The holder of the claim may work again after a failure or
    crash. Others take it over once it has not been renewed for the length of the lease.
    """
    if claim.done_at is not None:
        return ClaimDecision.LEAVE
    if claim.holder == holder:
        return ClaimDecision.WORK
    remaining = claim.taken_at + lease - claim.seen_at
    return ClaimDecision.WAIT if is_held(remaining, lease) else ClaimDecision.TAKE_OVER


def postponed(claim: Claim, holder: str, lease: timedelta) -> Message:
    """The message that replaces ``holder``, due when the present claim expires.

    Its id contains that of ``holder`` and the time of the claim. So duplicate detection lets one
    replacement through, however often ``holder`` is delivered, and accepts the replacement's own.
    """
    remaining = claim.taken_at + lease - claim.seen_at
    due = claim.seen_at + min(max(remaining, WAIT_MIN), lease)
    message_id = f"{claim.work.dataset}:again-{holder}-{claim.taken_at:%Y%m%dT%H%M%SZ}"
    return processing_message(claim.work, message_id, due)
