"""The breaker's clients over the in-memory adapter: admitting, opening, probing and announcing."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from local.twins.ingestion import MemoryBreakerStore
from shared.ingestion.breaker.failure_window import TripRule
from shared.ingestion.breaker.state import Breaker, BreakerMode, BreakerTimes, close
from shared.ingestion.events.breaker_client import BreakerClient
from tests.builders import NOW

TIMES = BreakerTimes(break_seconds=30, probe_events=3, announce_seconds=60)


class Rig:
    def __init__(self) -> None:
        self.now = NOW
        self.store = MemoryBreakerStore(lambda: self.now)
        self.announced: list[int] = []
        self.fail_to_tell = False
        self.clients = [
            BreakerClient(f"i{n}", self.store, self, TripRule(failure_ratio_max=None), TIMES)
            for n in range(4)
        ]

    async def announce(self, breaker: Breaker) -> None:
        if self.fail_to_tell:
            raise ConnectionError("no webhook")
        self.announced.append(breaker.epoch)

    def wait(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now

    async def fail(self, times: int) -> None:
        """Each instance counts this many failures, then all of them write their tallies."""
        for client in self.clients:
            client.count(self.now, failures=times)
        for client in self.clients:
            await client.after_batch()

    async def row(self) -> Breaker:
        return (await self.store.load()).breaker


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_failures_of_all_instances_open_the_breaker_and_one_announces_it(rig: Rig) -> None:
    await rig.fail(25)
    assert (await rig.row()).mode is BreakerMode.CLOSED
    await rig.fail(1)
    row = await rig.row()
    assert (row.mode, row.epoch, row.announced_epoch) == (BreakerMode.OPEN, 1, 1)
    assert rig.announced == [1]
    assert row.reason == "101 failures in 30 s, more than 100"
    assert [(await client.admit("0")).is_held for client in rig.clients] == [True] * 4


async def test_failures_in_two_buckets_add_up_and_are_written_once(rig: Rig) -> None:
    client = rig.clients[0]
    client.count(rig.now, failures=60)
    rig.wait(10)
    client.count(rig.now, failures=40)
    client.count(rig.now, failures=1, successes=1)
    await client.after_batch()
    assert (await rig.row()).mode is BreakerMode.OPEN
    assert client.unwritten == {}


async def test_after_the_open_interval_one_instance_probes_and_closes_the_breaker(rig: Rig) -> None:
    await rig.fail(26)
    rig.wait(30)
    first, second, *_ = rig.clients
    assert (await first.admit("7")).events_max == 3
    assert (await second.admit("8")).is_held
    assert (await first.admit("8")).is_held, "one partition only"
    await second.after_probe(3, None)
    await first.after_probe(2, None)
    assert (await first.admit("7")).events_max == 1
    await first.after_probe(1, None)
    assert (await second.admit("8")).events_max is None
    await first.after_batch()
    assert (await rig.row()).mode is BreakerMode.CLOSED, "earlier failures do not count again"


async def test_a_failed_probe_is_not_announced_again(rig: Rig) -> None:
    await rig.fail(26)
    rig.wait(30)
    await rig.clients[0].admit("7")
    await rig.clients[0].after_probe(0, "timeout")
    for seconds, is_held in ((59, True), (1, False)):
        rig.wait(seconds)
        assert (await rig.clients[1].admit("7")).is_held is is_held
    assert rig.announced == [1]


async def test_a_failed_announcement_is_repeated_by_another_instance(rig: Rig) -> None:
    rig.fail_to_tell = True
    rig.clients[0].count(rig.now, failures=101)
    with pytest.raises(ConnectionError):
        await rig.clients[0].after_batch()
    rig.fail_to_tell = False
    for seconds, announced in ((29, []), (31, [1])):
        rig.wait(seconds)
        for client in rig.clients[1:]:
            await client.admit("0")
        assert rig.announced == announced


async def test_all_events_are_admitted_after_a_person_has_closed_the_breaker(rig: Rig) -> None:
    await rig.fail(26)
    seen = await rig.store.load()
    closed = close(seen.breaker, 1, "ann", rig.now)
    assert closed is not None
    await rig.store.replace(seen, closed)
    assert (await rig.clients[3].admit("0")).events_max is None
    rig.wait(10)
    await rig.fail(26)
    assert rig.announced == [1, 2]
