"""Processes a data set for a period, unless it was processed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from shared.trends.datasets.processing import DatasetWork

log = logging.getLogger(__name__)


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
