"""Brokers for the tests: Microsoft's emulators if they are named, else the stand-in.

The variables SERVICE_BUS_EMULATOR and EVENT_HUBS_EMULATOR hold connection strings. A test asks for
what it needs: a queue, a partition of its own, or an event hub without events. The stand-in has
whatever a test asks for. Queues of the emulator are created; its event hubs are declared in
event_hubs.json. A test that needs what an emulator does not offer is skipped there, with a `Limit`
as the reason. CONTRIBUTING.md lists the limits.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

import pytest
from azure.core.pipeline.transport import AioHttpTransport
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubProducerClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from local.amqp_broker import AmqpStandIn
from local.amqp_broker.administration import service_bus
from local.amqp_broker.model.properties import HubProperties, QueueProperties
from local.clock import Clock, utc_now
from shared.settings.connections import EventHubConnection, ServiceBusConnection

SERVICE_BUS, EVENT_HUBS = "SERVICE_BUS_EMULATOR", "EVENT_HUBS_EMULATOR"
ADMINISTRATION_PORT = "EMULATOR_HTTP_PORT"
DEFAULT_PORT = 5300
"""Microsoft's emulator serves administration over HTTP on a port of its own. It takes the port from
the same variable."""

FOLDER = Path(__file__).parent
HUB, PARTITIONS = "telemetry", 32
"""The hub whose partitions the tests share. Each test continues one of them."""
GROUPS = ("g1", "g2", "g3", "g4", "g5", "readback")
EMPTY_HUBS = {1: tuple(f"empty-{n}" for n in range(1, 9)), 2: ("pair-1",)}
"""By number of partitions: hubs that the emulator declares for tests that need one to themselves.
Such a hub has the consumer groups $Default and readback."""
READY_SECONDS = 60.0

ENTITIES_MAX, DELIVERIES_MAX, MESSAGE_BYTES_MAX = 50, 10, 256 * 1024
LIFETIME_MAX, SECONDS_OF_LOCKS, SECONDS_OF_WINDOWS = timedelta(hours=1), (5, 300), (5, 300)
"""https://learn.microsoft.com/azure/service-bus-messaging/overview-emulator#usage-quotas, and the
schema of the emulator's configuration."""


class Limit(Enum):
    """Why a test cannot run against an emulator."""

    INSIDE = "emulators have no clock to move, no faults to arm and no state to inspect"
    QUOTAS = "emulators have small messages, short locks and short windows"
    HUBS = "emulators create no event hubs, and all that event_hubs.json declares have been used"


def skip(limit: Limit) -> NoReturn:
    pytest.skip(limit.value)


@dataclass(frozen=True, slots=True)
class Bus:
    """A Service Bus namespace. `stand_in` is None if it is the emulator."""

    connection: ServiceBusConnection
    administration: ServiceBusConnection
    stand_in: AmqpStandIn | None
    created: list[str] = field(default_factory=list)
    """In the emulator, which has places for 50 queues and topics in all."""

    def inside(self) -> AmqpStandIn:
        """The stand-in. Without one, the test is skipped."""
        return self.stand_in or skip(Limit.INSIDE)

    async def queue(self, **properties: Any) -> str:
        """Create a queue with properties of `QueueProperties`, and return its name."""
        name, declared = f"queue-{new_id()}", QueueProperties(**properties)
        if self.stand_in is not None:
            self.stand_in.namespace.declare_queue(name, declared)
        elif any(beyond_quotas(declared)):
            skip(Limit.QUOTAS)
        else:
            async with administration_client(self.administration) as administration:
                await administration.create_queue(name, **as_created(declared))
            self.created.append(name)
        return name

    async def topic(self, *subscriptions: str, **properties: Any) -> str:
        """Create a topic, and return its name. The properties apply to every subscription."""
        name, declared = f"topic-{new_id()}", QueueProperties(**properties)
        if self.stand_in is not None:
            self.stand_in.namespace.declare_topic(name)
            for each in subscriptions:
                self.stand_in.namespace.declare_subscription(name, each, declared)
            return name
        if any(beyond_quotas(declared)):
            skip(Limit.QUOTAS)
        async with administration_client(self.administration) as administration:
            await administration.create_topic(name)
            self.created.append(name)
            for each in subscriptions:
                await administration.create_subscription(name, each, **as_created(declared))
        return name

    async def remove_created(self) -> None:
        async with administration_client(self.administration) as administration:
            while self.created:
                name = self.created.pop()
                is_topic = name.startswith("topic-")
                await (administration.delete_topic if is_topic else administration.delete_queue)(
                    name
                )


