"""Keeps log lines that are written outside of an invocation until the next invocation.

The Functions host drops what a worker logs while no invocation runs: at import, in a thread, or in
a task that outlives its invocation. In any other process, each line is logged at once.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass

WAITING_MAX = 100


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log. ``action`` begins its message, and is a field of the record."""

    logger: logging.Logger
    level: int
    action: str
    text: str

    def emit(self) -> None:
        extra = {"action": self.action}
        self.logger.log(self.level, "[%s] %s", self.action, self.text, extra=extra)


class DeferredLog:
    """The lines that wait, at most the newest WAITING_MAX. Safe to use from any thread."""

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
