"""What can go wrong, named. The first line of each docstring says what it means for the caller."""

from __future__ import annotations

from collections.abc import Sequence

from shared.messaging.model import Message, Result

NAMED_MAX = 20


class MessagingError(Exception):
    """Something that the sender or the scheduler can name."""


class BadLines(MessagingError):
    """Lines that describe no message; nothing was sent."""

    def __init__(self, shown: Sequence[str], count: int) -> None:
        more = f"\n… and {count - len(shown)} more" if count > len(shown) else ""
        super().__init__("\n".join(shown) + more)


class UnsendableMessage(MessagingError):
    """A message that no Service Bus takes: a field is too long, or of a type that AMQP lacks."""


class MessagesTooLarge(MessagingError):
    """Messages that fit into no batch; nothing was sent, so the others can be sent without them."""

    def __init__(self, names: Sequence[str], limit_bytes: int) -> None:
        self.names = tuple(names)
        shown = ", ".join(self.names[:NAMED_MAX])
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        super().__init__(
            f"{len(names)} message(s) larger than a batch of {limit_bytes} bytes: {shown}{more}"
        )


class SendingStopped(MessagingError):
    """Sending was given up on the way; ``unsent`` can be sent again, with the ids that it has.

    The first of ``unsent`` may have arrived nevertheless. ``result`` says what became of the rest.
    """

    def __init__(self, reason: str, result: Result, unsent: Sequence[Message]) -> None:
        self.result = result
        self.unsent = tuple(unsent)
        super().__init__(f"stopped with {len(unsent)} message(s) unsent: {reason}")


class LinkFailed(MessagingError):
    """The entity cannot be sent to, however often it is tried: a person must act."""
