"""host: messages a second from the queue to the committed decision, compared with storage alone."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench import direct_storage, fleet
from bench.direct_storage import Drain, Storage, Work
from bench.filled_storage import decision_count, filled_storage
from bench.measurement import ROOT, Measurement, growth_per_second
from bench.repeats import medians
from local.demo.hosted_app import hosted_app
from local.functions_host import FunctionsHost, InvocationCounts, configure_logging
from local.functions_host.host_json import read_host_json

APP_DIR = ROOT / "bench" / "host_app"
CONFIG = read_host_json(ROOT)
BATCH_SIZE = CONFIG.queues.batch_size
CONCURRENCY = BATCH_SIZE + CONFIG.queues.new_batch_threshold
FUNCTION = "scaling_logic"
NEVER = "0 0 0 1 1 *"
SETTINGS = {
    "MetricCollectorSchedule": NEVER,
    "ReconcilerSchedule": NEVER,
    "LogRetentionSchedule": NEVER,
    "ServiceBusConnection": "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=k",
}


def measure(repeats: int = 3) -> Iterator[Measurement]:
    """Messages a second through the host, through the client libraries alone, and received only."""
    with tempfile.TemporaryDirectory() as folder:
        configure_logging(Path(folder) / "host.log")  # Every run writes a log, as in production.
        host, direct = asyncio.run(medians([_through_host, _direct], repeats=repeats))
        received = asyncio.run(_received_only())
    yield Measurement(
        "host.messages",
        host,
        "messages/s",
        direct,
        "ratio ≥ 0.7",
        f"{fleet.MESSAGE_COUNT} messages of {fleet.RESOURCE_COUNT} resources; baseline: the same "
        f"storage operations by lean clients alone (see bench/filled_storage.py), {CONCURRENCY} "
        "at once",
    )
    yield Measurement(
        "host.receive_and_delete",
        received,
        "messages/s",
        direct,
        note="for information: the queue's part of the storage operations alone",
    )


async def _through_host() -> float:
    async with filled_storage() as connection_string:
        settings = {**SETTINGS, "AzureWebJobsStorage": connection_string}
        host = FunctionsHost(APP_DIR, settings=settings, config=CONFIG)
        async with hosted_app(host):
            rate = await growth_per_second(partial(_invocations, host), fleet.MESSAGE_COUNT)
            assert host.counts[FUNCTION].failures == 0, "messages that failed came back"
        assert await decision_count(connection_string) == fleet.MESSAGE_COUNT
    return rate


def _invocations(host: FunctionsHost) -> int:
    return host.counts.get(FUNCTION, InvocationCounts()).invocations


async def _direct() -> float:
    async with (
        filled_storage() as connection_string,
        direct_storage.open_storage(connection_string) as storage,
    ):
        rows = await direct_storage.product_rows(connection_string, storage)
        return await _drained(storage, direct_storage.decision_work(storage, rows))


async def _received_only() -> float:
    async with (
        filled_storage() as connection_string,
        direct_storage.open_storage(connection_string) as storage,
    ):
        return await _drained(storage, direct_storage.no_work)


async def _drained(storage: Storage, work: Work) -> float:
    drain = Drain(storage.queue, work, BATCH_SIZE)
    running = asyncio.create_task(drain.run(CONCURRENCY))
    rate = await growth_per_second(lambda: drain.done, fleet.MESSAGE_COUNT)
    await running
    return rate
