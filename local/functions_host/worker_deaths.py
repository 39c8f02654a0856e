"""Counts the deaths of the worker. The real host replaces a dead worker, but not endlessly.

Source: `RpcFunctionInvocationDispatcher` of the Functions host.
"""

from datetime import datetime, timedelta

DEATHS_MAX = 3
APART_MAX = timedelta(minutes=30)
"""A death longer than this after the one before is counted as the first."""


class WorkerDeaths:
    """The deaths of the worker that follow one another closely."""

    def __init__(self) -> None:
        self._count = 0
        self._last: datetime | None = None

    def end_the_host(self, now: datetime) -> bool:
        """Count a death at this time. Return whether the host has to end."""
        if self._last is not None and now - self._last > APART_MAX:
            self._count = 0
        self._count, self._last = self._count + 1, now
        return self._count >= DEATHS_MAX
