"""Waiting that a stop interrupts."""

import asyncio


async def stops_within(stopping: asyncio.Event, seconds: float) -> bool:
    """Wait up to `seconds`; return at once, and True, when the host stops."""
    try:
        async with asyncio.timeout(seconds):
            return await stopping.wait()
    except TimeoutError:
        return False
