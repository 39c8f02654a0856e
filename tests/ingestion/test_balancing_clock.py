"""A store's clock that is set back neither keeps dead leases alive nor costs living ones."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shared.adapters.memory.ingestion import MemoryOwnershipStore
from shared.ingestion.breaker.breaker import (
    LONG_AGO,
    Breaker,
    BreakerMode,
    BreakerTimes,
    start_probe,
    take_announcement,
    trip,
)
from shared.ingestion.errors import StoreUnavailable
from shared.ingestion.ownership.load_balancing import Ownership, OwnershipView, plan
from shared.ingestion.ownership.processor import Balancer
from tests.builders import NOW
from tests.ingestion.test_processor import TIMES, Rig

BACK = timedelta(seconds=600)


def row(owner: str, ahead_seconds: float) -> Ownership:
    return Ownership("0", owner, 7, NOW + timedelta(seconds=ahead_seconds), "v")


@pytest.mark.parametrize(("ahead_seconds", "free"), [(0, False), (30, False), (30.1, True)])
def test_a_row_further_ahead_than_a_lease_lasts_is_free_for_others(
    ahead_seconds: float, free: bool
) -> None:
    found = plan(OwnershipView(("0",), (row("a", ahead_seconds),)), "b", NOW, TIMES)
    assert (found.claim is not None and "(free)" in found.claim.reason) is free


@pytest.mark.parametrize("ahead_seconds", [30.1, 600, 86_400])
def test_its_owner_keeps_it_and_renews_it_at_once(ahead_seconds: float) -> None:
    found = plan(OwnershipView(("0",), (row("a", ahead_seconds),)), "a", NOW, TIMES)
    assert [kept.epoch for kept in found.keep] == [7]
    assert [(c.epoch, c.expected_version) for c in found.renewals] == [(7, "v")]
    assert found.claim is None


def test_a_row_that_is_a_little_ahead_is_fresh() -> None:
    """Servers of one store differ by a little, and some tell their time to the second only."""
    found = plan(OwnershipView(("0",), (row("a", 5),)), "a", NOW, TIMES)
    assert (len(found.keep), found.renewals) == (1, ())


async def test_what_a_dead_process_held_before_the_clock_was_set_back_is_taken_over_at_once() -> (
    None
):
    rig = Rig()
    await rig.processor.cycle()
    rig.passed = -BACK.total_seconds()
    successor = rig.new("successor")
    await successor.cycle()
    assert rig.going_on[-1] == ("0", 2)
    assert list(successor.held) == ["0"]


async def test_a_living_process_reads_on_when_the_clock_is_set_back() -> None:
    rig = Rig(partitions=2)
    for _ in range(3):
        await rig.processor.cycle()
    rig.passed = -BACK.total_seconds()
    await rig.processor.cycle()
    assert sorted(rig.going_on) == [("0", 1), ("1", 1)]
    rows = (await rig.owners.owners()).rows
    assert {each.modified_at for each in rows} == {NOW - BACK}


async def test_a_lease_that_could_not_be_renewed_since_ends_after_its_usual_time() -> None:
    """Its row says 630 seconds, but others may have taken it."""
    rig = Rig()
    elapsed = 0.0
    await rig.processor.cycle()
    rig.processor.elapsed = lambda: elapsed
    rig.processor.balancer = Balancer("me", NoRenewals(rig), rig, rig.epoch_of, TIMES)
    rig.passed = -BACK.total_seconds()
    await rig.processor.cycle()
    assert rig.going_on == [("0", 1)], "nobody said that it is lost"
    rig.owners.down, elapsed = True, TIMES.expire_seconds
    await rig.processor.cycle()
    assert rig.going_on == []


class NoRenewals(MemoryOwnershipStore):
    """Rows can be read and not be written."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig.store_clock)
        self._rig = rig
        self.owners = rig.owners.owners  # type: ignore[method-assign]

    async def write(self, _claim: object) -> Ownership:
        raise StoreUnavailable("read only")


# --- the breaker's own times ------------------------------------------------------------------

BREAKER_TIMES = BreakerTimes()


def opened() -> Breaker:
    found = trip(Breaker(changed_at=LONG_AGO), "failures", NOW, BREAKER_TIMES)
    assert found is not None
    return found


def test_an_open_breaker_probes_at_once_when_the_clock_is_set_back() -> None:
    probing = start_probe(opened(), "a", "0", NOW - timedelta(hours=1), BREAKER_TIMES)
    assert probing is not None
    assert probing.mode is BreakerMode.HALF_OPEN


def test_a_break_that_is_within_its_bounds_is_kept() -> None:
    """Servers of one store differ by a little."""
    assert start_probe(opened(), "a", "0", NOW - timedelta(seconds=5), BREAKER_TIMES) is None


def test_a_probe_that_would_last_far_too_long_is_taken_over() -> None:
    probing = start_probe(opened(), "a", "0", NOW + timedelta(seconds=30), BREAKER_TIMES)
    assert probing is not None
    assert start_probe(probing, "b", "0", NOW + timedelta(seconds=31), BREAKER_TIMES) is None
    taken = start_probe(probing, "b", "0", NOW - BACK, BREAKER_TIMES)
    assert taken is not None
    assert taken.probe is not None
    assert taken.probe.holder == "b"


def test_an_announcement_is_not_left_for_longer_than_its_announcer_has() -> None:
    found = opened()
    assert take_announcement(found, NOW, BREAKER_TIMES) is None
    taken = take_announcement(found, NOW - BACK, BREAKER_TIMES)
    assert taken is not None
    assert taken.announce_at == NOW - BACK + timedelta(seconds=BREAKER_TIMES.announce_seconds)
