"""Processes a data set for a period, unless it was processed or another message is processing
it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Protocol

from shared.trends.datasets.claims import Claim, ClaimDecision, judge, postponed
from shared.trends.datasets.processing import DatasetWork
from shared.values.messages import MessageSender, check_all_sent

log = logging.getLogger(__name__)

LEASE = timedelta(minutes=30)
"""Longer than a function may run, so a handler that has not renewed its claim no longer runs."""


class ClaimStore(Protocol):
    """Stores which message processes a data set for a period. All times are those of its clock."""

    async def take(self, work: DatasetWork, holder: str) -> Claim:
        """Insert a claim of the data set and round if there is none, and return the stored claim,
        which may belong to another message.
        """
        ...

    async def change(self, claim: Claim, holder: str, *, done: bool) -> Claim:
        """The claim is taken now, or done now. Raises ClaimTaken if it was changed or deleted since
        it was read.
        """
        ...


async def process_data_set(
    work: DatasetWork,
    holder: str,
    claims: ClaimStore,
    recompute: Callable[[DatasetWork], Awaitable[None]],
    sender: MessageSender,
    lease: timedelta = LEASE,
) -> bool:
    """Process the data set, and return whether this call processed it.

    ``holder`` must be the same at each delivery of a message, and ``recompute`` harmless when it is
    repeated. If another message is processing the data set, this message is replaced by one that is
    due when the claim of the other message expires. The caller can then complete this message.
    """
    claim = await claims.take(work, holder)
    decision = judge(claim, holder, lease)
    if decision is ClaimDecision.LEAVE:
        _log("left", work, f"it was processed at {claim.done_at} for message {claim.holder}")
        return False
    if decision is ClaimDecision.WAIT:
        await _put_off(claim, holder, sender, lease)
        return False
    if decision is ClaimDecision.TAKE_OVER:
        reason = f"message {claim.holder} has not renewed its claim since {claim.taken_at}"
        _log("taken_over", work, reason)
        claim = await claims.change(claim, holder, done=False)
    await recompute(work)
    await claims.change(claim, holder, done=True)
    _log("processed", work, f"for message {holder}")
    return True


async def _put_off(claim: Claim, holder: str, sender: MessageSender, lease: timedelta) -> None:
    """Schedule a replacement for later. After an error, Service Bus would redeliver at once, until
    the maximum delivery count is reached.
    """
    later = postponed(claim, holder, lease)
    check_all_sent(await sender.send([later]))
    reason = f"message {claim.holder} has been processing it since {claim.taken_at}"
    replacement = f"message {holder} is replaced by {later.message_id}, due at {later.scheduled_at}"
    _log("put_off", claim.work, f"{reason}; {replacement}")


def _log(action: str, work: DatasetWork, reason: str) -> None:
    extra = {"action": action, "dataset": work.dataset, "period": work.round_label}
    log.info("[%s] %s: %s", action, work.message_id, reason, extra=extra)
