"""How work is waited for, tried again, run concurrently, or run with a heartbeat."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Protocol, TypeVar

T = TypeVar("T")


class Backoff(Protocol):
    """Waits before another attempt, the longer the more of them have failed in a row."""

    async def __call__(self, failures: int) -> None: ...


class Retrying(Protocol):
    """Tries again, a bounded number of times, with growing and random delays."""

    async def __call__(
        self, attempt: Callable[[], Awaitable[T]], worth: Callable[[Exception], bool]
    ) -> T:
        """The first success. Raises the first error not worth another attempt, or the last."""
        ...


class TaskRunner(Protocol):
    """Runs several pieces of work at a time, and returns when all have ended."""

    async def __call__(self, work: Iterable[Callable[[], Awaitable[None]]]) -> None:
        """Takes the next piece when there is time for it, and no sooner."""
        ...


Heartbeat = Callable[[], Awaitable[None]]
"""Raises nothing: what it cannot do now it does the next time."""


class WithHeartbeat(Protocol):
    """Does a piece of work, and beats every few seconds until it has ended."""

    async def __call__(self, work: Awaitable[T], beat: Heartbeat) -> T:
        """What the work answers or raises. Returns when the last beat has ended too."""
        ...


async def without_heartbeat(work: Awaitable[T], beat: Heartbeat) -> T:  # noqa: ARG001  the port has it
    """The work without anything beside it."""
    return await work


def heartbeat_every(seconds: float) -> WithHeartbeat:
    """Beats in this event loop, first after so many seconds: short work costs no task."""

    async def with_heartbeat(work: Awaitable[T], beat: Heartbeat) -> T:
        ended, beats = asyncio.Event(), list[asyncio.Task[None]]()

        async def go_on() -> None:
            while not ended.is_set():
                await beat()
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), seconds)

        loop = asyncio.get_running_loop()
        first = loop.call_later(seconds, lambda: beats.append(loop.create_task(go_on())))
        try:
            return await work
        finally:
            first.cancel()
            ended.set()
            for task in beats:
                await task

    return with_heartbeat


def task_runner(tasks_max: int) -> TaskRunner:
    """Runs up to so many pieces at a time in this event loop.

    The others start when the first one waits: where nothing does, no task is needed.
    """

    async def run_tasks(work: Iterable[Callable[[], Awaitable[None]]]) -> None:
        waiting = iter(work)

        async def worker() -> None:
            for piece in waiting:
                await piece()

        async with asyncio.TaskGroup() as group:

            def start_others() -> None:
                for _ in range(tasks_max - 1):
                    group.create_task(worker())

            others = asyncio.get_running_loop().call_soon(start_others)
            try:
                await worker()
            finally:
                others.cancel()

    return run_tasks
