"""Schedules the processing of a data set when a blob arrives, processes it for a period unless it
was processed, and logs poisoned events."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from shared.sampling.blob_paths import hour_of
from shared.trends.datasets.arrivals import BlobArrived, decode_arrival
from shared.trends.datasets.periods import Period
from shared.trends.datasets.processing import DatasetWork, UnreadableMessage, schedule_processing
from shared.values.messages import Message, MessageSender, Order, check_all_sent
from shared.values.text import quoted

log = logging.getLogger(__name__)

AHEAD_MAX = timedelta(days=1)
"""How far in the future the time of telemetry may be."""

UNDATED = (
    "[undated] data set %s: the path %s has no date, so the day on which the blob arrives is "
    "processed, even if its data are older. Write the date as a folder, such as dt=2026-03-01, or "
    "in another form that docs/messaging.md lists. This is logged once for each data set."
)


async def schedule_data_set(
    arrival: BlobArrived,
    periods: Sequence[Period],
    sender: MessageSender,
    now: datetime,
    undated: set[str],
) -> list[Message]:
    """Schedule and return one message per kind of period. Raises UnreadableMessage. ``undated``
    holds the data sets whose paths without a date were logged.
    """
    observed_at = arrival.observed_at
    if arrival.container not in undated and hour_of(arrival.path) is None:
        undated.add(arrival.container)
        log.warning(UNDATED, arrival.container, quoted(arrival.path), extra={"action": "undated"})
    if observed_at > now + AHEAD_MAX:
        raise UnreadableMessage(
            f"event: the path {arrival.path} holds the time {observed_at}, which is in the future"
        )
    messages = [
        schedule_processing(arrival.container, period, now, observed_at) for period in periods
    ]
    check_all_sent(await sender.send(messages, Order.KEPT_PER_KEY))
    return messages


UNEXPLAINED = (
    "the event is valid, but scheduling its processing failed each time; "
    "see the errors in the function's log, and put the event back on its queue"
)


def log_poison(body: str, message_id: str) -> None:
    try:
        _ = decode_arrival(body).observed_at
        reason = UNEXPLAINED
    except UnreadableMessage as error:
        reason = str(error)
    extra = {"action": "poison", "message_id": message_id, "body": body}
    log.error("[poison] event %s could not be processed: %s", message_id, reason, extra=extra)


class Claims(Protocol):
    """Remembers which work is done, also when Service Bus has forgotten the ids of messages."""

    async def done(self, work: DatasetWork) -> str:
        """When the work was done, and for which message; empty if it was not."""
        ...

    async def finish(self, work: DatasetWork, message: str) -> None:
        """Remember that the work, which was not done before, is done now."""
        ...


async def process_data_set(
    work: DatasetWork,
    message: str,
    claims: Claims,
    recompute: Callable[[DatasetWork], Awaitable[None]],
) -> bool:
    """Process the data set for this message, and return whether this call processed it.
    ``recompute`` must be harmless when it is repeated, or called for two messages at a time."""
    if done := await claims.done(work):
        _log("left", work, f"it was processed at {done}")
        return False
    await recompute(work)
    await claims.finish(work, message)
    _log("processed", work, f"for message {message}")
    return True


def _log(action: str, work: DatasetWork, reason: str) -> None:
    extra = {"action": action, "dataset": work.dataset, "period": work.round_label}
    log.info("[%s] %s: %s", action, work.message_id, reason, extra=extra)
