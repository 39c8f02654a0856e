"""Whether a failure is the event's fault. Only what is may become a dead letter."""

from __future__ import annotations

from enum import StrEnum

from shared.ingestion.errors import (
    DependencyDown,
    HubUnavailable,
    StoreUnavailable,
    TransientFailure,
)


class Blame(StrEnum):
    EVENT = "event"  # it fails however often it is tried: a dead letter now
    CHANCE = "chance"  # it may pass: tried again, a dead letter if it fails to the end
    LINE = "line"  # nobody was reached: tried again, and the partition held if that does not help
    DEPENDENCY = "dependency"  # known to be down: the partition is held now

    @property
    def worth_retrying(self) -> bool:
        return self in (Blame.CHANCE, Blame.LINE)

    @property
    def holds(self) -> bool:
        """Where no attempt succeeds, the partition is held rather than the event given up."""
        return self in (Blame.LINE, Blame.DEPENDENCY)


def blame(error: Exception) -> Blame:
    """Who is to blame. An unknown error is the event's: it would hold the partition for ever."""
    if isinstance(error, DependencyDown | StoreUnavailable | HubUnavailable):
        return Blame.DEPENDENCY
    if isinstance(error, TransientFailure):
        return Blame.CHANCE
    if isinstance(error, ConnectionError | TimeoutError):
        return Blame.LINE
    return Blame.EVENT
