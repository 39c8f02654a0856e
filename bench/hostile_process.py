"""``python -m bench.hostile_process < BODY``: what processing one unfamiliar event costs.

The body comes through a pipe, so that building it does not affect this process.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from bench.hostile_events import INTERESTS, reading
from local.twins.event_hub import MemoryHubReader
from local.twins.rows import MemoryRows
from shared.ingestion.decoding.metric_handler import MetricHandler
from shared.ingestion.events import process_batch
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.process_batch import Consumer
from shared.ingestion.model import Event, Stream
from shared.ingestion.store.events import EventStore
from shared.values.concurrency import JitteredRetrying, task_runner

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
STREAM = Stream("ns", "hub", "$Default", "0")


async def main() -> None:
    body = sys.stdin.buffer.read()
    consumer = _consumer()
    await process_batch.process_batch([_event(0, reading().encode())], consumer)
    idle = _peak_megabytes()
    began, began_cpu = time.perf_counter(), time.process_time()
    report = await process_batch.process_batch([_event(1, body)], consumer)
    figures = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - began_cpu,
        "megabytes": _peak_megabytes() - idle,
        "idle_megabytes": idle,
        "dead_letters": report.dead_letters,
        "messages": report.messages,
        "errors": await _errors(consumer),
    }
    print(json.dumps(figures))


def _consumer() -> Consumer:
    store = EventStore(MemoryRows(lambda: NOW))
    return Consumer(
        STREAM,
        Writer("bench"),
        store,
        MemoryHubReader(),
        MetricHandler(STREAM, INTERESTS),
        JitteredRetrying(),
        task_runner(16),
        lambda: "txid",
    )


async def _errors(consumer: Consumer) -> str:
    assert isinstance(consumer.store, EventStore)
    letters = await consumer.store.dead_letters(STREAM, None, 100)
    return "; ".join(stored.letter.error[:100] for stored in letters)


def _event(sequence: int, body: bytes) -> Event:
    return Event(sequence, str(sequence), NOW, body)


def _peak_megabytes() -> float:
    """The peak of this program alone. The figure of ``getrusage`` includes its parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    asyncio.run(main())
