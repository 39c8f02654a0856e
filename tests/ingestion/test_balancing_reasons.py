"""What a processor says of its claims, and whom it may take a partition from."""

from __future__ import annotations

import pytest

from shared.ingestion.ownership.load_balancing import (
    Ownership,
    OwnershipClaim,
    OwnershipView,
    plan,
    release,
)
from tests.builders import NOW, ago
from tests.ingestion.test_balancing import claimed, owned, partitions, row


def first(names: object, me: str) -> str:
    assert me == "me", "each processor chooses for itself"
    return sorted(names)[0]  # type: ignore[call-overload,no-any-return]


def test_a_free_partition_is_taken_and_the_row_says_by_what_count() -> None:
    view = OwnershipView(partitions(4), owned({"b": 2}))
    found = plan(view, "me", NOW, choose=first)
    reason = "4 partitions, 2 processors, 0 mine: take 2 (free)"
    assert (found.claim, found.reason) == (OwnershipClaim("2", "me", 1, None, reason), reason)


def test_a_stolen_partition_says_from_whom() -> None:
    view = OwnershipView(partitions(4), owned({"b": 4}))
    reason = "4 partitions, 2 processors, 0 mine: take 0 (b has 4)"
    found = plan(view, "me", NOW, choose=first)
    assert (found.claim, found.reason) == (OwnershipClaim("0", "me", 2, "v-0", reason), reason)


def test_renewals_and_releases_say_what_they_are() -> None:
    mine = Ownership("0", "me", 3, ago(15), "v-0")
    found = plan(OwnershipView(partitions(1), (mine,)), "me", NOW)
    assert found.renewals == (OwnershipClaim("0", "me", 3, "v-0", "still at work"),)
    assert release(mine) == OwnershipClaim("0", "", 3, "v-0", "given up")


@pytest.mark.parametrize(
    ("shares", "count", "steals"),
    [
        ({"b": 3, "c": 3, "me": 1}, 7, True),  # below the floor of 2: from one more than it
        ({"b": 3, "c": 2, "d": 2, "me": 1}, 8, True),
        ({"b": 4, "c": 2, "me": 2}, 8, True),  # at the floor: from two more than it only
        ({"b": 3, "c": 3, "me": 2}, 8, False),
    ],
)
def test_it_takes_from_the_richest_and_only_where_that_evens_out(
    shares: dict[str, int], count: int, steals: bool
) -> None:
    found = plan(OwnershipView(partitions(count), owned(shares)), "me", NOW, choose=first)
    assert (found.claim is not None) is steals, found.reason
    if steals:
        assert "(b has" in claimed(found).reason


def test_where_all_have_as_many_the_choice_is_the_processors_own() -> None:
    """Who takes the same of two equals at the same time gets in the way of another."""
    view = OwnershipView(partitions(6), (*owned({"b": 3, "c": 3}), row("x", "gone", 9999)))
    assert claimed(plan(view, "me", NOW, choose=first)).partition_id == "0"
    chosen = {
        claimed(plan(view, me, NOW)).partition_id for me in (f"processor-{n}" for n in range(40))
    }
    assert chosen == {"0", "1", "2", "3", "4", "5"}
