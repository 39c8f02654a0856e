"""``python -m bench.hostile_readings COUNT``: how long an event of many readings delays a decision.

The functions run in the local host with their own emulator. The messages that the event leads to
are put into the queue, followed by one fresh sample. The time until the decision on that sample is
measured. All readings are inside the window, so that none is dropped as stale.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from azure.storage.queue.aio import QueueClient

from bench import fleet
from bench.filled_storage import QUEUE_NAME, state_store
from bench.groups.host import APP_DIR, CONFIG, SETTINGS
from bench.hostile_events import INTERESTS, METRIC, RESOURCE, many_readings
from local.azurite import Azurite
from local.demo.hosted_app import hosted_app
from local.functions_host import FunctionsHost, configure_logging
from shared.autoscaling.flows import scaling_logic
from shared.autoscaling.messages import Samples
from shared.autoscaling.store.tables import TableStateStore
from shared.azure.queues import StorageQueueSender
from shared.ingestion.decoding.decode import decode
from shared.ingestion.decoding.readings import to_effect
from shared.ingestion.events.outbox import send_to_queue
from shared.ingestion.model import OutboxMessage, Stream
from shared.settings.connections import StorageConnection
from shared.values.measurements import Metric, MetricValue
from shared.values.samples import encode_samples

BYTES_MAX = 4 * 1024 * 1024
"""More than the default limit of 1 MiB, which this many readings exceed."""
STEP = timedelta(seconds=0.049)
LIMIT_SECONDS = 500
STREAM = Stream("ns", "hub", "$Default", "0")


async def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        configure_logging(Path(folder) / "host.log")
        with Azurite() as azurite:
            print(json.dumps(await _measured(azurite.connection_string, count)))


async def _measured(connection_string: str, count: int) -> dict[str, float]:
    settings = {**SETTINGS, "AzureWebJobsStorage": connection_string}
    async with state_store(connection_string) as store, _queue(connection_string) as queue:
        await queue.create_queue()
        await store.load("nobody")  # The first call creates the table.
        one = fleet.resource(RESOURCE)
        capacity = fleet.capacity(RESOURCE, datetime.now(UTC))
        await scaling_logic.process_samples(
            Samples(capacity.resource_name, (capacity,)), {RESOURCE: one}, store
        )
        async with hosted_app(FunctionsHost(APP_DIR, settings=settings, config=CONFIG)):
            await _decided_after((), connection_string, store, queue, 51)
            alone = await _decided_after((), connection_string, store, queue, 52)
            messages = _messages(count)
            behind = await _decided_after(messages, connection_string, store, queue, 53)
    return {"alone": alone, "behind": behind}


def _queue(connection_string: str) -> QueueClient:
    return QueueClient.from_connection_string(connection_string, QUEUE_NAME)


def _messages(count: int) -> Sequence[OutboxMessage]:
    body = many_readings(count, datetime.now(UTC) - STEP, STEP)
    decoded = decode(body, INTERESTS, BYTES_MAX)
    assert len(decoded.readings) == count
    return to_effect(STREAM, 0, decoded).messages


async def _decided_after(
    messages: Sequence[OutboxMessage],
    connection_string: str,
    store: TableStateStore,
    queue: QueueClient,
    value: float,
) -> float:
    """Seconds until a sample with that value, sent after the messages, has led to a decision."""
    sender = StorageQueueSender(StorageConnection("Storage", connection_string), QUEUE_NAME)
    await send_to_queue(sender.send_texts, messages)
    await sender.close()
    fresh = Metric(RESOURCE, METRIC, MetricValue(datetime.now(UTC), value))
    began = time.perf_counter()
    await queue.send_message(encode_samples([fresh]))
    async with asyncio.timeout(LIMIT_SECONDS):
        while not await _is_decided(store, value):  # noqa: ASYNC110  a table has to be polled
            await asyncio.sleep(0.02)
    return time.perf_counter() - began


async def _is_decided(store: TableStateStore, value: float) -> bool:
    return any(line.value == value for line in await store.log(RESOURCE, 100))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
