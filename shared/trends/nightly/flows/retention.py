"""log_retention: deletes old rows of the table ``Trends``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

KEPT = timedelta(days=100)
"""The page shows 60 days. The results folder of the job keeps all days."""
BUDGET_SECONDS = 270
"""A function on a Consumption plan may run for five minutes. The next run deletes the rest."""

log = logging.getLogger(__name__)


async def delete_old_trends(delete_older: Callable[[timedelta], Awaitable[int]]) -> None:
    """Delete trends older than ``KEPT``. An error is logged, and the next run tries again."""
    try:
        async with asyncio.timeout(BUDGET_SECONDS):
            count = await delete_older(KEPT)
    except Exception as error:
        extra = {"action": "trends_not_deleted"}
        text = f"old trends stay until the next run: {type(error).__name__}: {error}"
        log.warning("[trends_not_deleted] %s", text, extra=extra)
    else:
        extra = {"action": "trends_deleted"}
        log.info("[trends_deleted] %s rows of old trends deleted", count, extra=extra)