@dataclass(frozen=True, slots=True)
class Hub:
    """An event hub. `stand_in` is None if it is in the emulator.

    The events of the test are in `partition`, after the sequence number `after`; None if there are
    no events of other tests before them.
    """

    connection: EventHubConnection
    stand_in: AmqpStandIn | None
    partition: str = "0"
    after: int | None = None

    @property
    def first(self) -> int:
        """The sequence number of the first event of the test."""
        return 0 if self.after is None else self.after + 1

    def inside(self) -> AmqpStandIn:
        """The stand-in. Without one, the test is skipped."""
        return self.stand_in or skip(Limit.INSIDE)

    @property
    def settings(self) -> dict[str, str]:
        """The app settings for this hub. The app needs some Service Bus connection, too."""
        string = self.connection.connection_string
        return {
            "EventHubConnection": string,
            "EventHubName": self.connection.hub,
            "ServiceBusConnection": string,
        }

    async def send(self, *bodies: str | bytes, partition: str = "") -> None:
        """Send the events in as few batches as possible."""
        async with self._producer() as producer:
            batch = await producer.create_batch(partition_id=partition or self.partition)
            for body in bodies:
                try:
                    batch.add(EventData(body))
                except ValueError:  # it is full
                    await producer.send_batch(batch)
                    batch = await producer.create_batch(partition_id=partition or self.partition)
                    batch.add(EventData(body))
            await producer.send_batch(batch)

    def _producer(self) -> EventHubProducerClient:
        return EventHubProducerClient.from_connection_string(
            self.connection.connection_string, eventhub_name=self.connection.hub
        )


@asynccontextmanager
async def running_bus(clock: Clock = utc_now) -> AsyncIterator[Bus]:
    """The clock is that of the stand-in."""
    if string := os.environ.get(SERVICE_BUS, ""):
        port = int(os.environ.get(ADMINISTRATION_PORT, "") or DEFAULT_PORT)
        bus = Bus(_bus(string), _bus(with_port(string, port)), None)
        try:
            yield bus
        finally:
            await bus.remove_created()
        return
    async with service_bus(clock=clock) as stand_in:
        connection = _bus(stand_in.connection_string)
        yield Bus(connection, connection, stand_in.amqp)


