"""What metric sources read with: one client for each connection, opened on first use."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from shared.autoscaling.azure_monitor.source import PlatformMetrics, Together
from shared.autoscaling.errors import ReadFailed
from shared.autoscaling.ports import CapacityControl
from shared.autoscaling.services.documents import WebDocuments
from shared.autoscaling.sources import ServiceBusSource, Source, StorageQueue
from shared.azure.entity_reads import UNREADABLE, EntityReads, NotNow, Turns
from shared.azure.refusals import Access, AccessRefused, queue_access
from shared.azure.transport import server_time
from shared.settings.connections import ArmNamespace, ServiceBusConnection, StorageConnection
from shared.values.measurements import DISABLED, OF_TOPIC, MetricValue
from shared.values.redaction import redacting
from shared.values.text import one_line

if TYPE_CHECKING:
    from azure.storage.queue.aio import QueueClient

    from shared.azure.budget import ArmBudget

TOPIC_SECONDS, TOPIC_KNOWN_SECONDS = 60, 600
TOPIC_TIMEOUT_SECONDS = 3.0
AT_ONCE_MAX = 50


@redacting
class AzureReader:
    """See Services. The parts of the app that are given as functions are built on first use."""

    def __init__(
        self,
        storage: Callable[[str], StorageConnection],
        service_bus: Callable[[str], ServiceBusConnection | ArmNamespace],
        control: CapacityControl,
        breaker: Callable[[], Coroutine[Any, Any, MetricValue]],
        platform: Callable[[], PlatformMetrics],
        now: Callable[[], datetime],
        turns: Callable[[], Turns] = Turns,
        budget: ArmBudget | None = None,
    ) -> None:
        self._storage = storage
        self._service_bus = service_bus
        self.capacity, self.breaker, self.now = control.describe, breaker, now
        self.azure_monitor = Together(platform).read
        self._documents = WebDocuments()
        self._readers: dict[tuple[Callable[[Any], Any], str], Any] = {}
        self._closed = False
        self._bus_reader = partial(
            ServiceBusReader, turns=defaultdict[str, Turns](turns), budget=budget
        )

    async def message_count(self, source: ServiceBusSource) -> MetricValue:
        return await self._read(self._bus_reader, self._service_bus, source)

    async def queue_length(self, source: StorageQueue) -> MetricValue:
        return await self._read(StorageQueueReader, self._storage, source)

    async def _read(
        self, reader: Callable[[Any], Any], connection: Callable[[str], Any], source: Source
    ) -> MetricValue:
        self._check_open()
        key = reader, source.connection
        if key not in self._readers:
            self._readers[key] = reader(connection(source.connection))
        return await self._readers[key].read(source)  # type: ignore[no-any-return]

    def advice(self) -> Sequence[str]:
        named = [
            (name, each) for (kind, name), each in self._readers.items() if kind is self._bus_reader
        ]
        return [f"{name}: {text}" for name, each in named if (text := each.advice())]

    async def get_json(self, url: str, headers: Mapping[str, str]) -> tuple[Any, datetime | None]:
        self._check_open()
        return await self._documents.get_json(url, headers)

    async def close(self) -> None:
        self._closed = True
        for reader in self._readers.values():
            await reader.close()
        await self._documents.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the reader is closed and opens no further clients")


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
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # of the client
        text = f"{access.place}: the answer cannot be read ({one_line(error)})"
        raise ReadFailed(text) from error


@redacting
class ServiceBusReader:
    """Reads the message counts of queues and subscriptions of one Service Bus namespace, and
    whether anything can be received from them. Nothing can from the subscriptions of a disabled
    topic, so each topic is read, too, every ``TOPIC_SECONDS``."""

    def __init__(
        self,
        connection: ServiceBusConnection | ArmNamespace,
        monotonic: Callable[[], float] = time.monotonic,
        turns: Mapping[str, Turns] | None = None,
        budget: ArmBudget | None = None,
    ) -> None:
        from shared.azure.service_bus import ArmEntities, NamespaceEntities  # noqa: PLC0415  heavy

        namespace = connection[1] if isinstance(connection, ArmNamespace) else connection.host
        own = Turns() if turns is None else turns[namespace.lower()]
        self._entities: ArmEntities | NamespaceEntities = (
            ArmEntities(*connection, budget)
            if isinstance(connection, ArmNamespace)
            else NamespaceEntities(connection, own.take)
        )
        self._reads = EntityReads(self._entities, own, monotonic)
        self.advice = self._reads.advice
        self._topics: dict[str, tuple[float, asyncio.Task[None]]] = {}
        self._topic_statuses: dict[str, tuple[float, str]] = {}
        self._monotonic = monotonic

    async def read(self, source: ServiceBusSource) -> MetricValue:
        kind, *path = source.place
        name, where = f"{kind} {'/'.join(path)}", f"the namespace of {source.connection}"
        topic = path[0].lower() if kind == "subscription" else ""
        if topic in self._topic_statuses:  # it exists, so those of many may share a list
            self._topic_read(topic)
        counted = source.counted.replace("_", "")
        with _answering(self._entities.access(name), f"{name} does not exist in {where}"):
            try:
                found = await self._reads.read(kind, path, counted)
            except NotNow as error:
                raise ReadFailed(str(error).format(where=where, name=name)) from error
            count = found.count(counted)
        if count is None:
            raise ReadFailed(f"{where} did not return the count of {name}: it may be throttling")
        status = found.status
        if status not in DISABLED and topic:
            await asyncio.shield(self._topic_read(topic))
            status = OF_TOPIC + self._topic_status(topic)
        return MetricValue(found.time, float(count), status if status in DISABLED else "")

    def _topic_read(self, topic: str) -> asyncio.Task[None]:
        """The newest read of the topic, which all its subscriptions share."""
        now = self._monotonic()
        if topic not in self._topics or now >= self._topics[topic][0]:
            self._topics[topic] = now + TOPIC_SECONDS, asyncio.create_task(self._read_topic(topic))
        return self._topics[topic][1]

    def _topic_status(self, topic: str) -> str:
        """The last known status; empty if it could not be read for ``TOPIC_KNOWN_SECONDS``."""
        now = self._monotonic()
        read_at, status = self._topic_statuses.get(topic, (now, ""))
        return status if now - read_at < TOPIC_KNOWN_SECONDS else ""

    async def _read_topic(self, topic: str) -> None:
        with suppress(*UNREADABLE):
            async with asyncio.timeout(TOPIC_TIMEOUT_SECONDS):
                found = await self._reads.read("topic", [topic], "subscriptioncount")
            self._topic_statuses[topic] = self._monotonic(), found.status

    async def close(self) -> None:
        for _, reading in self._topics.values():
            reading.cancel()
        await self._entities.close()


@redacting
class StorageQueueReader:
    """Reads the approximate lengths of the queues of one storage account, and their ages."""

    def __init__(self, connection: StorageConnection) -> None:
        from shared.azure.queues import queue_service  # noqa: PLC0415  heavy

        self._client = queue_service(connection)
        self._connection = connection
        self._slots = asyncio.Semaphore(AT_ONCE_MAX)

    async def read(self, source: StorageQueue) -> MetricValue:
        queue = self._client.get_queue_client(source.queue)
        name, where = f"queue {source.queue}", f"the storage account of {source.connection}"
        access = queue_access(self._connection, source.queue)
        with _answering(access, f"{name} does not exist in {where}"):
            async with self._slots:
                if source.peek:
                    return await _age(queue)
                properties = await queue.get_queue_properties()
        count = properties.approximate_message_count
        if count is None:
            raise ReadFailed(f"{where} did not return the length of {name}")
        return MetricValue(server_time(), float(count))

    async def close(self) -> None:
        await self._client.close()


async def _age(queue: QueueClient) -> MetricValue:
    """The age in seconds of the message at the front. Peeking does not hide the message."""
    (front,) = await queue.peek_messages(max_messages=1) or (None,)
    now = server_time()
    if front is None:
        return MetricValue(now, 0.0)
    if front.inserted_on is None:
        raise ValueError("the message has no time of insertion")
    return MetricValue(now, max((now - front.inserted_on).total_seconds(), 0.0))
