"""The exceptions of messaging. The first sentence of each docstring says what happened."""

from __future__ import annotations

from collections.abc import Sequence

from shared.values.messages import NAMED_MAX, Message, MessagingError, Result


class BadLines(MessagingError):
    """Some lines do not describe a message; nothing was sent."""

    def __init__(self, shown: Sequence[str], count: int) -> None:
        more = f"\n… and {count - len(shown)} more" if count > len(shown) else ""
        super().__init__("\n".join(shown) + more)


class UnsendableMessage(MessagingError):
    """Service Bus cannot accept a message: a field is too long, or has a type that AMQP lacks."""


class SendingStopped(MessagingError):
    """Sending was given up before all messages were sent. The messages in ``unsent`` can be sent
    again, with the same ids. Those that ``unknown`` names may have arrived nevertheless. ``result``
    describes what was sent.
    """

    def __init__(
        self, reason: str, result: Result, unsent: Sequence[Message], unknown: Sequence[str] = ()
    ) -> None:
        self.result, self.unsent, self.unknown = result, tuple(unsent), tuple(unknown)
        more = f" and {len(unknown) - NAMED_MAX} more" if len(unknown) > NAMED_MAX else ""
        shown = f"; may have arrived: {', '.join(unknown[:NAMED_MAX])}{more}" if unknown else ""
        super().__init__(f"sending stopped with {len(unsent)} message(s) unsent: {reason}{shown}")
