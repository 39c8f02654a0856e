"""Ties Service Bus administration over HTTP to the broker: the same entities, the same messages.

What the administration client creates can be sent to over AMQP at once, and what it counts are
the messages that were sent. Entities declared in the broker's namespace show up as well.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from local.amqp_broker import descriptions
from local.amqp_broker.broker import Broker
from local.amqp_broker.model.entities import Queue
from local.amqp_broker.model.errors import BrokerError, EntityNotFound
from local.amqp_broker.model.namespace import Entity as BrokerEntity
from local.amqp_broker.server import AmqpStandIn
from local.azure_apis.entities import (
    Entity,
    EntityCounts,
    EntityRefused,
    EntityStore,
    Kind,
    topic_of,
)
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn
from local.clock import Clock, utc_now


@dataclass(frozen=True, slots=True)
class ServiceBusStandIn:
    """Both ends of one namespace. Each has a connection string of its own, for its own port."""

    amqp: AmqpStandIn
    administration: ServiceBusAdminStandIn

    @property
    def connection_string(self) -> str:
        """For messages and administration alike, as in Azure: the port of AMQP takes both."""
        return self.amqp.connection_string


@asynccontextmanager
async def service_bus(
    *, clock: Clock = utc_now, port: int = 0, administration_port: int = 0
) -> AsyncIterator[ServiceBusStandIn]:
    """Messages over AMQP and administration over HTTP, until the end of the `async with`.

    Microsoft's emulator has them on ports 5672 and 5300; 0 takes free ones.
    """
    broker = Broker(clock)
    administration = ServiceBusAdminStandIn(
        BrokerCounts(broker),
        port=administration_port,
        clock=clock,
        entities=BrokerEntities(broker),
    )
    amqp = AmqpStandIn(broker=broker, port=port, others=administration.new_connection)
    async with administration, amqp:
        yield ServiceBusStandIn(amqp, administration)


class BrokerCounts:
    """Counts the messages in the broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def counts(self, entity_path: str) -> EntityCounts | None:
        try:
            counts = self._broker.namespace.counts(entity_path, self._broker.now())
        except EntityNotFound:
            return None
        return EntityCounts(
            active=counts.active,
            dead_letter=counts.dead_letter,
            scheduled=counts.scheduled,
            transfer_dead_letter=counts.transfer_dead_letter,
        )


class BrokerEntities(EntityStore):
    """Descriptions of the broker's entities: changes go through, and its own show up here."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker = broker

    def get(self, path: str) -> Entity | None:
        self._follow()
        return super().get(path)

    def put(self, entity: Entity) -> None:
        """EntityRefused when the broker cannot have such an entity."""
        known = self.get(entity.path) is not None
        try:
            self._change(entity) if known else self._declare(entity)
        except BrokerError as error:
            raise EntityRefused(str(error)) from error
        super().put(entity)

    def delete(self, path: str) -> bool:
        self._follow()
        if super().get(path) is None:
            return False
        self._broker.namespace.delete(path)
        return super().delete(path)

    def of_kind(self, kind: Kind) -> list[Entity]:
        self._follow()
        return super().of_kind(kind)

    def subscriptions(self, topic: str) -> list[Entity]:
        self._follow()
        return super().subscriptions(topic)

    def _declare(self, entity: Entity) -> None:
        namespace = self._broker.namespace
        if entity.kind is Kind.TOPIC:
            topic_properties = descriptions.topic_properties(entity.description)
            namespace.declare_topic(entity.path, topic_properties)
            return
        properties = descriptions.queue_properties(entity.kind, entity.description)
        if entity.topic is None:
            namespace.declare_queue(entity.path, properties)
        else:
            namespace.declare_subscription(entity.topic, entity.title, properties)

    def _change(self, entity: Entity) -> None:
        if entity.kind is Kind.TOPIC:
            topic_properties = descriptions.topic_properties(entity.description)
            self._broker.namespace.change(entity.path, topic_properties)
        else:
            properties = descriptions.queue_properties(entity.kind, entity.description)
            self._broker.namespace.change(entity.path, properties)

    def _follow(self) -> None:
        """Describe what was declared in the broker itself, forget what was deleted there."""
        present = {entity.path.lower(): entity for entity in self._broker.namespace.entities}
        for path in self.paths - present.keys():
            super().delete(path)
        for path in present.keys() - self.paths:
            super().put(self._described(present[path]))

    def _described(self, entity: BrokerEntity) -> Entity:
        now = self._broker.now()
        if isinstance(entity, Queue):
            kind = Kind.QUEUE if topic_of(entity.path) is None else Kind.SUBSCRIPTION
            description = descriptions.describe_queue(kind, entity.properties)
            return Entity(entity.path, kind, description, now, now)
        description = descriptions.describe_topic(entity.properties)
        return Entity(entity.path, Kind.TOPIC, description, now, now)
