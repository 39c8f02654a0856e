"""The reasons of claims, and from which processors a partition may be stolen."""

from __future__ import annotations

import pytest

from shared.ingestion.model import Ownership, OwnershipClaim
from shared.ingestion.ownership.load_balancing import OwnershipView, plan, release
from tests.builders import NOW, ago
from tests.ingestion.test_balancing import claimed, owned, partitions, row


def first(names: object, me: str) -> str:
    assert me == "me", "the choice must be made for this processor"
    return sorted(names)[0]  # type: ignore[call-overload,no-any-return]


def test_the_claim_of_a_free_partition_states_the_counts() -> None:
    view = OwnershipView(partitions(4), owned({"b": 2}))
    planned = plan(view, "me", NOW, choose=first)
    reason = "4 partitions, 2 processors, 0 mine: take 2 (free)"
    assert (planned.claims, planned.reason) == (
        (OwnershipClaim("2", "me", 1, None, reason),),
        reason,
    )


def test_the_claim_of_a_stolen_partition_names_its_owner() -> None:
    view = OwnershipView(partitions(4), owned({"b": 4}))
    reason = "4 partitions, 2 processors, 0 mine: take 0 (b has 4)"
    planned = plan(view, "me", NOW, choose=first)
    assert (planned.claims, planned.reason) == (
        (OwnershipClaim("0", "me", 2, "v-0", reason),),
        reason,
    )


def test_renewals_and_releases_state_their_reason() -> None:
    mine = Ownership("0", "me", 3, ago(15), "v-0")
    planned = plan(OwnershipView(partitions(1), (mine,)), "me", NOW)
    assert planned.renewals == (OwnershipClaim("0", "me", 3, "v-0", "still at work"),)
    assert release(mine) == OwnershipClaim("0", "", 3, "v-0", "given up")


@pytest.mark.parametrize(
    ("shares", "count", "steals"),
    [
        (
            {"b": 3, "c": 3, "me": 1},
            7,
            True,
        ),  # below the floor of 2: steals from one above the floor
        ({"b": 3, "c": 2, "d": 2, "me": 1}, 8, True),
        ({"b": 4, "c": 2, "me": 2}, 8, True),  # at the floor: steals only from two above the floor
        ({"b": 3, "c": 3, "me": 2}, 8, False),
    ],
)
def test_a_processor_steals_from_the_largest_share_if_that_evens_the_shares(
    shares: dict[str, int], count: int, steals: bool
) -> None:
    planned = plan(OwnershipView(partitions(count), owned(shares)), "me", NOW, choose=first)
    assert bool(planned.claims) is steals, planned.reason
    if steals:
        assert "(b has" in claimed(planned).reason


def test_among_equal_shares_each_processor_chooses_differently() -> None:
    """Processors that make the same choice at the same time compete for one partition."""
    view = OwnershipView(partitions(6), (*owned({"b": 3, "c": 3}), row("x", "gone", 9999)))
    assert claimed(plan(view, "me", NOW, choose=first)).partition_id == "0"
    chosen = {
        claimed(plan(view, me, NOW)).partition_id for me in (f"processor-{n}" for n in range(40))
    }
    assert chosen == {"0", "1", "2", "3", "4", "5"}