@contextmanager
def bus_in_thread() -> Iterator[Bus]:
    """For tests that block. The stand-in runs in a thread with a loop of its own."""
    if os.environ.get(SERVICE_BUS, ""):
        bus = asyncio.run(_first(running_bus()))
        try:
            yield bus
        finally:
            asyncio.run(bus.remove_created())
        return
    started: Future[tuple[Bus, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        async with running_bus() as bus:
            started.set_result((bus, asyncio.get_running_loop(), stop))
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    bus, loop, stop = started.result(READY_SECONDS)
    try:
        yield bus
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(READY_SECONDS)


async def _first(context: Any) -> Any:
    async with context as value:
        return value


@asynccontextmanager
async def a_partition(clock: Clock = utc_now) -> AsyncIterator[Hub]:
    """A partition of the hub HUB that no other test of this run uses. The clock is that of the
    stand-in."""
    async with _hubs(clock) as (string, stand_in):
        if stand_in is not None:
            properties = HubProperties(
                partition_count=PARTITIONS, consumer_groups=("$Default", *GROUPS)
            )
            stand_in.broker.declare_hub(HUB, properties)
            yield Hub(_hub(string, HUB), stand_in)
            return
        partition = str(next(_partitions) % PARTITIONS)
        yield Hub(_hub(string, HUB), None, partition, await _newest(string, HUB, partition))


@asynccontextmanager
async def an_empty_hub(partitions: int = 1) -> AsyncIterator[Hub]:
    """A hub without events."""
    async with _hubs() as (string, stand_in):
        if stand_in is not None:
            name = f"hub-{new_id()}"
            groups = ("$Default", "readback")
            properties = HubProperties(partition_count=partitions, consumer_groups=groups)
            stand_in.broker.declare_hub(name, properties)
        else:
            name = await next_empty(string, partitions) or skip(Limit.HUBS)
        yield Hub(_hub(string, name), stand_in)


@asynccontextmanager
async def _hubs(clock: Clock = utc_now) -> AsyncIterator[tuple[str, AmqpStandIn | None]]:
    if string := os.environ.get(EVENT_HUBS, ""):
        yield string, None
        return
    async with service_bus(clock=clock) as stand_in:
        yield stand_in.connection_string, stand_in.amqp


async def next_empty(string: str, partitions: int) -> str | None:
    """A declared hub without events. With KEEP=1, the hubs hold events of an earlier run."""
    for name in EMPTY_HUBS[partitions]:
        newest = [await _newest(string, name, str(number)) for number in range(partitions)]
        if newest == [None] * partitions:
            return name
    return None


async def _newest(string: str, hub: str, partition: str) -> int | None:
    client = EventHubProducerClient.from_connection_string(string, eventhub_name=hub)
    async with client:
        facts = await client.get_partition_properties(partition)
    return None if facts["is_empty"] else int(facts["last_enqueued_sequence_number"])


_partitions = itertools.count()


class _Http(AioHttpTransport):  # type: ignore[misc]
    """Rewrites URLs: the administration client requires https, but the emulator serves http."""

    async def send(self, request: Any, **config: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return await super().send(request, **config)


def administration_client(connection: ServiceBusConnection) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        connection.connection_string, transport=_Http()
    )


def as_created(properties: QueueProperties) -> dict[str, Any]:
    """The options of the administration client for these properties."""
    created = {
        "lock_duration": properties.lock_duration,
        "max_delivery_count": properties.max_delivery_count,
        "requires_session": properties.requires_session,
        "requires_duplicate_detection": properties.duplicate_window is not None or None,
        "duplicate_detection_history_time_window": properties.duplicate_window,
        "default_message_time_to_live": properties.time_to_live,
        "dead_lettering_on_message_expiration": properties.dead_letters_expired,
        "forward_to": properties.forward_to,
    }
    return {name: value for name, value in created.items() if value is not None}


def beyond_quotas(properties: QueueProperties) -> Iterator[str]:
    """What Microsoft's emulator does not offer."""
    lock, window = properties.lock_duration, properties.duplicate_window
    if not SECONDS_OF_LOCKS[0] <= lock.total_seconds() <= SECONDS_OF_LOCKS[1]:
        yield f"lock duration {lock}"
    if window and not SECONDS_OF_WINDOWS[0] <= window.total_seconds() <= SECONDS_OF_WINDOWS[1]:
        yield f"duplicate window {window}"
    if (properties.time_to_live or LIFETIME_MAX) > LIFETIME_MAX:
        yield f"time to live {properties.time_to_live}"
    if (properties.max_delivery_count or 1) > DELIVERIES_MAX:
        yield f"max delivery count {properties.max_delivery_count}"
    if properties.max_message_bytes > MESSAGE_BYTES_MAX:
        yield f"messages of {properties.max_message_bytes:,} bytes"


def new_id() -> str:
    return uuid.uuid4().hex[:8]


def with_port(connection_string: str, port: int) -> str:
    return re.sub(r"(sb://[^:/;]+)(:\d+)?", rf"\g<1>:{port}", connection_string)


def hubs_of_the_emulator() -> list[dict[str, Any]]:
    """The event hubs in the configuration file of the emulator."""
    document = json.loads((FOLDER / "event_hubs.json").read_text())
    (namespace,) = document["UserConfig"]["NamespaceConfig"]
    entities: list[dict[str, Any]] = namespace["Entities"]
    return entities


def _bus(connection_string: str) -> ServiceBusConnection:
    return ServiceBusConnection("ServiceBusConnection", connection_string)


def _hub(connection_string: str, name: str) -> EventHubConnection:
    host = re.search(r"sb://([^;/]+)", connection_string)
    assert host is not None
    return EventHubConnection("EventHubConnection", name, host[1], connection_string)
