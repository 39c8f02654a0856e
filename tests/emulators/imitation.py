"""Imitates Microsoft's emulators with the stand-ins, to run the way that tests take to an emulator.

As in the emulators, administration creates queues and topics over HTTP on a port of its own, and
the event hubs are those of event_hubs.json. It says nothing about the emulators themselves.

``python -m tests.emulators.imitation`` prints the variables that point tests to it. Ctrl-C ends it.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from xml.etree import ElementTree

import isodate  # type: ignore[import-untyped]

from local.amqp_broker import AmqpStandIn
from local.amqp_broker.addresses import path_of
from local.amqp_broker.administration import BrokerAdministration
from local.amqp_broker.broker import Broker
from local.amqp_broker.model.properties import HubProperties, QueueProperties
from local.azure_apis.entities import Entity
from local.azure_apis.loopback_server import Reply, Request
from tests.emulators import rig

SUBSCRIPTION = re.compile(r"([^/]+)/subscriptions/([^/]+)", re.IGNORECASE)


class CreatingAdministration(BrokerAdministration):
    """Also creates and deletes queues, topics and subscriptions, within the emulator's quotas."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.credits.per_second = sys.maxsize  # the emulators throttle no requests
        self.names: set[str] = set()

    def handle(self, request: Request) -> Reply:
        path = request.path.strip("/")
        if request.method == "DELETE":
            self.names.remove(path)
            return Reply(200, "")
        if request.method != "PUT":
            return super().handle(request)
        tree = ElementTree.fromstring(request.body)
        texts = {each.tag.rpartition("}")[2]: each.text or "" for each in tree.iter()}
        if not SUBSCRIPTION.fullmatch(path):
            self.names.add(path)
        properties = _properties(texts)
        if refused := [*rig.beyond_quotas(properties), *self._too_many()]:
            return Reply(400, f"The emulator has no such entity: {refused}")
        self._create(path, texts, properties)
        found = super().handle(Request("GET", request.path, {}, {}, b"", request.time))
        return Reply(201, found.body, found.content_type)

    def find(self, path: str) -> Entity | None:
        return super().find(path) if path.partition("/")[0] in self.names else None

    def _too_many(self) -> Iterator[str]:
        if len(self.names) > rig.ENTITIES_MAX:
            yield f"{len(self.names)} queues and topics"

    def _create(self, path: str, texts: Mapping[str, str], properties: QueueProperties) -> None:
        namespace = self.broker.namespace
        if match := SUBSCRIPTION.fullmatch(path):
            namespace.declare_subscription(match[1], match[2], properties)
        elif "TopicDescription" in texts:
            namespace.declare_topic(path)
        else:
            namespace.declare_queue(path, properties)


def _properties(texts: Mapping[str, str]) -> QueueProperties:
    def duration(name: str) -> timedelta | None:
        return isodate.parse_duration(texts[name]) if name in texts else None

    window = duration("DuplicateDetectionHistoryTimeWindow")
    return QueueProperties(
        lock_duration=duration("LockDuration") or QueueProperties().lock_duration,
        max_delivery_count=int(texts.get("MaxDeliveryCount", "10")),
        requires_session=texts.get("RequiresSession") == "true",
        duplicate_window=window if texts.get("RequiresDuplicateDetection") == "true" else None,
        time_to_live=duration("DefaultMessageTimeToLive"),
        dead_letters_expired=texts.get("DeadLetteringOnMessageExpiration") == "true",
        forward_to=path_of(texts.get("ForwardTo")) or None,
    )


@asynccontextmanager
async def imitated() -> AsyncIterator[dict[str, str]]:
    """The environment of a test run against the imitation."""
    broker, hubs = Broker(), Broker()
    for declared in rig.hubs_of_the_emulator():
        groups = ("$Default", *[group["Name"] for group in declared["ConsumerGroups"]])
        properties = HubProperties(
            partition_count=int(declared["PartitionCount"]), consumer_groups=groups
        )
        hubs.declare_hub(declared["Name"], properties)
    async with AsyncExitStack() as stack:
        administration = await stack.enter_async_context(CreatingAdministration(broker))
        bus = await stack.enter_async_context(AmqpStandIn(broker=broker))
        hub = await stack.enter_async_context(AmqpStandIn(broker=hubs))
        yield {
            rig.SERVICE_BUS: bus.connection_string,
            rig.ADMINISTRATION_PORT: str(administration.port),
            rig.EVENT_HUBS: hub.connection_string,
        }


async def main() -> None:
    async with imitated() as environment:
        for name, value in environment.items():
            sys.stdout.write(f"export {name}='{value}'\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
