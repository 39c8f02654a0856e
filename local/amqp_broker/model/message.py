"""Messages: the content that a sender sent, and the state that the broker keeps about it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from local.amqp_broker.model.sessions import SessionLock


@dataclass(frozen=True, slots=True)
class Content:
    """What a sender sent. The broker stores `payload` unchanged and interprets only the rest."""

    payload: bytes
    message_id: str | None = None
    session_id: str | None = None
    time_to_live: timedelta | None = None
    scheduled_for: datetime | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Why a message is in a dead-letter queue, and its path before that."""

    reason: str | None
    description: str | None
    source: str


@dataclass(frozen=True, slots=True)
class Lock:
    """A receiver's lock on a message. If `session` is set, the session's lock applies instead."""

    token: UUID
    until: datetime
    session: SessionLock | None = None


@dataclass(slots=True)
class Message:
    """A message in an entity.

    `delivery_count` is the number of failed deliveries, as in the AMQP header.
    `enqueued_sequence_number` is its number where it was sent, before any forwarding.
    """

    content: Content
    sequence_number: int
    enqueued_sequence_number: int
    enqueued_at: datetime
    expires_at: datetime | None = None
    delivery_count: int = 0
    dead_letter: DeadLetter | None = None
    lock: Lock | None = None

    @property
    def locked_until(self) -> datetime | None:
        if self.lock is None:
            return None
        return self.lock.until if self.lock.session is None else self.lock.session.until
