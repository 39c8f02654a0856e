"""What can go wrong, named. The first line of each docstring says what it means for the caller."""

from __future__ import annotations

from datetime import datetime


class AutoscalingError(Exception):
    """Something that the autoscaler itself can name."""


class BadMessage(AutoscalingError):
    """A queue message that can never be processed; it belongs into the poison queue."""


class UnknownResource(BadMessage):
    """A message for a resource that scaling_rules.py does not declare."""


class OverrideRefused(AutoscalingError):
    """What a person asked for cannot be; it says what would do."""


class StateConflict(AutoscalingError):
    """Somebody else changed the rows that were read; read again and decide again."""


class StateUnreadable(AutoscalingError):
    """A row of a resource's state cannot be read; nothing is decided on the rest of it.

    ``read_at`` is the store's time at which that was found.
    """

    def __init__(self, message: str, read_at: datetime) -> None:
        super().__init__(message)
        self.read_at = read_at


class ReadFailed(AutoscalingError):
    """A metric source gave no value; the value is missing, not zero."""


class CapacityDelayed(AutoscalingError):
    """The capacity cannot be changed right now, or the outcome is not known; try again later.

    ``maybe_done`` is true where a change was ordered and nobody knows what became of it.
    """

    def __init__(
        self,
        message: str,
        retry_after_seconds: float | None = None,
        *,
        maybe_done: bool = False,
    ) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.maybe_done = maybe_done


class CapacityRefused(AutoscalingError):
    """Nothing was changed, and will not be however often it is asked for: a person must act."""
