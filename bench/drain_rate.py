"""How fast a counter of finished work grows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LIMIT_SECONDS = 120.0
POLL_SECONDS = 0.005


async def per_second(done: Callable[[], int], total: int) -> float:
    """Growth a second from the first tenth to the last of ``total``: what starts has started.

    Raises TimeoutError where that takes longer than two minutes.
    """
    async with asyncio.timeout(LIMIT_SECONDS):
        first, started = await _reached(done, total // 10)
        last, ended = await _reached(done, total)
    return (last - first) / (ended - started)


async def _reached(done: Callable[[], int], count: int) -> tuple[int, float]:
    # Polled, because the host counts without telling: both sides are watched in the same way.
    while (found := done()) < count:  # noqa: ASYNC110
        await asyncio.sleep(POLL_SECONDS)
    return found, time.perf_counter()
