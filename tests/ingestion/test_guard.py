"""The breaker at work, over the memory twin: who is let through, who opens it, who tells of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from shared.adapters.memory.ingestion import MemoryBreakerStore
from shared.ingestion.breaker.breaker import Breaker, BreakerMode, BreakerTimes, close, unannounced
from shared.ingestion.breaker.failure_window import TripRule
from shared.ingestion.breaker.guard import BreakerGuard
from tests.builders import NOW

TIMES = BreakerTimes(break_seconds=30, probe_events=3, announce_seconds=60)


class Rig:
    def __init__(self) -> None:
        self.now = NOW
        self.store = MemoryBreakerStore(lambda: self.now)
        self.told: list[int] = []
        self.fail_to_tell = False
        self.guards = [
            BreakerGuard(f"i{n}", self.store, self, TripRule(failures_max=100), TIMES)
            for n in range(4)
        ]

    async def announce(self, breaker: Breaker) -> None:
        if self.fail_to_tell:
            raise ConnectionError("no webhook")
        self.told.append(breaker.epoch)

    def wait(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now

    async def fail(self, times: int) -> None:
        """Every instance counts so many failures, then all write them."""
        for guard in self.guards:
            guard.count(self.now, failures=times)
        for guard in self.guards:
            await guard.after_batch()

    async def row(self) -> Breaker:
        return (await self.store.load()).breaker


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_failures_of_all_instances_open_it_once_and_one_tells(rig: Rig) -> None:
    await rig.fail(25)
    assert (await rig.row()).mode is BreakerMode.CLOSED
    await rig.fail(1)
    row = await rig.row()
    assert (row.mode, row.epoch, row.announced_epoch, rig.told) == (BreakerMode.OPEN, 1, 1, [1])
    assert row.reason == "101 failures in 30 s, more than 100"
    assert [(await guard.admit("0")).shut for guard in rig.guards] == [True] * 4


async def test_failures_of_two_buckets_add_up_and_are_written_once(rig: Rig) -> None:
    guard = rig.guards[0]
    guard.count(rig.now, failures=60)
    rig.wait(10)
    guard.count(rig.now, failures=40)
    guard.count(rig.now, failures=1, successes=1)
    await guard.after_batch()
    assert (await rig.row()).mode is BreakerMode.OPEN
    assert guard.unwritten == {}


async def test_after_the_break_one_instance_probes_and_its_successes_close_it(rig: Rig) -> None:
    await rig.fail(26)
    rig.wait(30)
    first, second, *_ = rig.guards
    assert (await first.admit("7")).events_max == 3
    assert (await second.admit("8")).shut
    assert (await first.admit("8")).shut, "one partition only"
    await second.after_probe(3, None)
    await first.after_probe(2, None)
    assert (await first.admit("7")).events_max == 1
    await first.after_probe(1, None)
    assert (await second.admit("8")).events_max is None
    await first.after_batch()
    assert (await rig.row()).mode is BreakerMode.CLOSED, "failures of before do not open it again"


async def test_an_opening_that_nobody_could_be_told_of_is_told_with_the_next_one() -> None:
    row = Breaker(BreakerMode.OPEN, 4, NOW, "too much", announced_epoch=2)
    assert [(each.epoch, each.reason) for each in unannounced(row)] == [
        (3, "it had opened before that, which was over before anybody could be told"),
        (4, "too much"),
    ]
    assert [each.epoch for each in unannounced(replace(row, announced_epoch=4))] == [4]


async def test_a_failed_probe_is_not_told_again(rig: Rig) -> None:
    await rig.fail(26)
    rig.wait(30)
    await rig.guards[0].admit("7")
    await rig.guards[0].after_probe(0, "timeout")
    rig.wait(59)
    assert (await rig.guards[1].admit("7")).shut
    rig.wait(1)
    assert not (await rig.guards[1].admit("7")).shut
    assert rig.told == [1]


async def test_what_could_not_be_told_is_told_by_another_later(rig: Rig) -> None:
    rig.fail_to_tell = True
    rig.guards[0].count(rig.now, failures=101)
    with pytest.raises(ConnectionError):
        await rig.guards[0].after_batch()
    rig.fail_to_tell = False
    rig.wait(29)
    await rig.guards[1].admit("0")
    assert rig.told == []
    rig.wait(31)
    for guard in rig.guards:
        await guard.admit("0")
    assert rig.told == [1]


async def test_a_person_closes_it_and_events_flow(rig: Rig) -> None:
    await rig.fail(26)
    seen = await rig.store.load()
    closed = close(seen.breaker, 1, "ann", rig.now)
    assert closed is not None
    await rig.store.replace(seen, closed)
    assert (await rig.guards[3].admit("0")).events_max is None
    rig.wait(10)
    await rig.fail(26)
    assert rig.told == [1, 2]
