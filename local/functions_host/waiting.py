"""Waits that end as soon as the host stops."""

import asyncio


async def stops_within(stopping: asyncio.Event, seconds: float) -> bool:
    """Wait up to `seconds`. Returns True as soon as the host stops."""
    try:
        async with asyncio.timeout(seconds):
            return await stopping.wait()
    except TimeoutError:
        return False
