"""Simulates instances that fail, race and crash around one breaker: it opens, is announced, and
closes."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from local.twins.ingestion import MemoryBreakerStore
from shared.ingestion.breaker.approval import TokenRefused, issue, verify
from shared.ingestion.breaker.failure_window import TripRule
from shared.ingestion.breaker.state import Breaker, BreakerMode, BreakerTimes, close
from shared.ingestion.errors import RowChanged
from shared.ingestion.events.breaker_client import BreakerClient
from shared.ingestion.store.breakers import BreakerSnapshot
from tests.builders import NOW
from tests.simulation.faults import pausing
from tests.simulation.scheduler import Crash, Outage, Scheduler, pause
from tests.simulation.seeds import seeds

RULE = TripRule(failures_max=10, failure_ratio_max=None, slow_ratio_max=0.8)
TIMES = BreakerTimes(break_seconds=10, break_seconds_max=40, probe_events=5, probe_seconds=15)

KEY = b"k" * 32
LINK_VALID_FOR = timedelta(seconds=60)
CLICK_RATE = 0.02
PROBE_TAKES_MAX = timedelta(seconds=20)


@pausing("load", "replace", "put_tally")
@pausing("tallies", replies=False)
class Store(MemoryBreakerStore):
    """Remembers every row."""

    def __init__(self, world: World) -> None:
        super().__init__(world.clock)
        self.world = world
        self.rows = [Breaker()]

    async def replace(self, seen: BreakerSnapshot, breaker: Breaker) -> BreakerSnapshot:
        answer = await super().replace(seen, breaker)
        self.rows.append(breaker)
        if "succeeded" in breaker.reason:
            self.world.check_probe()
        return answer


class World:
    """Four instances with one partition each, and a dependency that is up or down."""

    def __init__(self, seed: int, fault_rate: float) -> None:
        self.now, self.down, self.turned_at, self.started = NOW, False, NOW, 0
        self.scheduler = Scheduler(seed, fault_rate)
        self.random = self.scheduler.random
        self.store = Store(self)
        self.announced: list[int] = []
        self.links: list[str] = []
        self.closed: list[int] = []
        """The incidents that a person closed through a link."""
        self.refused = 0
        for number in range(4):
            self.start(str(number))

    def clock(self) -> datetime:
        return self.now

    async def announce(self, breaker: Breaker) -> None:
        await pause()
        self.announced.append(breaker.epoch)
        self.links.append(issue(KEY, "here", "breaker", breaker.epoch, self.now, LINK_VALID_FOR))
        await pause()

    def turn(self, *, down: bool) -> None:
        self.down, self.turned_at = down, self.now

    def check_probe(self) -> None:
        """Check that no probe succeeded that began while the dependency was down."""
        assert not self.down or self.now - self.turned_at < PROBE_TAKES_MAX, "closed while down"

    def click(self) -> None:
        """A person follows a link: the newest one, or any earlier one again."""

        def ended(_result: object, error: BaseException | None) -> None:
            assert error is None or isinstance(error, Crash | Outage), error

        link = self.random.choice([self.links[-1], *self.links])
        self.scheduler.start(self.approve(link), ended)

    async def approve(self, link: str) -> None:
        seen = await self.store.load()
        try:
            approval = verify([KEY], link, "here", "breaker", seen.read_at)
        except TokenRefused:
            self.refused += 1
            return
        after = close(seen.breaker, approval.epoch, "a person", seen.read_at)
        if after is None:
            self.refused += 1
            return
        with suppress(RowChanged):
            await self.store.replace(seen, after)
            self.closed.append(approval.epoch)

    def start(self, partition_id: str) -> None:
        self.started += 1
        client = BreakerClient(f"i{self.started}", self.store, self.announce, RULE, TIMES)

        def ended(_result: object, error: BaseException | None) -> None:
            assert isinstance(error, Crash | Outage), error
            self.start(partition_id)

        self.scheduler.start(self.instance(client, partition_id), ended)

    async def instance(self, client: BreakerClient, partition_id: str) -> None:
        while True:
            with suppress(Outage):
                await self.batch(client, partition_id)
            until = self.now + timedelta(seconds=self.random.uniform(0.5, 2))
            while self.now < until:
                await pause(sheltered=True)

    async def batch(self, client: BreakerClient, partition_id: str) -> None:
        admitted = await client.admit(partition_id)
        if admitted.is_held:
            return
        size = self.random.choice([4, 12])
        events = min(size, admitted.events_max or size)
        failed = self.down or self.random.random() < self.scheduler.fault_rate
        client.count(self.now, successes=0 if failed else events, failures=events if failed else 0)
        await pause()
        if admitted.events_max is not None:
            await client.after_probe(events, "down" if failed else None)
        await client.after_batch()

    def run(self, seconds: float) -> None:
        end = self.now + timedelta(seconds=seconds)
        while self.now < end:
            self.now += timedelta(seconds=self.random.random() / 4)
            for _ in range(8):
                self.scheduler.step()
            if self.links and self.random.random() < CLICK_RATE:
                self.click()


def check_links(world: World) -> None:
    """A link closes its own incident once; when it is used again, it closes nothing."""
    counted = Counter(world.closed)
    assert all(count == 1 for count in counted.values()), counted
    for before, after in pairwise(world.store.rows):
        if after.closed_by == "a person" and before.closed_by != "a person":
            assert (before.epoch, after.mode) == (after.epoch, BreakerMode.CLOSED)
            assert before.mode is not BreakerMode.CLOSED


def check_rows(world: World) -> None:
    """Epochs increase one by one, each by one opening. A probe has one holder."""
    rows = world.store.rows
    for before, after in pairwise(rows):
        assert after.epoch - before.epoch in (0, 1)
        assert (after.epoch > before.epoch) is (
            before.mode is BreakerMode.CLOSED and after.mode is BreakerMode.OPEN
        )
        assert (after.probe is not None) is (after.mode is BreakerMode.HALF_OPEN)


def check_seed(seed: int) -> None:
    world = World(seed, fault_rate=(0.0, 0.01, 0.04)[seed % 3])
    for down in (False, True, False, True):
        world.turn(down=down)
        world.run(50)
    world.turn(down=False)
    world.scheduler.fault_rate = 0
    world.run(160)
    world.scheduler.close()
    check_rows(world)
    check_links(world)
    row = world.store.rows[-1]
    assert row.mode is BreakerMode.CLOSED, f"seed {seed}: {row}"
    announced = Counter(world.announced)
    assert row.announced_epoch == row.epoch, f"seed {seed}: {row}"
    assert set(announced) <= set(range(1, row.epoch + 1))
    if seed % 3 == 0:
        assert announced == Counter(range(1, row.epoch + 1)), f"seed {seed}: {announced}"
        assert row.epoch >= 1


@pytest.mark.parametrize("seed", seeds(40))
def test_each_opening_is_announced_and_the_breaker_closes_once_the_dependency_recovers(
    seed: int,
) -> None:
    check_seed(seed)
