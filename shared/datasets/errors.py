"""What goes wrong with data sets."""

from __future__ import annotations

from collections.abc import Sequence

from shared.messaging.errors import MessagingError


class UnreadableMessage(MessagingError):
    """A queue message that can never be processed; it belongs into the poison queue."""


class ManageRightMissing(MessagingError):
    """Nobody may tell this program what the entity is like: it lacks the right to manage."""


class ClaimTaken(MessagingError):
    """Somebody else works on this data set and period right now; try again later."""


class ClaimUnreadable(MessagingError):
    """The row of a claim is not as the app writes it; a person must correct or delete it."""


class EntitiesMisconfigured(MessagingError):
    """The queues do not keep the promise of one message per data set and period."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"{len(self.problems)} problem(s) of Service Bus entities:\n{lines}")
