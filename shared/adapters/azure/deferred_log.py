"""Log lines from where no invocation runs.

The Functions host drops what a worker logs while no invocation is alive: at import, in a thread,
in a task that outlives its invocation. Such a line waits here and is logged in the next invocation.
In any other process it is logged at once.
"""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log; its action begins the message, too."""

    logger: logging.Logger
    level: int
    action: str
    text: str

    def emit(self) -> None:
        extra = {"action": self.action}
        self.logger.log(self.level, "[%s] %s", self.action, self.text, extra=extra)


class DeferredLog:
    """Lines of one process, safe to use from any thread. The oldest go where too many wait."""

    def __init__(self) -> None:
        self._holding = False
        self._waiting = deque[LogLine](maxlen=WAITING_MAX)

    def hold(self) -> None:
        """From now on lines wait for an invocation."""
        self._holding = True

    def write(self, line: LogLine) -> None:
        """Log the line, now or in the next invocation."""
        if self._holding:
            self._waiting.append(line)
        else:
            line.emit()

    def flush(self) -> None:
        """Log what waits; an invocation runs."""
        while self._waiting:
            self._waiting.popleft().emit()

    def release(self) -> None:
        """Log what waits, and from now on each line at once."""
        self._holding = False
        self.flush()


lines = DeferredLog()


def invocation(function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Around a function of the app: lines that wait are logged in its invocation.

    The host prints an error that leaves a function, with its traceback and all that led to it. So
    it is redacted here, whether it comes from an adapter, from the rules or from a handler.
    """

    @wraps(function)
    @redacting_call
    async def invoked(*args: P.args, **kwargs: P.kwargs) -> T:
        lines.flush()
        return await function(*args, **kwargs)

    return invoked
