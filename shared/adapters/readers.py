"""Readers of metric sources: one for each Azure service, and AzureReader, which chooses among
them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from azure.core.exceptions import ResourceNotFoundError

from shared.adapters.azure.refusals import queue_access, service_bus_access
from shared.adapters.azure.transport import server_time
from shared.autoscaling.declaring import (
    IngestionBreaker,
    MetricSource,
    PlanCapacity,
    ServiceBusQueue,
    ServiceBusSubscription,
    StorageQueue,
    TopicSubscriptions,
)
from shared.autoscaling.errors import ReadFailed
from shared.autoscaling.measurements import MetricValue
from shared.autoscaling.ports import CapacityControl
from shared.ingestion.breaker.breaker import BreakerMode
from shared.ingestion.breaker.ports import BreakerStore
from shared.settings.connections import ServiceBusConnection, StorageConnection
from shared.values.redaction import redacting

ServiceBusSource = ServiceBusQueue | ServiceBusSubscription | TopicSubscriptions


class _Client(Protocol):
    async def read(self, source: Any) -> MetricValue: ...

    async def close(self) -> None: ...


@redacting
class AzureReader:
    """Reads any metric source. It opens one client for each connection, on first use."""

    def __init__(
        self,
        storage: Callable[[str], StorageConnection],
        service_bus: Callable[[str], ServiceBusConnection],
        control: CapacityControl,
        breaker: Callable[[], BreakerStore],
    ) -> None:
        self._storage = storage
        self._service_bus = service_bus
        self._control = control
        self._breaker = breaker
        self._clients: dict[tuple[bool, str], _Client] = {}
        self._closed = False

    async def read(self, source: MetricSource) -> MetricValue:
        if isinstance(source, PlanCapacity):
            return await self._control.read(source.plan)
        if isinstance(source, IngestionBreaker):
            snapshot = await self._breaker().load()
            is_closed = snapshot.breaker.mode is BreakerMode.CLOSED
            return MetricValue(snapshot.read_at, float(not is_closed))
        return await self._client(source).read(source)

    async def close(self) -> None:
        self._closed = True
        for client in self._clients.values():
            await client.close()

    def _client(self, source: Any) -> _Client:
        key = (isinstance(source, StorageQueue), source.connection)
        if self._closed:
            raise RuntimeError("the reader is closed and opens no further clients")
        if key not in self._clients:
            self._clients[key] = self._open(source)
        return self._clients[key]

    def _open(self, source: Any) -> _Client:
        if isinstance(source, StorageQueue):
            return StorageQueueReader(self._storage(source.connection))
        if isinstance(source, ServiceBusSource):
            return ServiceBusReader(self._service_bus(source.connection))
        raise TypeError(f"there is no reader for a source of type {type(source).__name__}")


@redacting
class ServiceBusReader:
    """Reads the message counts of queues and subscriptions of one Service Bus namespace."""

    def __init__(self, connection: ServiceBusConnection) -> None:
        from shared.adapters.service_bus.administration import (  # noqa: PLC0415  heavy
            administration_client,
        )

        self._client = administration_client(connection)
        self._connection = connection

    async def read(self, source: ServiceBusSource) -> MetricValue:
        access = service_bus_access(self._connection, _name_of(source), "Owner")
        try:
            with access.explained():
                count = await self._count(source)
        except ResourceNotFoundError as error:
            raise ReadFailed(
                f"{_name_of(source)} does not exist in the namespace of {source.connection}: "
                "check its name in the rules"
            ) from error
        if count is None:
            raise ReadFailed(
                f"the namespace of {source.connection} did not return the count of "
                f"{_name_of(source)}"
            )
        return MetricValue(server_time(), float(count))

    async def close(self) -> None:
        await self._client.close()

    async def _count(self, source: ServiceBusSource) -> int | None:
        properties: object
        if isinstance(source, ServiceBusQueue):
            properties = await self._client.get_queue_runtime_properties(source.queue)
        elif isinstance(source, TopicSubscriptions):
            topic = await self._client.get_topic_runtime_properties(source.topic)
            return topic.subscription_count
        elif source.count == "scheduled":
            properties = await self._client.get_topic_runtime_properties(source.topic)
        else:
            properties = await self._client.get_subscription_runtime_properties(
                source.topic, source.subscription
            )
        count: int | None = getattr(properties, f"{source.count}_message_count")
        return count


def _name_of(source: ServiceBusSource) -> str:
    if isinstance(source, ServiceBusQueue):
        return f"queue {source.queue}"
    if isinstance(source, TopicSubscriptions):
        return f"topic {source.topic}"
    return f"subscription {source.topic}/{source.subscription}"


@redacting
class StorageQueueReader:
    """Reads the approximate lengths of the queues of one storage account."""

    def __init__(self, connection: StorageConnection) -> None:
        from shared.adapters.queues.outbox_sender import queue_service  # noqa: PLC0415  heavy

        self._client = queue_service(connection)
        self._connection = connection

    async def read(self, source: StorageQueue) -> MetricValue:
        queue = self._client.get_queue_client(source.queue)
        try:
            with queue_access(self._connection, source.queue).explained():
                properties = await queue.get_queue_properties()
        except ResourceNotFoundError as error:
            raise ReadFailed(
                f"queue {source.queue} does not exist in the storage account of "
                f"{source.connection}: check its name in the rules"
            ) from error
        count = properties.approximate_message_count
        if count is None:
            raise ReadFailed(
                f"the storage account of {source.connection} did not return the length of queue "
                f"{source.queue}"
            )
        return MetricValue(server_time(), float(count))

    async def close(self) -> None:
        await self._client.close()
