"""Stops the demo as soon as one of its parts has ended by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

POLL_SECONDS = 0.1

Ended = Callable[[], str]
"""Says how a part ended; empty while it runs. The first line is the sentence without its period."""


class PartEnded(Exception):
    """A part of the demo ended by itself. The message says which part, and how."""


@asynccontextmanager
async def stopped_with(ended: Ended) -> AsyncIterator[None]:
    """Cancel the body of the ``async with`` once the part has ended, and raise PartEnded.

    Whatever else the body raises then is a consequence, and PartEnded replaces it.
    """
    body = asyncio.current_task()
    assert body is not None
    watcher = asyncio.create_task(_cancel_when(ended, body))
    try:
        yield
    except BaseException:
        if reason := ended():
            raise PartEnded(reason) from None
        raise
    finally:
        watcher.cancel()


async def _cancel_when(ended: Ended, body: asyncio.Task[object]) -> None:
    while not ended():  # noqa: ASYNC110  a process has to be polled
        await asyncio.sleep(POLL_SECONDS)
    body.cancel()
