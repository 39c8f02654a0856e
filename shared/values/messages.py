"""Messages for a queue or topic of Service Bus, what sending them resulted in, and its errors.

Times are timezone-aware; sizes are in bytes on the wire.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import NamedTuple, Protocol

from shared.values.text import listed

NAMED_MAX = 20


Scalar = str | bytes | int | float | bool | uuid.UUID | datetime | None
"""The types of values of properties. Bytes must be UTF-8, because they are sent as a string."""


class Message(NamedTuple):
    """A message to send. It is a named tuple because hundreds of thousands are created in a second.

    ``time_to_live`` counts in whole seconds, up to 49 days, because AMQP has 32 bits for
    milliseconds. ``content_type`` must be ASCII.
    """

    body: bytes | str | None
    """One data section, or nothing."""
    message_id: str | None = None
    session_id: str | None = None
    partition_key: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    subject: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    time_to_live: timedelta | None = None
    scheduled_at: datetime | None = None
    application_properties: Mapping[str, Scalar] | None = None

    @property
    def batch_key(self) -> str | None:
        """The key that all messages of a batch must share, because the broker stores a batch in one
        place.
        """
        return self.session_id or self.partition_key


class Order(Enum):
    """Whether messages must arrive in the order in which they are given."""

    KEPT = "kept"
    KEPT_PER_KEY = "kept per key"
    """The order is kept only among messages of the same session or partition key. Sessions
    guarantee no more than this.
    """

    FREE = "free"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A message that the service does not accept, by its position, and the reason."""

    position: int
    message_id: str | None
    reason: str

    def __str__(self) -> str:
        return f"#{self.position} ({self.message_id}): {self.reason}"


@dataclass(frozen=True, slots=True)
class Result:
    """What a call has sent. ``bytes`` are on the wire, and count each batch once."""

    sent: int
    batches: int
    bytes: int
    retries: int
    resent_unknown: int
    """The number of messages that were sent again because it was unknown whether they had arrived.
    They may have arrived twice, unless the queue detected duplicates for all that time."""

    refused: tuple[Refusal, ...]
    """Messages that the service does not accept even alone. The others were sent, also those that
    follow a refused message in the same session."""


class MessagingError(Exception):
    """The base of all exceptions that messaging defines."""


class MessagesRefused(MessagingError):
    """The service refused some messages; the others were sent."""

    def __init__(self, refused: Sequence[Refusal]) -> None:
        self.refused = tuple(refused)
        shown = listed(self.refused, NAMED_MAX, "; ")
        super().__init__(f"{len(refused)} message(s) were refused: {shown}")


def check_all_sent(result: Result) -> None:
    """Raise MessagesRefused if the service refused some messages."""
    if result.refused:
        raise MessagesRefused(result.refused)


class LinkFailed(MessagingError):
    """The queue or topic accepts no messages, and retries do not help; an operator must correct the
    cause.
    """


class MessageSender(Protocol):
    """Sends messages at least once, under ids by which a queue can detect duplicates."""

    async def send(self, messages: Sequence[Message], order: Order = ...) -> Result:
        """Raises MessagingError."""
        ...


class TextsNotSent(Exception):
    """Some of several texts are not known to be sent."""

    def __init__(self, reason: str, sent: frozenset[int]) -> None:
        super().__init__(reason)
        self.sent = sent
        """The positions of the sent ones among the texts of the call."""
