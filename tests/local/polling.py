"""Waits for a condition by polling, up to a time limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

POLL_SECONDS = 0.05


async def until(met: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, f"not met within {seconds:g} s"
        await asyncio.sleep(POLL_SECONDS)
