"""A processor reads the partitions that the store confirms, for as long as it confirms them."""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from datetime import datetime, timedelta

import pytest

from local.twins.ingestion import MemoryOwnershipStore
from shared.ingestion.errors import (
    Fenced,
    HubSilent,
    HubUnavailable,
    StoreUnavailable,
    StreamRecreated,
)
from shared.ingestion.hub.client import KnownPartitions
from shared.ingestion.model import Ownership
from shared.ingestion.ownership.load_balancing import BalancingTimes
from shared.ingestion.ownership.processor import Processor, run_processor
from shared.ingestion.store.owners import OwnershipSnapshot
from tests.builders import NOW

TIMES = BalancingTimes(renew_seconds=10, expire_seconds=30)


class Owners(MemoryOwnershipStore):
    """An ownership store that may be unreachable."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig.store_clock)
        self.down = self.read_only = False

    async def owners(self) -> OwnershipSnapshot:
        if self.down:
            raise StoreUnavailable("no answer")
        return await super().owners()

    async def write(self, claim: Ownership) -> Ownership:
        if self.down or self.read_only:
            raise StoreUnavailable("no answer")
        return await super().write(claim)


class FakeReading:
    """Reads nothing."""

    def __init__(self, lease: Ownership) -> None:
        self.lease = lease
        self.error: BaseException | None = None
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    async def ended(self) -> None:
        assert self.cancelled


class Rig:
    """A processor of a hub with some partitions. The processor's own clock starts anywhere."""

    def __init__(self, partitions: int = 1, committed: int = 0) -> None:
        self.passed = 0.0
        self.partitions, self.committed = partitions, committed
        self.owners = Owners(self)
        self.hub_down = self.hub_hangs = False
        self.started: list[FakeReading] = []
        self.processor = self.new("me")

    def new(self, name: str) -> Processor:
        elapsed = lambda: 7e6 + self.passed  # noqa: E731
        return Processor(name, self.owners, self, self.epoch_of, self.start, elapsed, TIMES)

    def store_clock(self) -> datetime:
        return NOW + timedelta(seconds=self.passed)

    async def partition_ids(self) -> tuple[str, ...]:
        if self.hub_down and self.hub_hangs:
            await asyncio.Event().wait()
        if self.hub_down:
            raise HubUnavailable("no answer")
        return tuple(str(n) for n in range(self.partitions))

    async def epoch_of(self, _partition_id: str) -> int:
        return self.committed

    def start(self, lease: Ownership) -> FakeReading:
        self.started.append(FakeReading(lease))
        return self.started[-1]

    @property
    def going_on(self) -> list[tuple[str, int]]:
        alive = [reading for reading in self.started if not reading.cancelled]
        return [(reading.lease.partition_id, reading.lease.epoch) for reading in alive]


async def test_a_processor_reads_each_partition_that_it_claims_under_its_epoch() -> None:
    rig = Rig(partitions=2)
    assert await rig.processor.cycle()
    assert len(rig.going_on) == 1
    assert await rig.processor.cycle()
    assert not await rig.processor.cycle()
    assert sorted(rig.going_on) == [("0", 1), ("1", 1)]


async def test_a_claim_uses_an_epoch_above_the_committed_one_even_if_rows_were_lost() -> None:
    rig = Rig(committed=57)
    await rig.processor.cycle()
    assert rig.going_on == [("0", 58)]


@pytest.mark.parametrize(
    ("cycles", "seconds", "goes_on"), [([], 29, True), ([], 30, False), ([9], 31, False)]
)
async def test_while_the_store_is_unreachable_a_lease_ends_when_it_expires(
    cycles: list[float], seconds: float, *, goes_on: bool
) -> None:
    rig = Rig()
    await rig.processor.cycle()
    for rig.passed in cycles:  # the lease is fresh, so it is not renewed
        await rig.processor.cycle()
    rig.owners.down = True
    rig.passed = seconds
    await rig.processor.cycle()
    assert bool(rig.going_on) is goes_on


@pytest.mark.parametrize("hangs", [False, True])
async def test_an_unavailable_hub_does_not_end_leases(hangs: bool) -> None:
    rig = Rig()
    rig.processor.hub = KnownPartitions(rig, timeout_seconds=0.01)
    rig.hub_down = True
    assert not await rig.processor.cycle(), "the share is not known yet"
    rig.hub_down = False
    await rig.processor.cycle()
    rig.hub_down, rig.hub_hangs = True, hangs
    for rig.passed in (15, 30, 45):
        await rig.processor.cycle()
    assert rig.going_on == [("0", 1)]
    (row,) = (await rig.owners.owners()).rows
    assert row.modified_at == rig.store_clock()
    rig.hub_down, rig.partitions = False, 2
    await rig.processor.cycle()
    assert sorted(rig.going_on) == [("0", 1), ("1", 1)], "the partitions are listed again"


