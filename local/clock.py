"""Time as the stand-ins see it: the machine's, or one that a test moves."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


class VirtualClock:
    """Stands still until `advance`. It starts at the machine's time unless told otherwise.

    azure-servicebus compares `locked_until_utc` with the machine's time before it settles a
    message, so a virtual clock that is behind by more than a lock's length breaks settlement.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or utc_now()
        self._listeners: list[Callable[[], None]] = []

    def __call__(self) -> datetime:
        return self._now

    def advance(self, by: timedelta) -> None:
        """Go forward, and tell everybody who listens."""
        if by < timedelta(0):
            raise ValueError("time goes forward")
        self._now += by
        for listener in list(self._listeners):
            listener()

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each step, from the thread that takes it; returns the way out."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)
