"""One reader for all kinds of sources: each goes to the client of its service and connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from shared.autoscaling.declaring import IngestionBreaker, MetricSource, PlanCapacity, StorageQueue
from shared.autoscaling.measurements import MetricValue
from shared.autoscaling.ports import CapacityControl
from shared.ingestion.breaker.breaker import BreakerMode
from shared.ingestion.breaker.ports import BreakerStore
from shared.settings.connections import ServiceBusConnection, StorageConnection
from shared.values.redaction import redacting


class _Client(Protocol):
    async def read(self, source: Any) -> MetricValue: ...

    async def close(self) -> None: ...


@redacting
class AzureReader:
    """Opens a client per connection when it is first asked for, and keeps it."""

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
            seen = await self._breaker().load()
            return MetricValue(seen.read_at, float(seen.breaker.mode is not BreakerMode.CLOSED))
        return await self._client(source).read(source)

    async def close(self) -> None:
        self._closed = True
        for client in self._clients.values():
            await client.close()

    def _client(self, source: Any) -> _Client:
        key = (isinstance(source, StorageQueue), source.connection)
        if self._closed:
            raise RuntimeError("the reader is closed: it opens no client any more")
        if key not in self._clients:
            self._clients[key] = self._open(source)
        return self._clients[key]

    def _open(self, source: Any) -> _Client:
        if isinstance(source, StorageQueue):
            from shared.adapters.queues.backlog import StorageQueueReader  # noqa: PLC0415  heavy

            return StorageQueueReader(self._storage(source.connection))
        from shared.adapters.service_bus.administration import ServiceBusReader  # noqa: PLC0415  heavy

        return ServiceBusReader(self._service_bus(source.connection))
