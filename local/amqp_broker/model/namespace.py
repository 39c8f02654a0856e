"""A namespace: entities by path, and the routing of messages through them.

Sources, all below learn.microsoft.com/azure/service-bus-messaging:
- service-bus-auto-forwarding: at most four hops; an entity with sessions cannot forward.
- service-bus-dead-letter-queues: a message that cannot be forwarded goes to the transfer
  dead-letter queue of the entity that could not forward it.
- service-bus-quotas: names of entities ignore case.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import uuid4

from local.amqp_broker.model.entities import (
    DEAD_LETTER_SUFFIX,
    TRANSFER_DEAD_LETTER_SUFFIX,
    Queue,
    Topic,
    shortest,
)
from local.amqp_broker.model.errors import EntityExists, EntityNotFound, NotAllowed
from local.amqp_broker.model.message import Content
from local.amqp_broker.model.properties import QueueProperties, TopicProperties
from local.amqp_broker.model.store import NewToken, Store
from local.azure_apis.entities import EntityCounts

HOPS_MAX = 4
HOPS_EXCEEDED = "MaxTransferHopCountExceeded"
TRANSFER_FAILED = "MessageTransferFailed"

Entity = Queue | Topic


class Namespace:
    """Queues, topics and subscriptions. A subscription's path is `topic/subscriptions/name`."""

    def __init__(self, new_token: NewToken = uuid4) -> None:
        self._new_token = new_token
        self._entities: dict[str, Entity] = {}

    # Entities

    def declare_queue(self, path: str, properties: QueueProperties | None = None) -> None:
        self._add(path, Queue(path, properties or QueueProperties(), self._new_token))

    def declare_topic(self, path: str, properties: TopicProperties | None = None) -> None:
        self._add(path, Topic(path, properties or TopicProperties()))

    def declare_subscription(
        self, topic: str, name: str, properties: QueueProperties | None = None
    ) -> None:
        parent = self.entity(topic)
        if not isinstance(parent, Topic):
            raise NotAllowed(f"'{topic}' is not a topic.")
        path = f"{parent.path}/subscriptions/{name}"
        subscription = Queue(path, properties or QueueProperties(), self._new_token)
        self._add(path, subscription)
        parent.subscriptions[name.lower()] = subscription

    @property
    def entities(self) -> Mapping[str, Entity]:
        """All entities by lower-case path."""
        return self._entities

    def entity(self, path: str) -> Entity:
        entity = self._entities.get(path.lower())
        if entity is None:
            raise EntityNotFound(f"The messaging entity '{path}' could not be found.")
        return entity

    def store(self, path: str) -> Store:
        """The store that a receiver reads: a queue, a subscription, or one's dead-letter queue."""
        suffix, place = _sub_queue(path)
        entity = self.entity(path[: len(path) - len(suffix)])
        if not isinstance(entity, Queue):
            raise NotAllowed(f"'{path}' is a topic: receive from a subscription of it.")
        return entity.stores[place]

    # Messages

    def send(self, path: str, contents: Sequence[Content], now: datetime) -> list[int]:
        """Accept all messages and return their numbers. If one is refused, none is accepted."""
        entity = self.sendable(path)
        self.advance(now)
        for content in contents:
            entity.check(content)
        return [self._enter(entity, content, now) for content in contents]

    def counts(self, path: str, now: datetime) -> EntityCounts:
        entity = self.entity(path)
        self.advance(now)
        return entity.counts

    def advance(self, now: datetime) -> None:
        """Apply everything that is due by now, in order of its due time."""
        due = [
            (scheduled, entity)
            for entity in self._entities.values()
            for scheduled in entity.intake.take_due(now)
        ]
        due.sort(key=lambda each: each[0].due)  # The sort is stable: ties keep their order.
        for scheduled, entity in due:
            arrival = _Arrival(scheduled.content, scheduled.number, scheduled.due)
            self._arrive(entity, arrival, entity.intake.next_number())
        for store in self._stores():
            store.advance(now)

    # Private steps

    def _add(self, path: str, entity: Entity) -> None:
        if not path.strip("/") or path.lower() in self._entities:
            raise EntityExists(f"Entity '{path}' already exists.")
        self._entities[path.lower()] = entity

    def sendable(self, path: str) -> Entity:
        """The queue or topic of that path; NotAllowed for a subscription."""
        entity = self.entity(path)
        if "/subscriptions/" in entity.path.lower():
            raise NotAllowed(f"'{path}' is a subscription: send to its topic.")
        return entity

    def _stores(self) -> Iterator[Store]:
        for entity in self._entities.values():
            if isinstance(entity, Queue):
                yield from entity.stores

    def _enter(self, entity: Entity, content: Content, now: datetime) -> int:
        offer = entity.intake.offer(content, now)
        if offer.goes_on:
            number = offer.sequence_number
            self._arrive(entity, _Arrival(content, number, now), number)
        return offer.sequence_number

    def _arrive(self, entity: Entity, arrival: "_Arrival", number: int) -> None:
        """Deliver a message to an entity, in which it has the sequence number `number`."""
        if isinstance(entity, Topic):
            bounded = replace(arrival, content=_bounded(arrival.content, entity))
            for each in list(entity.subscriptions.values()):
                self._arrive(each, bounded, each.intake.next_number())
        elif entity.properties.forward_to is None:
            entity.enqueue(arrival.content, number, arrival.sent_number, arrival.time)
        else:
            self._forward(entity, entity.properties.forward_to, arrival, number)

    def _forward(self, queue: Queue, path: str, arrival: "_Arrival", number: int) -> None:
        content, now = arrival.content, arrival.time
        try:
            if arrival.hops == HOPS_MAX:
                raise _TooManyHops(f"The message was already forwarded {HOPS_MAX} times.")
            entity = self.sendable(path)
            entity.check(content)
        except (EntityNotFound, NotAllowed, _TooManyHops) as refusal:
            message = queue.message(content, number, arrival.sent_number, now)
            reason = HOPS_EXCEEDED if isinstance(refusal, _TooManyHops) else TRANSFER_FAILED
            queue.refuse_transfer(message, reason, str(refusal))
            return
        offer = entity.intake.offer(content, now)
        if offer.goes_on:
            self._arrive(entity, replace(arrival, hops=arrival.hops + 1), offer.sequence_number)


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A message on its way. `sent_number` is its number in the entity to which it was sent."""

    content: Content
    sent_number: int
    time: datetime
    hops: int = 0


class _TooManyHops(Exception):
    """A chain of forwarding entities is too long, or circular."""


def _sub_queue(path: str) -> tuple[str, int]:
    """The part of a path that names a dead-letter queue, and its place in `Queue.stores`."""
    for suffix, place in ((TRANSFER_DEAD_LETTER_SUFFIX, 2), (DEAD_LETTER_SUFFIX, 1)):
        if path.lower().endswith(suffix.lower()):
            return suffix, place
    return "", 0


def _bounded(content: Content, topic: Topic) -> Content:
    """The topic's time to live limits that of the messages in its subscriptions."""
    lifetime = shortest(content.time_to_live, topic.properties.time_to_live)
    if lifetime == content.time_to_live:
        return content
    return replace(content, time_to_live=lifetime)
