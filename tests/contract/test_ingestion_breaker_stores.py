"""The contract of BreakerStore, tested on each implementation."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from shared.ingestion.breaker.failure_window import Tally
from shared.ingestion.breaker.state import Breaker, BreakerMode, Probe
from shared.ingestion.errors import RowChanged
from shared.ingestion.store.breakers import BreakerStore
from tests.builders import NOW
from tests.contract.conftest import Backend, now

SOON = NOW + timedelta(seconds=30, microseconds=123457)
OPEN = Breaker(BreakerMode.OPEN, 3, NOW, 'too much "failed"\nü', 2, SOON, None, "", 2, SOON)
PROBING = replace(
    OPEN,
    mode=BreakerMode.HALF_OPEN,
    retry_at=None,
    probe=Probe("i1", "0", SOON, 10),
    announce_at=None,
)


async def test_a_breaker_without_a_row_is_closed(breaker: BreakerStore) -> None:
    seen = await breaker.load()
    assert seen.breaker == Breaker()
    assert abs(seen.read_at - now()) < timedelta(seconds=5)


async def test_all_fields_of_a_breaker_are_stored(breaker: BreakerStore) -> None:
    seen = await breaker.load()
    for state in (OPEN, PROBING, Breaker(BreakerMode.ISOLATED, closed_by="", reason="r" * 4000)):
        written = await breaker.replace(seen, state)
        seen = await breaker.load()
        assert seen.breaker == written.breaker == state
        assert seen.version == written.version


async def test_a_write_based_on_an_older_version_is_refused(breaker: BreakerStore) -> None:
    old = await breaker.load()
    first = await breaker.replace(old, OPEN)
    with pytest.raises(RowChanged):
        await breaker.replace(old, PROBING)
    await breaker.replace(first, PROBING)
    with pytest.raises(RowChanged):
        await breaker.replace(first, OPEN)
    assert (await breaker.load()).breaker == PROBING


@pytest.mark.parametrize("exists", [False, True])
async def test_only_one_of_many_concurrent_openings_wins(
    breaker: BreakerStore, exists: bool
) -> None:
    seen = await breaker.load()
    if exists:
        seen = await breaker.replace(seen, Breaker(epoch=1))

    async def attempt(number: int) -> bool:
        try:
            await breaker.replace(seen, replace(OPEN, reason=f"by {number}"))
        except RowChanged:
            return False
        return True

    won = await asyncio.gather(*[attempt(number) for number in range(8)])
    assert sum(won) == 1
    assert (await breaker.load()).breaker.reason == f"by {won.index(True)}"


async def test_tallies_of_all_instances_are_read_from_a_time_on(breaker: BreakerStore) -> None:
    buckets = [NOW + timedelta(seconds=seconds) for seconds in (0, 10, 20)]
    tallies = [
        Tally(bucket, instance, 2**33, 1, 1, "ValueError: ü")
        for bucket in buckets
        for instance in ("i/1", "i2")
    ]
    for tally in tallies:
        await breaker.put_tally(tally)
    read = await breaker.tallies(buckets[1])
    assert sorted(read, key=lambda t: (t.bucket_start, t.instance)) == tallies[2:]


async def test_a_tally_replaces_the_previous_one_of_its_bucket_and_instance(
    breaker: BreakerStore,
) -> None:
    for failures in (1, 2):
        await breaker.put_tally(Tally(NOW, "i1", 5, failures))
    assert list(await breaker.tallies(NOW)) == [Tally(NOW, "i1", 5, 2)]


async def test_each_breaker_has_its_own_state_and_tallies(backend: Backend) -> None:
    ours, theirs = backend.breaker(), backend.breaker()
    await ours.replace(await ours.load(), OPEN)
    await ours.put_tally(Tally(NOW, "i1", 5))
    assert (await theirs.load()).breaker == Breaker()
    assert list(await theirs.tallies(NOW)) == []


async def test_old_tallies_are_deleted(breaker: BreakerStore) -> None:
    for bucket in range(3):
        await breaker.put_tally(Tally(NOW + timedelta(seconds=10 * bucket), "i1", 1))
    later = NOW + timedelta(hours=3)
    await breaker.put_tally(Tally(later, "i2", 1))
    assert list(await breaker.tallies(NOW)) == [Tally(later, "i2", 1)]
