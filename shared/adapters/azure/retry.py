"""Tries again by tenacity: exponential delays with full jitter, a bounded number of times."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import (
    AsyncRetrying,
    retry_if_exception,
    stop_after_attempt,
    wait_random_exponential,
)

T = TypeVar("T")


class JitteredRetrying:
    """Before attempt n + 1 waits for a random part of ``first_seconds``·2^(n-1), but for no longer
    than ``seconds_max``."""

    def __init__(
        self,
        attempts_max: int = 5,
        first_seconds: float = 0.1,
        seconds_max: float = 5,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._retrying = AsyncRetrying(
            stop=stop_after_attempt(attempts_max),
            wait=wait_random_exponential(multiplier=first_seconds, max=seconds_max),
            sleep=sleep,
            reraise=True,
        )

    async def __call__(
        self, attempt: Callable[[], Awaitable[T]], worth: Callable[[Exception], bool]
    ) -> T:
        try:
            return await attempt()  # what works at once costs nothing
        except Exception as error:
            if not worth(error):
                raise
            first: Exception | None = error

        async def again() -> T:
            nonlocal first
            if first is not None:
                failed, first = first, None
                raise failed
            return await attempt()

        def worth_it(error: BaseException) -> bool:
            return isinstance(error, Exception) and worth(error)

        return await self._retrying.copy(retry=retry_if_exception(worth_it))(again)


async def pause(failures: int) -> None:
    """A random part of half a second, doubled with each failure in a row up to half a minute."""
    longest = min(0.5 * 2 ** min(failures, 10), 30)
    await asyncio.sleep(random.uniform(longest / 4, longest))  # noqa: S311 - not for secrets
