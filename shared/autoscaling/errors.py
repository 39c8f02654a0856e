"""The exceptions of the autoscaler. Each docstring says what the caller must do."""

from __future__ import annotations

from datetime import datetime


class AutoscalingError(Exception):
    """The base class of all exceptions that the autoscaler defines."""


class BadMessage(AutoscalingError):
    """A queue message can never be processed. It belongs in the poison queue."""


class UnknownResource(BadMessage):
    """A message names a resource or a metric that scaling_rules.py does not declare."""


class OverrideRefused(AutoscalingError):
    """An operator asked for an invalid override. The message says what is allowed."""


class StateConflict(AutoscalingError):
    """Another writer has changed the rows since they were read. Read and decide again."""


class StateUnreadable(AutoscalingError):
    """A row of a resource's state cannot be read. Decide nothing from the other rows. ``read_at``
    is the time of the read, by the store's clock."""

    def __init__(self, message: str, read_at: datetime) -> None:
        super().__init__(message)
        self.read_at = read_at


class ReadFailed(AutoscalingError):
    """A metric source returned no value. Treat the value as missing, not as zero."""


class ReadDenied(ReadFailed):
    """The app's identity may not read a metric source. The message names the role to assign."""


class CapacityDelayed(AutoscalingError):
    """The capacity cannot be changed now, or the outcome is unknown. Try again later.
    ``maybe_done`` is true if a change was requested and its outcome is unknown. ``available`` is
    the number of further instances that can be had now, if that is why and known."""

    def __init__(
        self,
        message: str,
        retry_after_seconds: float | None = None,
        *,
        maybe_done: bool = False,
        available: int | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.maybe_done = maybe_done
        self.available = available


class CapacityPostponed(CapacityDelayed):
    """The capacity was not read, because the limit of requests is used up. Read it later."""


class CapacityRefused(AutoscalingError):
    """The capacity was not changed, and trying again would not help. An operator must act."""
