"""Serves Service Bus administration over HTTP from the broker's entities and messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from local.amqp_broker.broker import Broker
from local.amqp_broker.model.entities import Queue, Topic
from local.amqp_broker.model.errors import EntityNotFound
from local.amqp_broker.model.properties import STANDARD_MESSAGE_BYTES_MAX
from local.azure_apis import atom
from local.azure_apis.entities import Entity, Kind
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn
from local.clock import Clock, utc_now
from local.tokens import SERVICE_BUS

if TYPE_CHECKING:
    from local.amqp_broker.server import AmqpStandIn


@dataclass(frozen=True, slots=True)
class ServiceBusStandIn:
    """AMQP and administration of one namespace, each with a port and a connection string."""

    amqp: AmqpStandIn
    administration: ServiceBusAdminStandIn

    @property
    def connection_string(self) -> str:
        """For messages and administration. As in Azure, the AMQP port serves both."""
        return self.amqp.connection_string


@asynccontextmanager
async def service_bus(
    *,
    clock: Clock = utc_now,
    port: int = 0,
    administration_port: int = 0,
    token_clock: Clock | None = None,
) -> AsyncIterator[ServiceBusStandIn]:
    """Serve messages over AMQP and administration over HTTP until the end of the `async with`.

    Port 0 takes a free port. Microsoft's emulator uses ports 5672 and 5300. With a `token_clock`,
    only tokens of Microsoft Entra ID are accepted, which expire by that clock; else any token.
    """
    from local.amqp_broker.server import AmqpStandIn  # noqa: PLC0415  it may not be installed

    broker = Broker(clock)
    administration = BrokerAdministration(broker, port=administration_port, token_clock=token_clock)
    amqp = AmqpStandIn(
        broker=broker,
        port=port,
        others=administration.new_connection,
        token_clock=token_clock,
    )
    async with administration, amqp:
        yield ServiceBusStandIn(amqp, administration)


class BrokerAdministration(ServiceBusAdminStandIn):
    """Describes the broker's entities and counts its messages."""

    def __init__(self, broker: Broker, *, port: int = 0, token_clock: Clock | None = None) -> None:
        super().__init__(port=port, clock=broker.clock)
        if token_clock is not None:
            self.audience, self.token_clock = SERVICE_BUS, token_clock
        self.broker = broker

    def find(self, path: str) -> Entity | None:
        namespace = self.broker.namespace
        try:
            counts = namespace.counts(path, self.broker.now())
        except EntityNotFound:
            return None
        entity = namespace.entity(path)
        if isinstance(entity, Topic):
            texts = _topic_texts(entity)
            return Entity(entity.path, Kind.TOPIC, texts, counts, len(entity.subscriptions))
        kind = _kind(entity)
        return Entity(entity.path, kind, _queue_texts(entity, kind), counts)

    def paths(self, kind: Kind) -> Iterator[str]:
        entities = self.broker.namespace.entities
        return (path for path, entity in entities.items() if _kind(entity) is kind)


def _kind(entity: Queue | Topic) -> Kind:
    if isinstance(entity, Topic):
        return Kind.TOPIC
    return Kind.SUBSCRIPTION if "/subscriptions/" in entity.path else Kind.QUEUE


def _topic_texts(topic: Topic) -> Mapping[str, str]:
    properties = topic.properties
    return {
        "DefaultMessageTimeToLive": _lifetime(properties.time_to_live),
        **_window(properties.duplicate_window),
        **_size(properties.max_message_bytes),
    }


def _queue_texts(queue: Queue, kind: Kind) -> Mapping[str, str]:
    properties = queue.properties
    texts = {
        "LockDuration": _duration(properties.lock_duration),
        "RequiresSession": str(properties.requires_session).lower(),
        "DefaultMessageTimeToLive": _lifetime(properties.time_to_live),
        "DeadLetteringOnMessageExpiration": str(properties.dead_letters_expired).lower(),
        "MaxDeliveryCount": str(properties.max_delivery_count),
    }
    if properties.forward_to is not None:
        texts["ForwardTo"] = properties.forward_to
    if kind is Kind.QUEUE:
        texts |= _window(properties.duplicate_window) | _size(properties.max_message_bytes)
    return texts


def _lifetime(lifetime: timedelta | None) -> str:
    return atom.FOREVER if lifetime is None else _duration(lifetime)


def _window(window: timedelta | None) -> dict[str, str]:
    if window is None:
        return {"RequiresDuplicateDetection": "false"}
    return {
        "RequiresDuplicateDetection": "true",
        "DuplicateDetectionHistoryTimeWindow": _duration(window),
    }


def _size(max_bytes: int) -> dict[str, str]:
    """Like the Standard tier, leave out the size limit that all of its entities have."""
    if max_bytes == STANDARD_MESSAGE_BYTES_MAX:
        return {}
    return {"MaxMessageSizeInKilobytes": str(-(-max_bytes // 1024))}


def _duration(length: timedelta) -> str:
    """ISO 8601, as the service writes it."""
    seconds = length.seconds + length.microseconds / 1_000_000
    return f"P{length.days}DT{seconds:.6f}".rstrip("0").rstrip(".") + "S"
