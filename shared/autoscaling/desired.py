"""The capacity that was ordered, and the orders themselves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

EPOCH_MAX = 10**9 - 1
"""Of an order: one a second for 31 years. The keys of the decision log have digits for no more."""


@dataclass(frozen=True, slots=True)
class ScaleAction:
    """Set the resource to ``target`` instances. Absolute, so doing it twice changes nothing.

    ``epoch`` grows with every decision; an action of an older epoch than the state's is void.
    """

    resource_name: str
    target: int
    epoch: int
    reason: str
    requested_at: datetime


class ActionStatus(StrEnum):
    PENDING = "pending"
    CONFIRMED = "confirmed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Desired:
    """The capacity that was decided last and how far it got."""

    target: int
    epoch: int
    reason: str
    requested_at: datetime
    previous: int
    superseded: tuple[int, ...] = ()
    """What orders since the last confirmation were about to set when others replaced them."""
    status: ActionStatus = ActionStatus.PENDING
    sent_at: datetime | None = None
    changed_at: datetime | None = None
    """When the capacity last became what had been asked for; kept while a new action is pending."""
    changed_out: bool | None = None
    """Whether it became more then."""
    changed_by_hand: bool = False
    """Whether a person made that change."""
    retry_at: datetime | None = None
    attempts: int = 0
    last_error: str = ""

    @property
    def pending(self) -> bool:
        return self.status is ActionStatus.PENDING
