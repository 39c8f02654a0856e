"""Guards each invocation of a function: its time limit, its errors, its log lines."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from shared.values.redaction import redacting_call

P = ParamSpec("P")
T = TypeVar("T")

INVOCATION_SECONDS_MAX = 270.0
"""A function stops itself half a minute before ``functionTimeout`` in host.json, after which the
host replaces the whole worker, and other functions that it was running stay stuck."""

LINES_WAITING_MAX = 100

Observer = Callable[[str, Any, Any], AbstractContextManager[None]]
"""Observes an invocation: its function, what triggered it, and the worker's context, if any."""


class DeferredLog:
    """Keeps warnings that are logged outside of an invocation until the next one: the Functions
    host drops what a worker logs at import, in a thread, or in a task that outlives its invocation.
    In any other process, each is logged at once. At most the newest LINES_WAITING_MAX wait. Safe to
    use from any thread."""

    def __init__(self) -> None:
        self._holding = False
        self._waiting = deque[Callable[[], None]](maxlen=LINES_WAITING_MAX)

    def hold(self) -> None:
        """From now on, keep warnings until the next invocation."""
        self._holding = True

    def warn(self, logger: logging.Logger, action: str, text: str) -> None:
        """Log a line. ``action`` begins its message, and is a field of the record."""
        extra = {"action": action}
        self._waiting.append(partial(logger.warning, "[%s] %s", action, text, extra=extra))
        if not self._holding:
            self.flush()

    def flush(self) -> None:
        """Log all that wait. Call it only while an invocation runs."""
        while self._waiting:
            self._waiting.popleft()()

    def release(self) -> None:
        """Log all that wait, and from now on log each at once."""
        self._holding = False
        self.flush()


lines = DeferredLog()


class InvocationGuard:
    """Decorates the functions of the app. An invocation logs the waiting lines, runs within
    ``observe``, fails after INVOCATION_SECONDS_MAX, and redacts its errors, which the host prints
    with their tracebacks and causes.

    The worker passes its context to functions with a parameter ``context``. Decorated functions
    have one.
    """

    def __init__(self, observe: Observer = lambda *_: nullcontext()) -> None:
        self._observe = observe

    def __call__(self, function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        name = getattr(function, "__name__", "the function")

        @wraps(function)
        @redacting_call
        async def invoked(*args: P.args, **kwargs: P.kwargs) -> T:
            lines.flush()
            context = kwargs.pop("context", None)
            given = next(iter((*args, *kwargs.values())), None)
            with self._observe(name, given, context):
                return await _within_limit(name, function(*args, **kwargs))

        seen = inspect.signature(function)
        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, default=None)
        seen = seen.replace(parameters=[*seen.parameters.values(), context])
        invoked.__signature__ = seen  # type: ignore[attr-defined]
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
