"""Queues, topics and subscriptions of a Service Bus namespace, as administration tells of them."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from enum import Enum
from typing import Protocol


class Kind(Enum):
    """The value is the name of the element that describes such an entity."""

    QUEUE = "QueueDescription"
    TOPIC = "TopicDescription"
    SUBSCRIPTION = "SubscriptionDescription"


@dataclass(frozen=True, slots=True)
class EntityCounts:
    """Messages in an entity at one moment. `active` includes those that are locked."""

    active: int = 0
    dead_letter: int = 0
    scheduled: int = 0
    transfer: int = 0
    transfer_dead_letter: int = 0

    @property
    def total(self) -> int:
        return sum(astuple(self))


class CountsProvider(Protocol):
    """Who knows how many messages an entity holds."""

    def counts(self, entity_path: str) -> EntityCounts | None:
        """None when nothing is known: it counts as empty.

        Paths read `queue`, `topic` or `topic/subscriptions/name`, as they were created.
        """


@dataclass(frozen=True, slots=True)
class Entity:
    """`properties` are named and written as in the XML; those left out are the defaults."""

    path: str
    kind: Kind
    properties: Mapping[str, str]
    counts: EntityCounts = EntityCounts()
    subscription_count: int = 0

    @property
    def title(self) -> str:
        """The name by which the SDK calls it."""
        return self.path.rpartition("/subscriptions/")[2]
