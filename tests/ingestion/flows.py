"""Builders of events, of consumers, and of an instance that ingests behind the breaker."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from typing import TypeVar

from local.twins.event_hub import MemoryHubReader
from local.twins.ingestion import MemoryBreakerStore, MemoryIngestionStore
from shared.ingestion.breaker.failure_window import TripRule
from shared.ingestion.breaker.state import Breaker, BreakerMode, BreakerTimes, isolate
from shared.ingestion.errors import BadEvent
from shared.ingestion.events import ingest
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.breaker_client import BreakerClient
from shared.ingestion.events.ingest import BEAT_SECONDS, PartitionPipeline
from shared.ingestion.events.process_batch import Consumer
from shared.ingestion.events.tail import TailWatch
from shared.ingestion.model import Effect, Event, OutboxMessage, Stream, message_id
from shared.ingestion.ports import HubReader
from shared.ingestion.store.events import EventStore
from shared.values.concurrency import Heartbeat, Retrying, TaskRunner, task_runner
from tests.builders import NOW, thrice

T = TypeVar("T")
STREAM = Stream("ns", "hub", "$Default", "0")
ME = Writer("me", 1)
IN_LANES = task_runner(4)
TRANSACTIONS = count()


def event(sequence: int, key: str | None = None) -> Event:
    at = NOW + timedelta(seconds=sequence)
    return Event(sequence, f"@{sequence}", at, str(sequence).encode(), key)


def events(first: int, last: int) -> list[Event]:
    return [event(sequence) for sequence in range(first, last + 1)]


def new_txid() -> str:
    return f"tx{next(TRANSACTIONS)}"


def consumer(
    store: EventStore,
    hub: HubReader,
    handle: Callable[[Event], Awaitable[Effect]],
    stream: Stream = STREAM,
    writer: Writer = ME,
    retry: Retrying = thrice,
    together: TaskRunner = IN_LANES,
) -> Consumer:
    return Consumer(stream, writer, store, hub, handle, retry, together, new_txid)


class BreakerRig:
    """One instance over in-memory adapters. ``now`` is the stores' clock. Time passes while a
    handler works: ``seconds_of`` an event, in steps that allow heartbeats unless it is
    ``blocking``."""

    def __init__(self) -> None:
        self.now = NOW
        self.store = MemoryIngestionStore(lambda: self.now)
        self.hub = MemoryHubReader()
        self.breakers = MemoryBreakerStore(lambda: self.now)
        self.sent: list[str] = []
        self.announced: list[int] = []
        self.handle_error: Exception | None = None
        self.send_error: Exception | None = None
        self.announce_error: Exception | None = None
        self.seconds_of: Callable[[int], float] = lambda _: 0.0
        self.blocking = self.quiet = False
        self.beat: Heartbeat | None = None
        self.beats = 0
        self.handled: list[int] = []
        self.bad: set[int] = set()
        self.foreign: set[int] = set()
        rule = TripRule(failures_max=5, failure_ratio_max=None)
        times = BreakerTimes(break_seconds=30, probe_events=2)
        self.breaker = BreakerClient("i1", self.breakers, self.announce, rule, times, self.passed)
        self.lines: dict[str, PartitionPipeline] = {}
        self.watch = TailWatch(task_runner(4))

    def another(self) -> BreakerRig:
        """Another instance over the same stores."""
        other = BreakerRig()
        other.store, other.hub, other.breakers = self.store, self.hub, self.breakers
        other.breaker = replace(self.breaker, instance="i2", counted={}, unwritten={})
        return other

    def line(self, partition_id: str = "0") -> PartitionPipeline:
        """The pipeline of a partition. An instance keeps its pipelines, and with them what they
        remember."""
        if partition_id not in self.lines:
            self.lines[partition_id] = self.new_line(partition_id)
        return self.lines[partition_id]

    def line_of(self, partition_id: str) -> PartitionPipeline:
        return self.line(partition_id)

    def new_line(self, partition_id: str = "0", seconds_max: float = math.inf) -> PartitionPipeline:
        stream = replace(STREAM, partition_id=partition_id)
        made = consumer(self.store, self.hub, self._handle_now, stream, Writer("i1"))
        return PartitionPipeline(
            made, self.breaker, self.send, self.passed, self.beside, seconds_max
        )

    async def _handle_now(self, event: Event) -> Effect:
        return await self.handle(event)  # a test may have replaced it

    async def beside(self, work: Awaitable[T], beat: Heartbeat) -> T:
        before, self.beat = self.beat, beat
        try:
            return await work
        finally:
            self.beat = before

    def passed(self) -> float:
        return (self.now - NOW).total_seconds()

    def wait(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now

    async def handle(self, event: Event) -> Effect:
        left = self.seconds_of(event.sequence)
        while left > 0:
            step = left if self.blocking else min(left, BEAT_SECONDS)
            self.wait(step)
            left -= step
            if self.beat is not None and not self.blocking and step == BEAT_SECONDS:
                self.beats += 1
                await self.beat()
        self.handled.append(event.sequence)
        if self.handle_error is not None:
            raise self.handle_error
        if event.sequence in self.bad:
            raise BadEvent("nonsense")
        if event.sequence in self.foreign:
            return Effect(event.sequence, set_aside="a log")
        message = OutboxMessage(message_id(STREAM, event.sequence), "m")
        return Effect(event.sequence, messages=() if self.quiet else (message,))

    async def send(self, messages: Sequence[OutboxMessage]) -> None:
        if self.send_error is not None:
            raise self.send_error
        self.sent += [message.message_id for message in messages]

    async def announce(self, breaker: Breaker) -> None:
        if self.announce_error is not None:
            raise self.announce_error
        self.announced.append(breaker.epoch)

    async def ingest(self, first: int, last: int, partition_id: str = "0") -> None:
        await ingest.ingest_batch(events(first, last), self.line(partition_id))

    async def check_tail(self, *partition_ids: str) -> None:
        await self.watch.check_partitions(partition_ids or ("0",), self.line_of)

    async def isolate(self) -> None:
        seen = await self.breakers.load()
        stopped = isolate(seen.breaker, "deploying", NOW, self.breaker.times)
        assert stopped is not None
        await self.breakers.replace(seen, stopped)

    async def mode(self) -> BreakerMode:
        return (await self.breakers.load()).breaker.mode

    @property
    def checkpoint(self) -> int:
        found = self.store.rows[STREAM].checkpoint
        return found.sequence if found else -1

    @property
    def dead(self) -> list[int]:
        return sorted(self.store.rows[STREAM].dead_letters)

    async def tallies(self) -> list[tuple[int, int, int]]:
        """All tallies: seconds since the start, successes and failures."""
        rows = sorted(await self.breakers.tallies(NOW), key=lambda tally: tally.bucket_start)
        return [
            (int((each.bucket_start - NOW).total_seconds()), each.successes, each.failures)
            for each in rows
        ]
