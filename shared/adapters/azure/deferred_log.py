"""Keeps log lines that are written outside of an invocation until the next invocation.

The Functions host drops what a worker logs while no invocation runs: at import, in a thread, or in
a task that outlives its invocation. Such a line is kept here and logged in the next invocation. In
a process other than a Functions worker, each line is logged at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from shared.values.redaction import redacting_call

P = ParamSpec("P")
T = TypeVar("T")

WAITING_MAX = 100
INVOCATION_SECONDS_MAX = 270.0
"""A function stops itself after this time, half a minute before ``functionTimeout`` in host.json.

After that, the host replaces the whole worker. Other functions that it was running then stay stuck
until their own time limit.
"""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log. The message begins with ``action``, which is also a field of the log
    record.
    """

    logger: logging.Logger
    level: int
    action: str
    text: str

    def emit(self) -> None:
        extra = {"action": self.action}
        self.logger.log(self.level, "[%s] %s", self.action, self.text, extra=extra)


class DeferredLog:
    """The waiting lines of one process, safe to use from any thread.

    If more than WAITING_MAX lines wait, the oldest are dropped.
    """

    def __init__(self) -> None:
        self._holding = False
        self._waiting = deque[LogLine](maxlen=WAITING_MAX)

    def hold(self) -> None:
        """From now on, keep lines until the next invocation."""
        self._holding = True

    def write(self, line: LogLine) -> None:
        """Log the line at once, or in the next invocation if lines are being kept."""
        if self._holding:
            self._waiting.append(line)
        else:
            line.emit()

    def flush(self) -> None:
        """Log all waiting lines. Call it only while an invocation runs."""
        while self._waiting:
            self._waiting.popleft().emit()

    def release(self) -> None:
        """Log all waiting lines, and from now on log each line at once."""
        self._holding = False
        self.flush()


lines = DeferredLog()


def guard_invocation(
    function: Callable[P, Awaitable[T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorates a function of the app: its invocation logs the waiting lines and redacts errors.

    The host prints each error that leaves a function, with its traceback and its causes. Therefore
    errors are redacted here, whether they come from an adapter, from the rules or from a handler.
    A function that is still running after INVOCATION_SECONDS_MAX fails with TimeoutError.
    """

    @wraps(function)
    @redacting_call
    async def invoked(*args: P.args, **kwargs: P.kwargs) -> T:
        lines.flush()
        limit = asyncio.timeout(INVOCATION_SECONDS_MAX)
        try:
            async with limit:
                return await function(*args, **kwargs)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TimeoutError(_too_long(function)) from error

    return invoked


def _too_long(function: Callable[P, Awaitable[T]]) -> str:
    name = getattr(function, "__name__", "the function")
    seconds = f"{INVOCATION_SECONDS_MAX:g} s"
    return f"{name} was still running after {seconds}: look for the call that does not answer"
