"""Run a processor in an event loop until it is asked to stop."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from shared.ingestion.errors import IngestionError
from shared.ingestion.ownership.processor import Processor

ENDING_SECONDS_MAX = 20
"""What does not end in time is left behind: the epoch keeps it from doing harm."""
CLAIMING_SECONDS = 1.0
"""Between two cycles while there is still something to claim: one a cycle, but soon."""


def processor_name() -> str:
    """A name of its own for each processor, by which people find where it runs."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


class BackgroundReading:
    """See Reading: a task of the event loop."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(work)

    @property
    def error(self) -> BaseException | None:
        if not self._task.done():
            return None
        error = None if self._task.cancelled() else self._task.exception()
        return error or IngestionError("reading ended without an error")

    def cancel(self) -> None:
        self._task.cancel()

    async def ended(self) -> None:
        await asyncio.wait([self._task], timeout=ENDING_SECONDS_MAX)


def about_one() -> float:
    """Never the same, so that processors do not go in step."""
    return random.uniform(0.8, 1.2)  # noqa: S311 - not for secrets


async def serve(
    processor: Processor,
    stopping: asyncio.Event,
    cycle_seconds: float,
    jitter: Callable[[], float] = about_one,
) -> None:
    """Cycle until ``stopping`` is set, then stop reading and give everything up."""
    try:
        while not stopping.is_set():
            claimed = await processor.cycle()
            seconds = min(CLAIMING_SECONDS, cycle_seconds) if claimed else cycle_seconds
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), seconds * jitter())
    finally:
        await processor.stop()


async def repeat(
    work: Callable[[], Awaitable[None]],
    stopping: asyncio.Event,
    seconds: float,
    jitter: Callable[[], float] = about_one,
) -> None:
    """Do some work now and then until ``stopping`` is set, the first time after one wait."""
    while not stopping.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), seconds * jitter())
            return
        await work()
