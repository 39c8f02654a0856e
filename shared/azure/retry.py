"""Retries: a bounded number of attempts, exponential backoff with full jitter."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class JitteredRetrying:
    """Makes at most ``attempts_max`` attempts. The wait before attempt n + 1 is random, between 0
    and ``first_seconds``·2^(n-1) seconds, and at most ``seconds_max``."""

    def __init__(
        self,
        attempts_max: int = 5,
        first_seconds: float = 0.1,
        seconds_max: float = 5,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._seconds = [first_seconds * 2**n for n in range(attempts_max - 1)]
        self._seconds_max, self._sleep = seconds_max, sleep

    async def __call__(
        self, attempt: Callable[[], Awaitable[T]], worth: Callable[[Exception], bool]
    ) -> T:
        """See Retrying."""
        for seconds in self._seconds:
            try:
                return await attempt()
            except Exception as error:
                if not worth(error):
                    raise
            longest = min(seconds, self._seconds_max)
            await self._sleep(random.uniform(0, longest))  # noqa: S311 - not for secrets
        return await attempt()


async def pause(failures: int) -> None:
    """Wait after this number of failures in a row: a random time between a quarter of a bound and
    the bound, which is 0.5 s·2^``failures``, and at most 30 s."""
    longest = min(0.5 * 2 ** min(failures, 10), 30)
    await asyncio.sleep(random.uniform(longest / 4, longest))  # noqa: S311 - not for secrets
