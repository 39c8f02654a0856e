"""Process a data set for a period, unless that is done or somebody else is at it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from shared.messaging.claims import Verdict, judge
from shared.messaging.errors import ClaimTaken
from shared.messaging.ports import ClaimStore, Recompute
from shared.messaging.processing import Work

log = logging.getLogger(__name__)

LEASE = timedelta(minutes=30)
"""Longer than a function may run, so that who is silent for so long runs no more."""


async def run(
    work: Work,
    holder: str,
    claims: ClaimStore,
    recompute: Recompute,
    now: Callable[[], datetime],
    lease: timedelta = LEASE,
) -> bool:
    """Answers whether it was processed now. ``holder`` is the same whenever a message comes again.

    Raises ClaimTaken where somebody else is at it: the message must come again.
    """
    claim = await claims.take(work, holder, now())
    verdict = judge(claim, holder, now(), lease)
    if verdict is Verdict.LEAVE:
        _tell("left", work, f"was processed at {claim.done_at} for message {claim.holder}")
        return False
    if verdict is Verdict.WAIT:
        raise ClaimTaken(f"{work.message_id}: message {claim.holder} is at it")
    if verdict is Verdict.TAKE_OVER:
        _tell("taken_over", work, f"message {claim.holder} has been silent since {claim.taken_at}")
        claim = await claims.change(claim, holder, now(), done=False)
    await recompute.run(work)
    await claims.change(claim, holder, now(), done=True)
    _tell("processed", work, f"for message {holder}")
    return True


def _tell(action: str, work: Work, reason: str) -> None:
    extra = {"action": action, "dataset": work.dataset, "period": work.turn_label}
    log.info("[%s] %s: %s", action, work.message_id, reason, extra=extra)
