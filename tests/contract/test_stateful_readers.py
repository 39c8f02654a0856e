"""Random queues, read in memory and through the services' clients, give the same readings."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from urllib.parse import quote

from azure.core.exceptions import AzureError
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from local.azure_apis.entities import EntityCounts
from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn
from local.azurite import Azurite
from local.twins.autoscaling import MemoryCapacityControl, MemoryReader
from local.twins.datasets import MemoryQueueReader
from local.twins.ingestion import MemoryBreakerStore
from shared.autoscaling import (
    PlanCapacity,
    ServiceBusQueue,
    ServiceBusSubscription,
    StorageQueue,
)
from shared.autoscaling.errors import CapacityRefused, ReadFailed
from shared.autoscaling.services.clients import AzureReader
from shared.autoscaling.sources import Count, Source
from shared.azure.queues import queue_service
from shared.settings.connections import ServiceBusConnection, StorageConnection
from shared.trends.datasets.entities import QueueDescription
from shared.trends.datasets.queue_settings import ServiceBusQueueReader
from shared.values.messages import LinkFailed
from tests.builders import not_asked, plan, read
from tests.contract.faulty_network import Network
from tests.contract.stateful import SideBySide, run_machine

QUEUE_NAMES = ("jobs", "orders/new", "ü#?")
SUBSCRIPTIONS = (("news", "all"), ("news", "ü"), ("a.b", "all"))
QUEUES = st.sampled_from(QUEUE_NAMES)
KINDS: tuple[Count, ...] = ("active", "dead_letter", "scheduled")
KIND = st.sampled_from(KINDS)
NUMBERS = st.integers(0, 10**6)
counted = st.builds(EntityCounts, active=NUMBERS, dead_letter=NUMBERS, scheduled=NUMBERS)
WINDOWS = st.sampled_from((None, timedelta(minutes=10), timedelta(days=1, seconds=90)))


class Given:
    """The message counts of entities, by path."""

    def __init__(self) -> None:
        self.by_path: dict[str, EntityCounts] = {}

    def counts(self, entity_path: str) -> EntityCounts | None:
        return self.by_path.get(entity_path)


class Services:
    """The real clients, and the services that they read."""

    def __init__(self, network: Network, string: str) -> None:
        self.given = Given()
        self.bus = ServiceBusAdminStandIn(self.given, clock=lambda: network.now)
        self.network, self.storage = network, StorageConnection("Storage", string)

    async def open(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(self.bus)
        connection = ServiceBusConnection("Bus", self.bus.connection_string)
        self.control = MemoryCapacityControl(lambda: self.network.now, {"plan-1": 2})
        breakers = MemoryBreakerStore(lambda: self.network.now)
        self.reader = AzureReader(
            lambda _: self.storage,
            lambda _: connection,
            self.control,
            breakers.metric,
            not_asked,
            not_asked,
        )
        self.queue_reader = ServiceBusQueueReader(connection)
        self.queues = queue_service(self.storage)
        for each in (self.reader, self.queue_reader, self.queues):
            stack.push_async_callback(each.close)


class ReadersMachine(SideBySide):
    errors = (ReadFailed, CapacityRefused, LinkFailed)

    def __init__(self, runner: asyncio.Runner, network: Network, services: Services) -> None:
        super().__init__(runner, network)
        self.services, self.bus = services, services.bus
        self.memory = MemoryReader(lambda: network.now, {}, services.control)
        self.facts: dict[str, QueueDescription] = {}
        self.memory_queues = MemoryQueueReader(self.facts)
        self.storage_queue = f"backlog-{uuid.uuid4().hex[:8]}"

    @initialize()
    def no_queue_exists(self) -> None:
        self.services.given.by_path.clear()
        self.bus.entities.clear()

    @rule(
        name=QUEUES,
        counts=counted,
        window=WINDOWS,
        sessions=st.booleans(),
        forward=st.none() | QUEUES,
    )
    def a_queue_is_created_or_changed(
        self,
        name: str,
        counts: EntityCounts,
        window: timedelta | None,
        sessions: bool,
        forward: str | None,
    ) -> None:
        properties = {
            "RequiresDuplicateDetection": "false" if window is None else "true",
            "RequiresSession": str(sessions).lower(),
            **({"ForwardTo": f"{self.bus.base_url}/{quote(forward)}"} if forward else {}),
        }
        if window is not None:
            seconds = int(window.total_seconds())
            days, rest = divmod(seconds, 86400)
            written = f"P{days}DT{rest}S"
            properties["DuplicateDetectionHistoryTimeWindow"] = written
        self.bus.declare_queue(name, **properties)
        self.facts[name] = QueueDescription(name, window, sessions, forward)
        self.count(name, counts, lambda kind: ServiceBusQueue(name, kind))

    @rule(names=st.sampled_from(SUBSCRIPTIONS), counts=counted, on_topic=counted)
    def a_subscription_is_created_or_changed(
        self, names: tuple[str, str], counts: EntityCounts, on_topic: EntityCounts
    ) -> None:
        """Scheduled messages wait in the topic. They are read for any of its subscriptions, even
        for one that does not exist."""
        topic, name = names
        self.bus.declare_topic(topic)
        self.bus.declare_subscription(topic, name)
        self.services.given.by_path[topic] = on_topic
        path = f"{topic}/subscriptions/{name}"
        self.count(path, counts, lambda kind: ServiceBusSubscription(topic, name, kind))
        for each, other in SUBSCRIPTIONS:
            if each == topic:
                scheduled = ServiceBusSubscription(topic, other, "scheduled")
                self.memory.values[scheduled] = float(on_topic.scheduled)

    def count(self, path: str, counts: EntityCounts, source: Callable[[Count], Source]) -> None:
        self.services.given.by_path[path] = counts
        for kind in KINDS:
            self.memory.values[source(kind)] = float(getattr(counts, kind))

    @rule(name=QUEUES)
    def a_queue_is_deleted(self, name: str) -> None:
        self.bus.entities.pop(name, None)
        self.facts.pop(name, None)
        for kind in KINDS:
            self.memory.values.pop(ServiceBusQueue(name, kind), None)

    @rule(number=st.integers(0, 3))
    def messages_arrive_in_a_storage_queue(self, number: int) -> None:
        source = StorageQueue(self.storage_queue)

        async def send() -> None:
            queue = self.services.queues.get_queue_client(self.storage_queue)
            with suppress(AzureError):
                await queue.create_queue()
            for _ in range(number):
                await queue.send_message("work")

        self.run(send)
        self.memory.values[source] = self.memory.values.get(source, 0.0) + number

    @rule()
    def a_storage_queue_is_deleted(self) -> None:
        async def delete() -> None:
            with suppress(AzureError):
                await self.services.queues.delete_queue(self.storage_queue)

        self.run(delete)
        self.memory.values.pop(StorageQueue(self.storage_queue), None)

    @rule(kind=KIND)
    def everything_is_read(self, kind: Count) -> None:
        sources: tuple[Source, ...] = (
            *[ServiceBusQueue(name, kind) for name in QUEUE_NAMES],
            *[ServiceBusSubscription(topic, name, kind) for topic, name in SUBSCRIPTIONS],
            StorageQueue(self.storage_queue),
            PlanCapacity(plan("plan-1")),
            PlanCapacity(plan("plan-2")),
        )
        for source in sources:
            self.both(
                lambda source=source: read(source, self.memory),  # type: ignore[misc]
                lambda source=source: read(source, self.services.reader),  # type: ignore[misc]
            )
        for name in QUEUE_NAMES:
            self.both(
                lambda name=name: self.memory_queues.facts(name),  # type: ignore[misc]
                lambda name=name: self.services.queue_reader.facts(name),  # type: ignore[misc]
            )

    @rule(seconds=st.integers(1, 3600))
    def time_passes(self, seconds: int) -> None:
        self.later(seconds)


def test_queues_are_read_like_those_in_memory(azurite: Azurite) -> None:
    network = Network()
    with asyncio.Runner() as runner, network.installed():
        stack, services = AsyncExitStack(), Services(network, azurite.connection_string)
        runner.run(services.open(stack))
        try:
            run_machine(lambda: ReadersMachine(runner, network, services), examples=8)
        finally:
            runner.run(stack.aclose())
