"""Queues, topics and subscriptions of a Service Bus namespace, as administration describes them."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from enum import Enum
from typing import Protocol


class Kind(Enum):
    """Kinds of entities. The value is the name of the XML element that describes the entity."""

    QUEUE = "QueueDescription"
    TOPIC = "TopicDescription"
    SUBSCRIPTION = "SubscriptionDescription"


@dataclass(frozen=True, slots=True)
class EntityCounts:
    """Numbers of messages in an entity. `active` includes locked messages."""

    active: int = 0
    dead_letter: int = 0
    scheduled: int = 0
    transfer: int = 0
    transfer_dead_letter: int = 0

    @property
    def total(self) -> int:
        return sum(astuple(self))


class CountsProvider(Protocol):
    """A source of message counts."""

    def counts(self, entity_path: str) -> EntityCounts | None:
        """The counts of an entity. None counts as empty.

        Paths have the form `queue`, `topic` or `topic/subscriptions/name`, as created.
        """


@dataclass(frozen=True, slots=True)
class Entity:
    """`properties` have the names and the form of the XML. Those left out take the defaults."""

    path: str
    kind: Kind
    properties: Mapping[str, str]
    counts: EntityCounts = EntityCounts()
    subscription_count: int = 0

    @property
    def title(self) -> str:
        """The name that the SDK uses."""
        return self.path.rpartition("/subscriptions/")[2]
