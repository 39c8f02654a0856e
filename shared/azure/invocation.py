"""Guards each invocation of a function: its time limit, its errors, its log lines."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from shared.azure.deferred_log import lines
from shared.values.redaction import redacting_call

P = ParamSpec("P")
T = TypeVar("T")

INVOCATION_SECONDS_MAX = 270.0
"""A function stops itself half a minute before ``functionTimeout`` in host.json, after which the
host replaces the whole worker, and other functions that it was running stay stuck."""

Observer = Callable[[str, Any, Any], AbstractContextManager[None]]
"""Observes an invocation: its function, what triggered it, and the worker's context, if any."""


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
