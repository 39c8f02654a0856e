"""What metric sources read with: one client for each connection, opened on first use."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from shared.autoscaling.azure_monitor.source import AzureMonitorMetric
from shared.autoscaling.azure_monitor.together import PlatformMetrics, Together
from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.errors import ReadFailed
from shared.autoscaling.ports import CapacityControl
from shared.autoscaling.services.documents import WebDocuments
from shared.autoscaling.sources import ServiceBusSource, Source, StorageQueue
from shared.azure.refusals import Access, AccessRefused, queue_access, service_bus_access
from shared.azure.transport import retry_after_seconds, server_time
from shared.settings.connections import ServiceBusConnection, StorageConnection
from shared.values.measurements import MetricValue
from shared.values.redaction import redacting
from shared.values.text import one_line


@redacting
class AzureReader:
    """See Services. The parts of the app that are given as functions are built on first use."""

    def __init__(
        self,
        storage: Callable[[str], StorageConnection],
        service_bus: Callable[[str], ServiceBusConnection],
        control: CapacityControl,
        breaker: Callable[[], Awaitable[MetricValue]],
        platform: Callable[[], PlatformMetrics],
        now: Callable[[], datetime],
    ) -> None:
        self._storage = storage
        self._service_bus = service_bus
        self._control = control
        self._breaker = breaker
        self._platform = Together(platform)
        self._documents = WebDocuments()
        self._readers: dict[tuple[type, str], Any] = {}
        self._closed = False
        self._now = now

    async def message_count(self, source: ServiceBusSource) -> MetricValue:
        return await self._read(ServiceBusReader, self._service_bus, source)

    async def queue_length(self, source: StorageQueue) -> MetricValue:
        return await self._read(StorageQueueReader, self._storage, source)

    async def _read(
        self, reader: type[Any], connection: Callable[[str], Any], source: Source
    ) -> MetricValue:
        self._check_open()
        key = reader, source.connection
        if key not in self._readers:
            self._readers[key] = reader(connection(source.connection))
        return await self._readers[key].read(source)  # type: ignore[no-any-return]

    async def capacity(self, plan: AppServicePlan) -> MetricValue:
        return await self._control.describe(plan)

    async def breaker(self) -> MetricValue:
        return await self._breaker()

    async def azure_monitor(self, source: AzureMonitorMetric) -> Sequence[MetricValue]:
        return await self._platform.read(source)

    async def get_json(self, url: str, headers: Mapping[str, str]) -> tuple[Any, datetime | None]:
        self._check_open()
        return await self._documents.get_json(url, headers)

    def now(self) -> datetime:
        return self._now()

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
    except (AttributeError, TypeError, ValueError) as error:  # of the client
        text = f"{access.place}: the answer cannot be read ({one_line(error)})"
        raise ReadFailed(text) from error


@redacting
class ServiceBusReader:
    """Reads the message counts of queues and subscriptions of one Service Bus namespace.

    While the namespace asks to wait, nothing is read.
    """

    def __init__(self, connection: ServiceBusConnection) -> None:
        from shared.azure.service_bus import (  # noqa: PLC0415  heavy
            administration_client,
            described,
        )

        self._client = administration_client(connection)
        self._connection = connection
        self._described = described
        self._waits_until = time.monotonic()

    async def read(self, source: ServiceBusSource) -> MetricValue:
        kind, *path = source.place
        name, where = f"{kind} {'/'.join(path)}", f"the namespace of {source.connection}"
        if (seconds := self._waits_until - time.monotonic()) > 0:
            raise ReadFailed(f"{where} throttles requests: {name} is read in {seconds:.0f} s")
        properties_of = getattr(self._client, f"get_{kind}_runtime_properties")
        access = service_bus_access(self._connection, name, "Owner")
        with _answering(access, f"{name} does not exist in {where}"):
            try:
                properties = await properties_of(*path, cls=self._described)
            except HttpResponseError as error:
                self._waits_until = time.monotonic() + (retry_after_seconds(error.response) or 0)
                raise
        try:
            count = getattr(properties, source.counted)
        except AttributeError:  # the client expects each answer to contain counts
            count = None
        if count is None:
            raise ReadFailed(f"{where} did not return the count of {name}: it may be throttling")
        return MetricValue(server_time(), float(count))

    async def close(self) -> None:
        await self._client.close()


@redacting
class StorageQueueReader:
    """Reads the approximate lengths of the queues of one storage account."""

    def __init__(self, connection: StorageConnection) -> None:
        from shared.azure.queues import queue_service  # noqa: PLC0415  heavy

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
