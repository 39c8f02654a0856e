"""ingest: the cost of the circuit breaker and of decoding events, without any input or output."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import count

from bench.measurement import Measurement
from bench.repeats import calls_per_second, medians
from local.twins.event_hub import MemoryHubReader
from local.twins.rows import MemoryRows
from shared.ingestion.breaker.state import Breaker
from shared.ingestion.decoding.azure_monitor import key
from shared.ingestion.decoding.decode import decode
from shared.ingestion.decoding.readings import MetricSubscriptions, SubscribedMetric
from shared.ingestion.events import ingest, process_batch
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.breaker_client import BreakerClient
from shared.ingestion.events.ingest import PartitionPipeline
from shared.ingestion.events.process_batch import Consumer
from shared.ingestion.model import Effect, Event, OutboxMessage, Stream
from shared.ingestion.store.breakers import BreakerStore
from shared.ingestion.store.events import EventStore
from shared.values.concurrency import JitteredRetrying, task_runner

BATCH_EVENTS = 100
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
BUS = "/subscriptions/0/resourceGroups/g/providers/Microsoft.ServiceBus/namespaces/bus"


def measure(repeats: int = 9, batches: int = 100, calls: int = 1_000) -> Iterator[Measurement]:
    """Microseconds that the breaker adds to an event, and records decoded a second."""
    with_breaker, without = asyncio.run(_breaker(repeats, batches))
    yield Measurement(
        "ingest.breaker_overhead",
        with_breaker - without,
        "µs/event",
        without,
        "≤ 2 µs",
        f"batches of {BATCH_EVENTS} on in-memory adapters; baseline: an event without the breaker",
    )
    body = _records(BATCH_EVENTS)
    interests = MetricSubscriptions(
        monitored={key(BUS, "ActiveMessages"): (SubscribedMetric("workers", "backlog"),)}
    )
    decoded, parsed = calls_per_second(
        (lambda: decode(body, interests), lambda: json.loads(body)),
        repeats=repeats,
        calls=calls,
    )
    yield Measurement(
        "ingest.azure_monitor_records",
        decoded * BATCH_EVENTS,
        "records/s",
        parsed * BATCH_EVENTS,
        note=f"{BATCH_EVENTS} records an event, one in ten subscribed; baseline: json.loads alone",
    )


async def _breaker(repeats: int, batches: int) -> Sequence[float]:
    runs: list[Callable[[], Awaitable[float]]] = [
        partial(_microseconds, batches, guarded=True),
        partial(_microseconds, batches, guarded=False),
    ]
    return await medians(runs, repeats=repeats)


async def _microseconds(batches: int, *, guarded: bool) -> float:
    """CPU time for an event, averaged over the given number of batches of a fresh stream."""
    line = _line()
    given = [_batch(number) for number in range(batches)]
    began = time.process_time()
    for events in given:
        if guarded:
            await ingest.ingest_batch(events, line)
        else:
            ingest.log_report(line, await process_batch.process_batch(events, line.consumer))
            await ingest.send_outbox(line)
    return (time.process_time() - began) / (batches * BATCH_EVENTS) * 1e6


class _Nobody:
    async def send(self, messages: Sequence[OutboxMessage]) -> None: ...

    async def announce(self, breaker: Breaker) -> None: ...


async def _handle(event: Event) -> Effect:
    return Effect(event.sequence)


def _line() -> PartitionPipeline:
    txids = count()
    consumer = Consumer(
        Stream("ns", "hub", "$Default", "0"),
        Writer("bench"),
        EventStore(MemoryRows(lambda: NOW)),
        MemoryHubReader(),
        _handle,
        JitteredRetrying(),
        task_runner(16),
        lambda: f"t{next(txids)}",
    )
    client = BreakerClient(
        "bench", BreakerStore(MemoryRows(lambda: NOW), "bench"), _Nobody().announce
    )
    return PartitionPipeline(consumer, client, _Nobody().send, time.perf_counter)


def _batch(number: int) -> list[Event]:
    first = number * BATCH_EVENTS
    return [Event(first + n, str(first + n), NOW, b"{}") for n in range(BATCH_EVENTS)]


def _records(records: int) -> bytes:
    """Records as Azure Monitor streams them. One in ten is of the subscribed metric."""
    each = {
        "count": 4,
        "total": 126,
        "minimum": 0,
        "maximum": 63,
        "average": 31.5,
        "resourceId": BUS.upper(),
        "time": "2026-03-01T11:59:00.0000000Z",
        "timeGrain": "PT1M",
    }
    names = ["ActiveMessages" if n % 10 == 0 else f"Other{n}" for n in range(records)]
    return json.dumps({"records": [{**each, "metricName": name} for name in names]}).encode()
