"""Process a data set for a period, unless that is done or somebody else is at it."""

from __future__ import annotations

import logging
from datetime import timedelta

from shared.datasets.claims import Claim, ClaimDecision, judge, postponed
from shared.datasets.ports import ClaimStore, Recompute
from shared.datasets.processing import DatasetWork
from shared.messaging.ports import MessageSender

log = logging.getLogger(__name__)

LEASE = timedelta(minutes=30)
"""Longer than a function may run, so that who is silent for so long runs no more."""


async def run(
    work: DatasetWork,
    holder: str,
    claims: ClaimStore,
    recompute: Recompute,
    sender: MessageSender,
    lease: timedelta = LEASE,
) -> bool:
    """Answers whether it was processed now. ``holder`` is the same whenever a message comes again.

    Where another message is at it, a replacement for this one is sent that comes when the other's
    claim expires; this one can then be completed.
    """
    claim = await claims.take(work, holder)
    verdict = judge(claim, holder, lease)
    if verdict is ClaimDecision.LEAVE:
        _tell("left", work, f"was processed at {claim.done_at} for message {claim.holder}")
        return False
    if verdict is ClaimDecision.WAIT:
        await _put_off(claim, holder, sender, lease)
        return False
    if verdict is ClaimDecision.TAKE_OVER:
        _tell("taken_over", work, f"message {claim.holder} has been silent since {claim.taken_at}")
        claim = await claims.change(claim, holder, done=False)
    await recompute.run(work)
    await claims.change(claim, holder, done=True)
    _tell("processed", work, f"for message {holder}")
    return True


async def _put_off(claim: Claim, holder: str, sender: MessageSender, lease: timedelta) -> None:
    """A failure would bring the message back at once, until its deliveries are used up."""
    later = postponed(claim, holder, lease)
    await sender.send([later])
    since = f"message {claim.holder} is at it since {claim.taken_at}"
    again = f"message {holder} is replaced by {later.message_id}, due at {later.scheduled_at}"
    _tell("put_off", claim.work, f"{since}; {again}")


def _tell(action: str, work: DatasetWork, reason: str) -> None:
    extra = {"action": action, "dataset": work.dataset, "period": work.turn_label}
    log.info("[%s] %s: %s", action, work.message_id, reason, extra=extra)
