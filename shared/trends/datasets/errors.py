"""The exceptions of data set processing."""

from __future__ import annotations

from collections.abc import Sequence

from shared.values.messages import MessagingError
from shared.values.text import quoted


class UnreadableMessage(MessagingError):
    """A queue message can never be processed; it is moved to the poison queue."""

    @classmethod
    def field(cls, where: str, value: object, must: str) -> UnreadableMessage:
        """``where`` names the message and the field, such as ``event: id``."""
        return cls(f"{where} is {quoted(value)}; it must {must}")


class EntitiesMisconfigured(MessagingError):
    """The settings of the queues do not guarantee one message per data set and period."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"{len(self.problems)} problem(s) with Service Bus queues:\n{lines}")
