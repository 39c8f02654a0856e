"""Queues, subscriptions and topics: an intake, followed by a store or by subscriptions."""

from datetime import datetime, timedelta

from local.amqp_broker.model.errors import NotAllowed
from local.amqp_broker.model.intake import Intake
from local.amqp_broker.model.message import Content, DeadLetter, Message
from local.amqp_broker.model.properties import QueueProperties, TopicProperties
from local.amqp_broker.model.store import NewToken, Store
from local.azure_apis.entities import EntityCounts

DEAD_LETTER_SUFFIX = "/$DeadLetterQueue"
TRANSFER_DEAD_LETTER_SUFFIX = "/$Transfer/$DeadLetterQueue"


class Queue:
    """A queue or a subscription, with its dead-letter queues."""

    def __init__(self, path: str, properties: QueueProperties, new_token: NewToken) -> None:
        self.path = path
        self.properties = properties
        self.intake = Intake(properties.duplicate_window)
        limits = QueueProperties(lock_duration=properties.lock_duration, max_delivery_count=None)
        self.dead_letters = Store(path + DEAD_LETTER_SUFFIX, limits, new_token)
        self.transfer_dead_letters = Store(path + TRANSFER_DEAD_LETTER_SUFFIX, limits, new_token)
        self.store = Store(path, properties, new_token, self.dead_letters)

    def check(self, content: Content) -> None:
        """Raise NotAllowed if the entity cannot accept this message."""
        if self.properties.requires_session and content.session_id is None:
            raise NotAllowed(
                "The SessionId was not set on a message, and it cannot be sent to the entity. "
                "Entities that have session support enabled can only receive messages that have "
                "the SessionId set to a valid value."
            )

    def enqueue(
        self, content: Content, number: int, enqueued_number: int, now: datetime
    ) -> Message:
        message = self.message(content, number, enqueued_number, now)
        self.store.put(message)
        return message

    def refuse_transfer(self, message: Message, reason: str, description: str) -> None:
        """Keep a message that could not be forwarded in the transfer dead-letter queue."""
        message.dead_letter = DeadLetter(reason, description, self.path)
        message.expires_at = None
        self.transfer_dead_letters.put(message)

    def message(
        self, content: Content, number: int, enqueued_number: int, now: datetime
    ) -> Message:
        lifetime = shortest(content.time_to_live, self.properties.time_to_live)
        expires_at = _end(now, lifetime)
        return Message(content, number, enqueued_number, now, expires_at)

    @property
    def counts(self) -> EntityCounts:
        return EntityCounts(
            active=len(self.store),
            dead_letter=len(self.dead_letters),
            scheduled=len(self.intake.scheduled),
            transfer_dead_letter=len(self.transfer_dead_letters),
        )

    @property
    def stores(self) -> tuple[Store, Store, Store]:
        return self.store, self.dead_letters, self.transfer_dead_letters


class Topic:
    """A topic. Every subscription receives every message, because rules are not supported."""

    def __init__(self, path: str, properties: TopicProperties) -> None:
        self.path = path
        self.properties = properties
        self.intake = Intake(properties.duplicate_window)
        self.subscriptions: dict[str, Queue] = {}

    def check(self, content: Content) -> None:
        for subscription in self.subscriptions.values():
            subscription.check(content)

    @property
    def counts(self) -> EntityCounts:
        return EntityCounts(scheduled=len(self.intake.scheduled))


def shortest(*lifetimes: timedelta | None) -> timedelta | None:
    return min((each for each in lifetimes if each is not None), default=None)


def _end(now: datetime, lifetime: timedelta | None) -> datetime | None:
    """None if the lifetime exceeds the calendar: the SDKs write "no limit" that way."""
    if lifetime is None:
        return None
    try:
        return now + lifetime
    except OverflowError:
        return None
