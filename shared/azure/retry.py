"""Retries with tenacity: a bounded number of attempts, exponential backoff with full jitter."""

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
    """Repeats an attempt that fails with an error for which a retry may help.

    The wait before attempt n + 1 is random, between 0 and ``first_seconds``·2^(n-1) seconds, and
    at most ``seconds_max``. There are at most ``attempts_max`` attempts.
    """

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
        """The result of the first attempt that succeeds. Raises the last error otherwise.

        ``worth`` says whether a retry may help after an error.
        """
        try:
            return await attempt()  # tenacity's overhead is spent only after a failure
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
    """Wait after the given number of failures in a row. The wait is random, between a quarter of a
    bound and the bound. The bound is 0.5 s·2^``failures``, and at most 30 s.
    """
    longest = min(0.5 * 2 ** min(failures, 10), 30)
    await asyncio.sleep(random.uniform(longest / 4, longest))  # noqa: S311 - not for secrets
