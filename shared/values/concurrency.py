"""Helpers for retries, concurrent work, and work with a heartbeat."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
V = TypeVar("V")


Backoff = Callable[[int], Awaitable[None]]
"""Waits before the next attempt. The wait grows with the number of failures in a row."""


async def pause(failures: int) -> None:
    """A Backoff of a random time between a quarter of a bound and the bound, which is
    0.5 s·2^``failures``, and at most 30 s."""
    longest = min(0.5 * 2 ** min(failures, 10), 30)
    await asyncio.sleep(random.uniform(longest / 4, longest))  # noqa: S311 - not for secrets


class Retrying(Protocol):
    """Retries a bounded number of times, with growing, random delays."""

    async def __call__(
        self, attempt: Callable[[], Awaitable[T]], worth: Callable[[Exception], bool]
    ) -> T:
        """The first successful result. Raises the first error that is not ``worth`` another
        attempt, or the error of the last attempt."""
        ...


@dataclass(frozen=True, slots=True)
class JitteredRetrying:
    """Makes at most ``attempts_max`` attempts. The wait before attempt n + 1 is random, between 0
    and ``first_seconds``·2^(n-1) seconds, and at most ``seconds_max``."""

    attempts_max: int = 5
    first_seconds: float = 0.1
    seconds_max: float = 5
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def __call__(
        self, attempt: Callable[[], Awaitable[T]], worth: Callable[[Exception], bool]
    ) -> T:
        for n in range(self.attempts_max - 1):
            try:
                return await attempt()
            except Exception as error:
                if not worth(error):
                    raise
            longest = min(self.first_seconds * 2**n, self.seconds_max)
            await self.sleep(random.uniform(0, longest))  # noqa: S311 - not for secrets
        return await attempt()


async def gathered(call: Callable[[V], Awaitable[T]], items: Iterable[V], at_once: int) -> list[T]:
    """The result of the call for each item, of which at most so many run at a time."""
    turns = asyncio.Semaphore(at_once)

    async def in_turn(item: V) -> T:
        async with turns:
            return await call(item)

    return await asyncio.gather(*map(in_turn, items))


TaskRunner = Callable[[Iterable[Callable[[], Awaitable[None]]]], Awaitable[None]]
"""Runs several pieces of work concurrently, and returns when all of them have ended. Each piece is
taken from the iterable only when a task is free to run it."""


Heartbeat = Callable[[], Awaitable[None]]
"""Sends one heartbeat, and raises nothing."""


class WithHeartbeat(Protocol):
    """Runs a piece of work, with a heartbeat every few seconds until the work has ended."""

    async def __call__(self, work: Awaitable[T], beat: Heartbeat) -> T:
        """Return the result of the work or raise its error, once the last heartbeat has ended."""
        ...


async def without_heartbeat(work: Awaitable[T], beat: Heartbeat) -> T:  # noqa: ARG001  the port has it
    """Run the work without a heartbeat."""
    return await work


def heartbeat_every(seconds: float) -> WithHeartbeat:
    """A runner that sends heartbeats from the current event loop, the first after ``seconds``. Work
    that ends sooner costs no task."""

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
    """A runner that runs up to ``tasks_max`` pieces of work at a time in the event loop. The other
    tasks start when a piece first waits for something, so pieces that never wait cost no task."""

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


class _Call(Generic[K, T]):
    """A call that begins once all tasks that are ready have named their key."""

    def __init__(self, ask: Callable[[Sequence[K]], Awaitable[Mapping[K, T]]]) -> None:
        self.keys: list[K] = []
        self.waiting = 0
        self.began = False
        self._ask = ask
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> Mapping[K, T]:
        self.began = True
        return await self._ask(self.keys)


class AskedTogether(Generic[K, T]):
    """Answers with one call what several tasks ask at the same time."""

    def __init__(self, ask: Callable[[Sequence[K]], Awaitable[Mapping[K, T]]]) -> None:
        self._ask = ask
        self._call: _Call[K, T] | None = None

    async def ask(self, key: K) -> T | None:
        """What the call has for the key, if anything. Raises the error of the call."""
        hash(key)  # an error of the user's own class is raised before others wait for it
        call = self._call
        if call is None or call.began:
            call = self._call = _Call(self._ask)
        call.keys.append(key)
        call.waiting += 1
        try:
            return (await asyncio.shield(call.task)).get(key)
        finally:
            call.waiting -= 1
            if not call.waiting:  # one that gives up does not end the call for the others
                call.began = True
                call.task.cancel()
