"""A store's clock that is set back neither extends dead leases nor ends live ones."""

from __future__ import annotations

from datetime import timedelta

import pytest

from local.twins.ingestion import MemoryOwnershipStore
from shared.ingestion.breaker.state import (
    LONG_AGO,
    Breaker,
    BreakerMode,
    BreakerTimes,
    start_probe,
    take_announcement,
    trip,
)
from shared.ingestion.errors import StoreUnavailable
from shared.ingestion.model import Ownership
from shared.ingestion.ownership.load_balancing import OwnershipView, plan
from shared.ingestion.ownership.processor import Balancer
from tests.builders import NOW
from tests.ingestion.test_processor import TIMES, Rig

BACK = timedelta(seconds=600)


def row(owner: str, ahead_seconds: float) -> Ownership:
    return Ownership("0", owner, 7, NOW + timedelta(seconds=ahead_seconds), "v")


@pytest.mark.parametrize(("ahead_seconds", "free"), [(0, False), (30, False), (30.1, True)])
def test_a_row_ahead_by_more_than_a_lease_is_free_for_other_processors(
    ahead_seconds: float, free: bool
) -> None:
    planned = plan(OwnershipView(("0",), (row("a", ahead_seconds),)), "b", NOW, TIMES)
    assert ["(free)" in claim.reason for claim in planned.claims] == [True] * free


@pytest.mark.parametrize("ahead_seconds", [30.1, 600, 86_400])
def test_the_owner_of_a_row_far_ahead_keeps_and_renews_it_at_once(ahead_seconds: float) -> None:
    planned = plan(OwnershipView(("0",), (row("a", ahead_seconds),)), "a", NOW, TIMES)
    assert [kept.epoch for kept in planned.keep] == [7]
    assert [(c.epoch, c.expected_version) for c in planned.renewals] == [(7, "v")]
    assert planned.claims == ()


def test_a_row_slightly_ahead_counts_as_fresh() -> None:
    """The clocks of a store's servers differ slightly, and some have a resolution of a second."""
    planned = plan(OwnershipView(("0",), (row("a", 5),)), "a", NOW, TIMES)
    assert (len(planned.keep), planned.renewals) == (1, ())


async def test_a_dead_lease_is_taken_over_at_once_after_the_clock_was_set_back() -> None:
    rig = Rig()
    await rig.processor.cycle()
    rig.passed = -BACK.total_seconds()
    successor = rig.new("successor")
    await successor.cycle()
    assert rig.going_on[-1] == ("0", 2)
    assert list(successor.held) == ["0"]


async def test_a_live_process_keeps_reading_when_the_clock_is_set_back() -> None:
    rig = Rig(partitions=2)
    for _ in range(3):
        await rig.processor.cycle()
    rig.passed = -BACK.total_seconds()
    await rig.processor.cycle()
    assert sorted(rig.going_on) == [("0", 1), ("1", 1)]
    rows = (await rig.owners.owners()).rows
    assert {each.modified_at for each in rows} == {NOW - BACK}


async def test_a_lease_from_before_the_clock_was_set_back_expires_after_its_usual_time() -> None:
    """By its row the lease lasts another 630 seconds, but another processor may have taken the
    partition."""
    rig = Rig()
    elapsed = 0.0
    await rig.processor.cycle()
    rig.processor.elapsed = lambda: elapsed
    rig.processor.balancer = Balancer("me", NoRenewals(rig), rig, rig.epoch_of, TIMES)
    rig.passed = -BACK.total_seconds()
    await rig.processor.cycle()
    assert rig.going_on == [("0", 1)], "the partition is not known to be lost"
    rig.owners.down, elapsed = True, TIMES.expire_seconds
    await rig.processor.cycle()
    assert rig.going_on == []


class NoRenewals(MemoryOwnershipStore):
    """Rows can be read, but not written."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig.store_clock)
        self._rig = rig
        self.owners = rig.owners.owners  # type: ignore[method-assign]

    async def write(self, _claim: object) -> Ownership:
        raise StoreUnavailable("read only")


# --- the times of the breaker -----------------------------------------------------------------

BREAKER_TIMES = BreakerTimes()


def opened() -> Breaker:
    breaker = trip(Breaker(changed_at=LONG_AGO), "failures", NOW, BREAKER_TIMES)
    assert breaker is not None
    return breaker


def test_an_open_breaker_probes_at_once_when_the_clock_is_set_back() -> None:
    probing = start_probe(opened(), "a", "0", NOW - timedelta(hours=1), BREAKER_TIMES)
    assert probing is not None
    assert probing.mode is BreakerMode.HALF_OPEN


def test_an_open_interval_slightly_too_long_is_kept() -> None:
    """The clocks of a store's servers differ slightly."""
    assert start_probe(opened(), "a", "0", NOW - timedelta(seconds=5), BREAKER_TIMES) is None


def test_a_probe_from_before_the_clock_was_set_back_is_taken_over() -> None:
    probing = start_probe(opened(), "a", "0", NOW + timedelta(seconds=30), BREAKER_TIMES)
    assert probing is not None
    assert start_probe(probing, "b", "0", NOW + timedelta(seconds=31), BREAKER_TIMES) is None
    taken = start_probe(probing, "b", "0", NOW - BACK, BREAKER_TIMES)
    assert taken is not None
    assert taken.probe is not None
    assert taken.probe.holder == "b"


def test_an_announcement_from_before_the_clock_was_set_back_is_taken_over() -> None:
    breaker = opened()
    assert take_announcement(breaker, NOW, BREAKER_TIMES) is None
    taken = take_announcement(breaker, NOW - BACK, BREAKER_TIMES)
    assert taken is not None
    assert taken.announce_at == NOW - BACK + timedelta(seconds=BREAKER_TIMES.announce_seconds)
