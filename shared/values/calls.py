"""Calls that may raise anything, log, and never return: of the user's code, and of checks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import ContextVar, copy_context
from threading import Thread, current_thread, main_thread
from typing import Any, Generic, TypeVar

from shared.values.redaction import redacted

T = TypeVar("T")

LOG_LINES_MAX = 1000
"""If more log lines of one call wait to be logged, the oldest are dropped."""


def error_text(error: BaseException) -> str:
    """The class and the text of an error of the user's code, without secrets. Raises the
    KeyboardInterrupt of a person who presses Ctrl-C again."""
    if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():
        raise error
    try:
        text = str(error)
    except BaseException as further:
        text = f"its text cannot be shown, because __str__ raised {type(further).__name__}"
    return redacted(f"{type(error).__name__}: {text}".removesuffix(": "))


class DaemonCall(Generic[T]):
    """A call in a daemon thread of its own, which does not delay the end of the process.

    The Functions host drops lines that are logged in a thread. They are kept, and logged by the
    task that waits for the call.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._started = time.monotonic()
        self.finished = Future[T]()
        self.finished.set_running_or_notify_cancel()  # from now on, waiting tasks cannot cancel it
        self._lines = deque[logging.LogRecord](maxlen=LOG_LINES_MAX)
        self._newest: logging.LogRecord | None = None
        for handler in logging.getLogger().handlers:
            if _passes not in handler.filters:
                handler.filters.insert(0, _passes)
        context = copy_context()
        context.run(_call.set, self)
        Thread(target=context.run, args=(self._run, work), daemon=True).start()

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self.finished.set_result(work())
        except BaseException as error:
            expected = isinstance(error, Exception) and not isinstance(error, StopIteration)
            self.finished.set_exception(error if expected else RuntimeError(error_text(error)))

    async def ends_within(self, seconds: float) -> bool:
        """Whether the call ends within this time from its start. Logs its lines."""
        left = self._started + seconds - time.monotonic()
        with suppress(Exception):  # a time-out, or the error that ``finished`` has
            await asyncio.wait_for(asyncio.wrap_future(self.finished), max(left, 0))
        self.log_lines()
        return self.finished.done()

    def keep(self, record: logging.LogRecord) -> None:
        """Keep a line of the call until ``log_lines``."""
        if record is not self._newest:  # otherwise another handler has passed it on already
            self._newest = record
            self._lines.append(record)

    def log_lines(self) -> None:
        """Log the lines that the call has logged so far."""
        while self._lines:
            record = self._lines.popleft()
            for handler in logging.getLogger().handlers:
                if record.levelno >= handler.level:
                    handler.handle(record)


_call: ContextVar[DaemonCall[Any] | None] = ContextVar("call", default=None)
"""The call in whose thread the code runs."""


def _passes(record: logging.LogRecord) -> bool:
    """Filters the handlers of the root logger: keeps the line if it is logged in a DaemonCall."""
    call = _call.get()
    if call is None:
        return True
    call.keep(record)
    return False


def answers(works: Sequence[Callable[[], T]], seconds: float) -> list[Future[T]]:
    """Make all calls at once. A future that is not done belongs to a call that takes longer."""
    calls = [DaemonCall(work) for work in works]
    futures = [call.finished for call in calls]
    wait(futures, timeout=seconds)
    for call in calls:
        call.log_lines()
    return futures


async def check(
    timeout_seconds: float, subject: str, what: str, told: Awaitable[str]
) -> dict[str, Any]:
    """The result of one check: what ``told`` returns, or the error that it raises."""
    try:
        async with asyncio.timeout(timeout_seconds):
            text, ok = await told, True
    except TimeoutError:
        text, ok = f"no answer within {timeout_seconds:g} s", False
    except Exception as error:  # any failure is a result, so that the other checks continue
        text, ok = f"{type(error).__name__}: {error}", False
    return {"resource": subject, "what": what, "ok": ok, "told": text}
