"""Queues, topics and subscriptions of a Service Bus namespace, by path."""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Protocol

_SUBSCRIPTION = re.compile(r"(.+)/subscriptions/([^/]+)", re.IGNORECASE)


class Kind(Enum):
    """The value is the name of the element that describes such an entity."""

    QUEUE = "QueueDescription"
    TOPIC = "TopicDescription"
    SUBSCRIPTION = "SubscriptionDescription"


@dataclass(frozen=True, slots=True)
class EntityCounts:
    """Messages in an entity at one moment."""

    active: int = 0
    dead_letter: int = 0
    scheduled: int = 0
    transfer: int = 0
    transfer_dead_letter: int = 0

    @property
    def total(self) -> int:
        return (
            self.active
            + self.dead_letter
            + self.scheduled
            + self.transfer
            + self.transfer_dead_letter
        )


class CountsProvider(Protocol):
    """Who knows how many messages an entity holds: a workload, or a broker."""

    def counts(self, entity_path: str) -> EntityCounts | None:
        """None when nothing is known: it counts as empty.

        Paths read `queue`, `topic` or `topic/subscriptions/name`, as they were created.
        """


class NoCounts:
    """Every entity is empty."""

    def counts(self, entity_path: str) -> EntityCounts | None:  # noqa: ARG002
        return None


@dataclass(frozen=True, slots=True)
class Entity:
    """`description` is the XML element of its properties, as it was put."""

    path: str
    kind: Kind
    description: str
    created: datetime
    updated: datetime

    @property
    def topic(self) -> str | None:
        return topic_of(self.path)

    @property
    def title(self) -> str:
        """The name by which lists and the SDK call it."""
        match = _SUBSCRIPTION.fullmatch(self.path)
        return match[2] if match else self.path


def topic_of(path: str) -> str | None:
    """The topic of a subscription's path; None for other paths."""
    match = _SUBSCRIPTION.fullmatch(path)
    return match[1] if match else None


class EntityRefused(Exception):
    """An entity cannot be as it was described."""


class EntityStore:
    """Entities by path, in order of creation. Service Bus ignores the case of names."""

    def __init__(self) -> None:
        self._entities: dict[str, Entity] = {}

    @property
    def paths(self) -> set[str]:
        """In lower case."""
        return set(self._entities)

    def get(self, path: str) -> Entity | None:
        return self._entities.get(path.lower())

    def put(self, entity: Entity) -> None:
        self._entities[entity.path.lower()] = entity

    def delete(self, path: str) -> bool:
        """Whether there was one. A topic takes its subscriptions with it."""
        for subscription in EntityStore.subscriptions(self, path):
            del self._entities[subscription.path.lower()]
        return self._entities.pop(path.lower(), None) is not None

    def of_kind(self, kind: Kind) -> list[Entity]:
        return [entity for entity in self._entities.values() if entity.kind is kind]

    def subscriptions(self, topic: str) -> list[Entity]:
        return [
            entity
            for entity in self._entities.values()
            if (entity.topic or "").lower() == topic.lower()
        ]