@pytest.mark.parametrize(
    "error", [Fenced("epoch 1 is over"), HubSilent("nothing came"), StreamRecreated("made anew")]
)
async def test_a_partition_whose_reading_ended_is_reported_released_and_claimed_anew(
    error: Exception,
) -> None:
    rig, released = Rig(), list[tuple[str, BaseException]]()
    rig.processor.on_release = lambda lease, why: released.append((lease.partition_id, why))
    await rig.processor.cycle()
    rig.started[0].error, rig.committed = error, 12
    await rig.processor.cycle()
    assert (rig.going_on, released) == ([], [("0", error)])
    (row,) = (await rig.owners.owners()).rows
    assert (row.owner, row.epoch) == ("", 1)
    await rig.processor.cycle()
    assert rig.going_on == [("0", 13)], "above the committed epoch"


async def test_a_processor_that_ends_has_released_all_partitions() -> None:
    rig, stopping = Rig(partitions=3), asyncio.Event()
    cycles = 0

    def jitter() -> float:
        nonlocal cycles
        cycles += 1
        if cycles == 3:
            assert len(rig.going_on) == 3
            stopping.set()
        return 1.0

    await run_processor(rig.processor, stopping, 0.001, jitter)
    assert rig.going_on == []
    assert {row.owner for row in (await rig.owners.owners()).rows} == {""}


async def test_a_live_process_keeps_reading_when_the_clock_is_set_back() -> None:
    rig = Rig(partitions=2)
    for _ in range(3):
        await rig.processor.cycle()
    rig.passed = -600
    await rig.processor.cycle()
    assert sorted(rig.going_on) == [("0", 1), ("1", 1)]
    rows = (await rig.owners.owners()).rows
    assert {each.modified_at for each in rows} == {rig.store_clock()}


async def test_a_lease_from_before_the_clock_was_set_back_expires_after_its_usual_time() -> None:
    """By its row the lease lasts another 630 seconds, but another processor may have taken the
    partition."""
    rig = Rig()
    elapsed = 0.0
    await rig.processor.cycle()
    rig.processor.elapsed = lambda: elapsed
    rig.owners.read_only = True
    rig.passed = -600
    await rig.processor.cycle()
    assert rig.going_on == [("0", 1)], "the partition is not known to be lost"
    rig.owners.down, elapsed = True, TIMES.expire_seconds
    await rig.processor.cycle()
    assert rig.going_on == []


class NoWaiting(selectors.DefaultSelector):
    """Lets the time of an event loop pass at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        self.now += 0 if found else timeout or 0
        return found


class SlowOwners(MemoryOwnershipStore):
    """Each write takes 0.3 seconds."""

    async def write(self, claim: Ownership) -> Ownership:
        await asyncio.sleep(0.15)
        row = await super().write(claim)
        await asyncio.sleep(0.15)
        return row


@pytest.mark.parametrize(("processors", "settled_seconds"), [(1, 60), (4, 30)])
def test_1024_partitions_are_shared_within_a_minute_and_then_stay(
    processors: int, settled_seconds: float
) -> None:
    selector = NoWaiting()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]

    async def run() -> None:
        rig, stopping = Rig(partitions=1024), asyncio.Event()
        owners = SlowOwners(lambda: NOW + timedelta(seconds=selector.now))
        everyone = [
            Processor(f"p{n}", owners, rig, rig.epoch_of, rig.start, lambda: selector.now, TIMES)
            for n in range(processors)
        ]
        running = [
            asyncio.create_task(run_processor(each, stopping, 5, lambda: 1.0)) for each in everyone
        ]
        await asyncio.sleep(settled_seconds)
        settled = sorted(rig.going_on)
        held = Counter(row.owner for row in (await owners.owners()).rows)
        assert sorted(held.values()) == [1024 // processors] * processors
        await asyncio.sleep(40)  # longer than a lease
        assert sorted(rig.going_on) == settled
        assert len(settled) == 1024
        stopping.set()
        await asyncio.gather(*running)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(run())
