"""Do something every few seconds while a piece of work goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from shared.ingestion.events.ports import Beat, Beside

T = TypeVar("T")


async def alone(work: Awaitable[T], beat: Beat) -> T:  # noqa: ARG001  the port has it
    """The work without anything beside it."""
    return await work


def every(seconds: float) -> Beside:
    """Beats in this event loop, first after so many seconds: short work costs no task."""

    async def beside(work: Awaitable[T], beat: Beat) -> T:
        ended, beats = asyncio.Event(), list[asyncio.Task[None]]()

        async def go_on() -> None:
            while not ended.is_set():
                await beat()
                await _wait(ended, seconds)

        loop = asyncio.get_running_loop()
        first = loop.call_later(seconds, lambda: beats.append(loop.create_task(go_on())))
        try:
            return await work
        finally:
            first.cancel()
            ended.set()
            for task in beats:
                await task

    return beside


async def _wait(ended: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(ended.wait(), seconds)
    except TimeoutError:
        return
