"""One reader for all kinds of sources: each goes to the client of its service and connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from shared.autoscaling.model import MetricSource, MetricValue, PlanCapacity, StorageQueue
from shared.autoscaling.ports import CapacityControl
from shared.settings import Connection


class _Client(Protocol):
    async def read(self, source: Any) -> MetricValue: ...

    async def close(self) -> None: ...


class AzureReader:
    """Opens a client per connection when it is first asked for, and keeps it."""

    def __init__(self, connection: Callable[[str], Connection], control: CapacityControl) -> None:
        self._connection = connection
        self._control = control
        self._clients: dict[tuple[object, str], _Client] = {}

    async def read(self, source: MetricSource) -> MetricValue:
        if isinstance(source, PlanCapacity):
            return await self._control.read(source.plan)
        return await self._client(source).read(source)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    def _client(self, source: Any) -> _Client:
        opener = _open_storage_queue if isinstance(source, StorageQueue) else _open_service_bus
        key = (opener, source.connection)
        if key not in self._clients:
            self._clients[key] = opener(self._connection(source.connection))
        return self._clients[key]


def _open_storage_queue(connection: Connection) -> _Client:
    from shared.adapters.storage_queue import StorageQueueReader  # noqa: PLC0415  heavy to import

    return StorageQueueReader(connection)


def _open_service_bus(connection: Connection) -> _Client:
    from shared.adapters.service_bus import ServiceBusReader  # noqa: PLC0415  heavy to import

    return ServiceBusReader(connection)
