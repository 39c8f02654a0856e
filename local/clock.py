"""Clocks for the stand-ins: the machine's time, or a virtual clock that a test moves."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


class VirtualClock:
    """A clock that stands still until `advance`. It starts at `start`, by default the real time.

    azure-servicebus compares `locked_until_utc` with the machine's time before it settles a
    message. A virtual clock that is behind by more than the lock duration breaks settlement.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or utc_now()
        self._listeners: list[Callable[[], None]] = []

    def __call__(self) -> datetime:
        return self._now

    def advance(self, by: timedelta) -> None:
        """Move the clock forward and call every listener."""
        if by < timedelta(0):
            raise ValueError(f"cannot advance by {by}: the clock only moves forward")
        self._now += by
        for listener in list(self._listeners):
            listener()

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each step, in the advancing thread. Call the result to stop."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)
