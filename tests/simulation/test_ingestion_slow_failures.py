"""Simulates many instances whose calls fail slowly: the breaker opens while their batches still
run."""

from __future__ import annotations

import random
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import pytest

from local.twins.event_hub import MemoryHubReader
from local.twins.ingestion import MemoryBreakerStore, MemoryIngestionStore
from shared import settings
from shared.ingestion.breaker.failure_window import TripRule
from shared.ingestion.breaker.state import Breaker, BreakerMode
from shared.ingestion.errors import BadEvent, BreakerOpen
from shared.ingestion.events import ingest
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.breaker_client import BreakerClient
from shared.ingestion.events.ingest import BEAT_SECONDS, PartitionPipeline
from shared.ingestion.events.process_batch import Consumer
from shared.ingestion.model import Effect, Event
from shared.values.concurrency import Heartbeat
from tests.builders import NOW
from tests.simulation.faults import once, one_by_one, stream_of
from tests.simulation.scheduler import Scheduler, sleep_until
from tests.simulation.seeds import seeds

T = TypeVar("T")
BATCH = 99
SECONDS = 300.0
HOST_RETRY_SECONDS = 5
DEFAULT = settings.load({}).ingestion.breaker.part(TripRule)


class Nobody:
    """Records announcements, and is never sent anything."""

    def __init__(self) -> None:
        self.announced: list[int] = []

    async def send(self, messages: object) -> None:
        raise AssertionError(messages)

    async def announce(self, breaker: Breaker) -> None:
        self.announced.append(breaker.epoch)


@dataclass
class World:
    """Instances that start at different times, with one partition each. Every call fails."""

    seed: int
    instances: int
    call_seconds: float
    rule: TripRule
    error: type[Exception] = BadEvent

    def __post_init__(self) -> None:
        self.now = NOW
        self.random = random.Random(self.seed)
        self.scheduler = Scheduler(self.seed, 0, lambda: self.now)
        self.store = MemoryIngestionStore(lambda: self.now)
        self.breakers = MemoryBreakerStore(lambda: self.now)
        self.calls: list[datetime] = []
        self.opened_after: int | None = None
        for number in range(self.instances):
            self.scheduler.start(self.instance(str(number)))

    def elapsed(self) -> float:
        return (self.now - NOW).total_seconds()

    async def sleep(self, seconds: float) -> None:
        await sleep_until(self.now + timedelta(seconds=seconds))

    async def handle(self, event: Event) -> Effect:
        await self.sleep(self.call_seconds * self.random.uniform(0.9, 1.1))
        self.calls.append(self.now)
        raise self.error(f"event {event.sequence} always fails")

    async def beside(self, work: Awaitable[T], beat: Heartbeat) -> T:
        over = False

        async def beats() -> None:
            while not over:
                await self.sleep(BEAT_SECONDS)
                if not over:
                    await beat()

        self.scheduler.start(beats())
        try:
            return await work
        finally:
            over = True

    async def instance(self, partition_id: str) -> None:
        consumer = Consumer(
            stream_of(partition_id),
            Writer(partition_id),
            self.store,
            MemoryHubReader(),
            self.handle,
            once,
            one_by_one,
            lambda: f"t{self.random.random()}",
        )
        client = BreakerClient(
            f"i{partition_id}", self.breakers, Nobody().announce, self.rule, elapsed=self.elapsed
        )
        line = PartitionPipeline(consumer, client, Nobody().send, self.elapsed, self.beside)
        await self.sleep(self.random.uniform(0, 40))
        first = 0
        while self.opened_after is None:
            batch = [Event(n, str(n), self.now, b"{}") for n in range(first, first + BATCH)]
            try:
                await ingest.ingest_batch(batch, line)
            except BreakerOpen:
                return
            except ValueError:
                await self.sleep(HOST_RETRY_SECONDS)
            else:
                first += BATCH

    def run(self) -> None:
        while self.scheduler.tasks and self.elapsed() < SECONDS:
            if self.scheduler.choose() is None:
                self.now = min(task.until for task in self.scheduler.tasks if task.until)
            self.scheduler.step()
            mode = self.breakers.stored.mode
            if self.opened_after is None and mode is not BreakerMode.CLOSED:
                self.opened_after = len(self.calls)
        self.scheduler.close()

    @property
    def dead_letters(self) -> int:
        return sum([len(rows.dead_letters) for rows in self.store.rows.values()])


def check_seed(seed: int) -> None:
    """Bound the failures until the breaker opens: the limit of the rule, what the instances do in
    two heartbeats, and the calls that are running then."""
    for instances, call_seconds, rule, needed in [
        (8, 45 / 66, TripRule(failures_max=100), 101),
        (8, 0.41, TripRule(failures_max=None, failure_ratio_max=0.5), 20),
        (3, 12.0, TripRule(failures_max=3), 4),
        (1, 0.4, DEFAULT, 20),
        (1, 2.0, DEFAULT, 20),
        (1, 12.0, DEFAULT, 20),
    ]:
        world = World(seed, instances, call_seconds, rule)
        world.run()
        unseen = instances * (2 * BEAT_SECONDS / call_seconds + 2)
        where = f"seed {seed}: {instances} instances, {call_seconds:g} s"
        assert world.opened_after is not None, where
        assert world.dead_letters <= needed + unseen, f"{where}: {world.dead_letters}"
    for call_seconds in (0.4, 2.0, 12.0):
        world = World(seed, 1, call_seconds, DEFAULT, ValueError)
        world.run()
        assert (world.opened_after is not None, world.dead_letters) == (True, 0), call_seconds


@pytest.mark.parametrize("seed", seeds(10))
def test_slow_failures_of_many_instances_open_the_breaker_soon(seed: int) -> None:
    check_seed(seed)
