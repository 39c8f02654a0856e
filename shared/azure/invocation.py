"""Guards each invocation of a function: its time limit, its errors, its log lines, its duration."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from shared.azure.deferred_log import lines
from shared.values.redaction import redacting_call

P = ParamSpec("P")
T = TypeVar("T")

INVOCATION_SECONDS_MAX = 270.0
"""A function stops itself after this time, half a minute before ``functionTimeout`` in host.json.

After that, the host replaces the whole worker. Other functions that it was running then stay stuck
until their own time limit.
"""

Observer = Callable[[str, float, str], None]
"""Receives the name of a function that has ended, the seconds that it took, and the class of its
error, or an empty text if it succeeded."""


class InvocationGuard:
    """Decorates the functions of the app. An invocation logs the waiting lines, redacts errors, and
    tells ``observe`` how it ended.

    The host prints each error that leaves a function, with its traceback and its causes. Therefore
    errors are redacted here, whether they come from an adapter, from the rules or from a handler.
    A function that is still running after INVOCATION_SECONDS_MAX fails with TimeoutError.
    """

    def __init__(self, observe: Observer | None = None) -> None:
        self._observe = observe

    def __call__(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        name = getattr(function, "__name__", "the function")

        @wraps(function)
        @redacting_call
        async def invoked(*args: P.args, **kwargs: P.kwargs) -> T:
            lines.flush()
            started, error = time.monotonic(), ""
            try:
                return await _within_limit(name, function(*args, **kwargs))
            except BaseException as raised:
                error = type(raised).__name__
                raise
            finally:
                if self._observe is not None:
                    self._observe(name, time.monotonic() - started, error)

        return invoked


async def _within_limit(name: str, running: Awaitable[T]) -> T:
    limit = asyncio.timeout(INVOCATION_SECONDS_MAX)
    try:
        async with limit:
            return await running
    except TimeoutError as error:
        if not limit.expired():
            raise
        seconds = f"{INVOCATION_SECONDS_MAX:g} s"
        text = f"{name} was still running after {seconds}: look for the call that does not answer"
        raise TimeoutError(text) from error
