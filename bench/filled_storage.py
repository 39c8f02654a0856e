"""Fresh storage that holds every message of the fleet, and the capacity of each plan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from azure.core.pipeline.transport import AioHttpTransport
from azure.storage.queue.aio import QueueClient

from bench import fleet
from local.azurite import Azurite
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.messages import Samples
from shared.autoscaling.store.tables import TableStateStore
from shared.settings.connections import StorageConnection

QUEUE_NAME = "metrics"
SENDERS = 16


@asynccontextmanager
async def filled_storage() -> AsyncIterator[str]:
    """Yield the connection string of a new emulator, because old data would slow a run down."""
    with Azurite() as azurite:
        now = datetime.now(UTC)
        await _write_capacities(azurite.connection_string, now)
        await _send_messages(azurite.connection_string, now)
        yield azurite.connection_string


async def decision_count(connection_string: str) -> int:
    """The number of decisions in the table, over all resources."""
    async with state_store(connection_string) as store:
        logs = [await store.log(each.name, limit=1_000) for each in fleet.resources()]
    return sum(map(len, logs))


@asynccontextmanager
async def state_store(connection_string: str) -> AsyncIterator[TableStateStore]:
    """The app's own store, closed at the end."""
    store = TableStateStore(StorageConnection("Storage", connection_string))
    try:
        yield store
    finally:
        await store.close()


async def _write_capacities(connection_string: str, now: datetime) -> None:
    resources = {each.name: each for each in fleet.resources()}
    async with state_store(connection_string) as store:
        await store.load("nobody")  # The first call creates the table.
        runs = [
            scaling_logic.process_samples(Samples(each.resource_name, (each,)), resources, store)
            for each in fleet.capacities(now)
        ]
        await asyncio.gather(*runs)


async def _send_messages(connection_string: str, now: datetime) -> None:
    messages = fleet.messages(now)
    client = QueueClient.from_connection_string(
        connection_string, QUEUE_NAME, transport=lean_transport()
    )
    async with client as queue:
        await queue.create_queue()
        await asyncio.gather(*[_send(queue, messages) for _ in range(SENDERS)])


async def _send(queue: QueueClient, messages: Iterator[str]) -> None:
    for message in messages:  # All senders share one iterator.
        await queue.send_message(message)


def lean_transport() -> AioHttpTransport:
    """A transport that does not read proxy settings. By default, each request does, in a thread."""
    return AioHttpTransport(use_env_settings=False)
