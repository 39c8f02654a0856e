"""What storage can do without the app: the operations of scaling_logic by client libraries alone.

There is no functions host and no decision. Messages are received in batches. For each message, one
range of rows is read, three rows are written in one transaction, and the message is deleted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.data.tables import UpdateMode
from azure.data.tables.aio import TableClient
from azure.storage.queue import QueueMessage
from azure.storage.queue.aio import QueueClient

from bench import fleet
from bench.filled_storage import QUEUE_NAME, lean_transport, state_store
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.messages import Samples
from shared.autoscaling.store.entries import LAST_ROW, PACKED_PREFIX
from shared.autoscaling.store.rows import STATE_START
from shared.autoscaling.store.tables import TABLE_NAME

LEASE_SECONDS = 600
TEMPLATE = fleet.resource("template")
RANGE = "PartitionKey eq @resource and RowKey ge @start"

Work = Callable[[QueueMessage], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that one decision writes. They are written again with other keys."""

    metric: Mapping[str, Any]
    last: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Storage:
    """The clients of one storage account."""

    queue: QueueClient
    table: TableClient


@asynccontextmanager
async def open_storage(connection_string: str) -> AsyncIterator[Storage]:
    """Open both clients for the block."""
    queue = QueueClient.from_connection_string(
        connection_string, QUEUE_NAME, transport=lean_transport()
    )
    table = TableClient.from_connection_string(
        connection_string, TABLE_NAME, transport=lean_transport()
    )
    async with queue, table:
        yield Storage(queue, table)


async def product_rows(connection_string: str, storage: Storage) -> Rows:
    """Rows that the app itself wrote, with half of the samples that a resource ends with."""
    now = datetime.now(UTC)
    ages = reversed(range(fleet.SAMPLES_PER_RESOURCE // 2))
    samples = [fleet.sample(TEMPLATE.name, now - timedelta(seconds=age)) for age in ages]
    async with state_store(connection_string) as store:
        for metric in [fleet.capacity(TEMPLATE.name, now), *samples]:
            await scaling_logic.process_samples(
                Samples(metric.resource_name, (metric,)), {TEMPLATE.name: TEMPLATE}, store
            )
    query = storage.table.query_entities(f"PartitionKey eq '{TEMPLATE.name}'")
    rows = {row["RowKey"]: dict(row) async for row in query}
    return Rows(metric=rows[f"metric|{fleet.METRIC_NAME}"], last=rows[LAST_ROW])


def decision_work(storage: Storage, rows: Rows) -> Work:
    """Work that consists of one range query and one transaction of three rows."""

    async def work(message: QueueMessage) -> None:
        resource = json.loads(message.content)["resource_name"]
        entities = storage.table.query_entities(
            RANGE, parameters={"resource": resource, "start": STATE_START}
        )
        assert [row async for row in entities]
        keys = {"PartitionKey": resource, "RowKey": PACKED_PREFIX}
        packed = {**keys, f"s000_{message.id.replace('-', '')}": rows.last["entry_0"]}
        await storage.table.submit_transaction(
            [
                ("upsert", {**rows.metric, "PartitionKey": resource}, {"mode": UpdateMode.REPLACE}),
                ("upsert", {**rows.last, "PartitionKey": resource}, {"mode": UpdateMode.REPLACE}),
                ("upsert", packed, {"mode": UpdateMode.MERGE}),
            ]
        )

    return work


async def no_work(_message: QueueMessage) -> None:
    """Do nothing, so that messages are only received and deleted."""


class Drain:
    """Workers that empty a queue. Each processes one message at a time."""

    def __init__(self, queue: QueueClient, work: Work, batch_size: int) -> None:
        self._queue = queue
        self._work = work
        self._batch_size = batch_size
        self._received: list[QueueMessage] = []
        self._receiving = asyncio.Lock()
        self.done = 0

    async def run(self, workers: int) -> None:
        await asyncio.gather(*[self._empty() for _ in range(workers)])

    async def _empty(self) -> None:
        while message := await self._next():
            await self._work(message)
            self.done += 1  # Like the host, count before the message is deleted.
            await self._queue.delete_message(message)

    async def _next(self) -> QueueMessage | None:
        async with self._receiving:
            if not self._received:
                self._received = await self._receive()
            return self._received.pop(0) if self._received else None

    async def _receive(self) -> list[QueueMessage]:
        pages = self._queue.receive_messages(
            messages_per_page=self._batch_size, visibility_timeout=LEASE_SECONDS
        ).by_page()
        async for page in pages:
            return [message async for message in page]
        return []
