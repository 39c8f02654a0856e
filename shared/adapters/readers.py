"""Readers of metric sources: one for each Azure service, and AzureReader, which chooses among
them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from shared.adapters.azure.refusals import Access, AccessRefused, queue_access, service_bus_access
from shared.adapters.azure.transport import retry_after_seconds, server_time
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
from shared.ingestion.store.breakers import BreakerStore
from shared.settings.connections import ServiceBusConnection, StorageConnection
from shared.values.redaction import redacting
from shared.values.text import one_line

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


@contextmanager
def _answering(access: Access, missing: str) -> Iterator[None]:
    """Raises ReadFailed, with ``missing`` if the source does not exist, and AccessRefused."""
    try:
        with access.explained():
            yield
    except AccessRefused:
        raise
    except ResourceNotFoundError as error:
        raise ReadFailed(f"{missing}: check its name in the rules") from error
    except HttpResponseError as error:
        text = f"{access.place}: {error.status_code}: {one_line(error.message)}"
        raise ReadFailed(text) from error
    except (AttributeError, TypeError, ValueError) as error:  # of the client
        text = f"{access.place}: the answer cannot be read ({one_line(error)})"
        raise ReadFailed(text) from error


@redacting
class ServiceBusReader:
    """Reads the message counts of queues and subscriptions of one Service Bus namespace.

    While the namespace asks to wait, nothing is read.
    """

    def __init__(self, connection: ServiceBusConnection) -> None:
        from shared.adapters.service_bus.administration import (  # noqa: PLC0415  heavy
            administration_client,
            described,
        )

        self._client = administration_client(connection)
        self._connection = connection
        self._described = described
        self._waits_until = time.monotonic()

    async def read(self, source: ServiceBusSource) -> MetricValue:
        name, where = _name_of(source), f"the namespace of {source.connection}"
        if (seconds := self._waits_until - time.monotonic()) > 0:
            raise ReadFailed(f"{where} throttles requests: {name} is read in {seconds:.0f} s")
        access = service_bus_access(self._connection, name, "Owner")
        with _answering(access, f"{name} does not exist in {where}"):
            try:
                count = await self._count(source)
            except HttpResponseError as error:
                self._waits_until = time.monotonic() + (retry_after_seconds(error.response) or 0)
                raise
        if count is None:
            raise ReadFailed(f"{where} did not return the count of {name}: it may be throttling")
        return MetricValue(server_time(), float(count))

    async def close(self) -> None:
        await self._client.close()

    async def _count(self, source: ServiceBusSource) -> int | None:
        client, cls = self._client, self._described
        properties: Any
        if isinstance(source, ServiceBusQueue):
            properties = await client.get_queue_runtime_properties(source.queue, cls=cls)
        elif isinstance(source, TopicSubscriptions) or source.count == "scheduled":
            properties = await client.get_topic_runtime_properties(source.topic, cls=cls)
        else:
            properties = await client.get_subscription_runtime_properties(
                source.topic, source.subscription, cls=cls
            )
        if isinstance(source, TopicSubscriptions):
            name = "subscription_count"
        else:
            name = f"{source.count}_message_count"
        try:
            count: int | None = getattr(properties, name)
        except AttributeError:  # the client expects each answer to contain counts
            return None
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
        name, where = f"queue {source.queue}", f"the storage account of {source.connection}"
        access = queue_access(self._connection, source.queue)
        with _answering(access, f"{name} does not exist in {where}"):
            properties = await queue.get_queue_properties()
        count = properties.approximate_message_count
        if count is None:
            raise ReadFailed(f"{where} did not return the length of {name}")
        return MetricValue(server_time(), float(count))

    async def close(self) -> None:
        await self._client.close()
