"""The contract of BreakerStore, tested on each engine."""

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
from tests.ingestion.conftest import wins

SOON = NOW + timedelta(seconds=30, microseconds=123457)
OPEN = Breaker(BreakerMode.OPEN, 3, NOW, 'too much "failed"\nü', 2, SOON, None, "", 2, SOON)
PROBING = replace(
    OPEN,
    mode=BreakerMode.HALF_OPEN,
    retry_at=None,
    probe=Probe("i1", "0", SOON, 10),
    announce_at=None,
)


@pytest.mark.parametrize("exists", [False, True])
async def test_only_one_of_many_writes_based_on_the_same_version_wins(
    breaker: BreakerStore, exists: bool
) -> None:
    seen = await breaker.load()
    if exists:
        seen = await breaker.replace(seen, Breaker(epoch=1))
    states = [replace(OPEN, reason=f"by {number}") for number in range(8)]
    won = await asyncio.gather(*[wins(breaker.replace(seen, state)) for state in states])
    assert sum(won) == 1
    assert (await breaker.load()).breaker == states[won.index(True)]
    with pytest.raises(RowChanged):
        await breaker.replace(seen, PROBING)


async def test_old_tallies_are_deleted(breaker: BreakerStore) -> None:
    for bucket in range(3):
        await breaker.put_tally(Tally(NOW + timedelta(seconds=10 * bucket), "i1", 1))
    later = NOW + timedelta(hours=3)
    await breaker.put_tally(Tally(later, "i2", 1))
    assert list(await breaker.tallies(NOW)) == [Tally(later, "i2", 1)]
