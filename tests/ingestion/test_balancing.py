"""Load balancing: the scenarios of the gist, and properties that hold for any view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.twins.ingestion import MemoryOwnershipStore
from shared.ingestion.errors import RowChanged
from shared.ingestion.model import Ownership, OwnershipClaim
from shared.ingestion.ownership.load_balancing import (
    CLAIMS_MAX,
    BalancingPlan,
    BalancingTimes,
    OwnershipView,
    plan,
    release,
    rendezvous,
)
from tests.builders import NOW, ago


def partitions(count: int) -> tuple[str, ...]:
    return tuple(str(n) for n in range(count))


def row(partition_id: str, owner: str, seconds_ago: float = 0, epoch: int = 1) -> Ownership:
    return Ownership(partition_id, owner, epoch, ago(seconds_ago), f"v-{partition_id}")


def owned(shares: Mapping[str, int], *, seconds_ago: float = 0) -> tuple[Ownership, ...]:
    """The rows of owners that have the given numbers of partitions, numbered consecutively."""
    names = [owner for owner, count in shares.items() for _ in range(count)]
    return tuple(row(str(n), owner, seconds_ago) for n, owner in enumerate(names))


def shares(rows: Iterable[Ownership]) -> dict[str, int]:
    return dict(Counter(r.owner for r in rows))


def settle(
    view: OwnershipView, processors: Iterable[str], cycles_max: int = 60
) -> tuple[OwnershipView, int]:
    """Let the processors take turns until none of them claims. Returns the view and the number of
    claims."""
    names = list(processors)
    claims = 0
    for _ in range(cycles_max):
        before = claims
        for me in names:
            for claim in plan(view, me, NOW).claims:
                claims += 1
                view = after(view, claim)
        if claims == before:
            return view, claims
    raise AssertionError(f"not settled: {shares(view.ownerships)}")


def after(view: OwnershipView, claim: OwnershipClaim) -> OwnershipView:
    rest = tuple(r for r in view.ownerships if r.partition_id != claim.partition_id)
    new = Ownership(claim.partition_id, claim.owner, claim.epoch, NOW, f"{claim.epoch}")
    return replace(view, ownerships=(*rest, new))


def claimed(planned: BalancingPlan) -> OwnershipClaim:
    assert planned.claims, planned.reason
    return planned.claims[0]


# --- scenario 1: the first instance, nothing owned --------------------------------------------


def test_the_first_processor_claims_one_partition_of_five() -> None:
    claim = claimed(plan(OwnershipView(partitions(5)), "a", NOW))
    assert claim.partition_id in partitions(5)
    assert (claim.owner, claim.epoch, claim.expected_version) == ("a", 1, None)


@pytest.mark.parametrize(
    ("others", "mine", "claims"),
    [
        ({}, 0, 1),
        ({}, 1, 1),
        ({}, 2, 2),
        ({}, 90, 90),
        ({}, 500, CLAIMS_MAX),
        ({}, 1000, 24),
        ({"b": 480}, 480, 32),
        ({"b": 512}, 500, 12),
        ({"b": 400, "c": 3}, 340, 1),
        ({"b": 600}, 400, 24),
        ({"b": 700}, 324, 1),
    ],
)
def test_a_processor_claims_free_partitions_up_to_its_share_and_doubles_what_it_has(
    others: dict[str, int], mine: int, claims: int
) -> None:
    view = OwnershipView(partitions(1024), owned({**others, "a": mine}))
    planned = plan(view, "a", NOW)
    assert len(planned.claims) == claims, planned.reason
    assert len({claim.partition_id for claim in planned.claims}) == claims


def test_a_single_processor_claims_all_five_partitions() -> None:
    view, claims = settle(OwnershipView(partitions(5)), "a")
    assert (shares(view.ownerships), claims) == ({"a": 5}, 5)


def test_the_choice_of_a_partition_can_be_replaced() -> None:
    claim = claimed(plan(OwnershipView(partitions(5)), "a", NOW, choose=lambda _names, _me: "3"))
    assert claim.partition_id == "3"


# --- scenario 2: as many processors as partitions, and one more -------------------------------


def test_a_sixth_processor_of_five_partitions_stays_inactive() -> None:
    view = OwnershipView(partitions(5), owned(dict.fromkeys("abcde", 1)))
    planned = plan(view, "f", NOW)
    assert (planned.claims, planned.keep) == ((), ())
    assert "enough" in planned.reason


def test_the_sixth_processor_takes_over_when_one_of_the_five_crashes() -> None:
    rows = owned(dict.fromkeys("abcde", 1))
    dead = replace(rows[2], modified_at=ago(31))
    claim = claimed(plan(OwnershipView(partitions(5), (*rows[:2], dead, *rows[3:])), "f", NOW))
    assert (claim.partition_id, claim.epoch, claim.expected_version) == ("2", 2, "v-2")


# --- scenario 3: a newcomer steals ------------------------------------------------------------


def test_a_fourth_processor_steals_until_it_has_four_of_eighteen_partitions() -> None:
    view = OwnershipView(partitions(18), owned({"a": 6, "b": 6, "c": 6}))
    view, claims = settle(view, "abcd")
    assert sorted(shares(view.ownerships).values()) == [4, 4, 5, 5]
    assert claims == 4


def test_a_processor_steals_from_the_one_with_the_most_partitions() -> None:
    view = OwnershipView(partitions(12), owned({"a": 3, "b": 5, "c": 4}))
    claim = claimed(plan(view, "d", NOW))
    assert "b has 5" in claim.reason
    assert claim.epoch == 2


def test_a_steal_is_conditional_on_the_version_of_the_row() -> None:
    view = OwnershipView(partitions(2), owned({"a": 2}))
    claim = claimed(plan(view, "b", NOW))
    assert claim.expected_version == f"v-{claim.partition_id}"


# --- scenario 4: a processor crashes ----------------------------------------------------------


def test_three_processors_share_the_twenty_partitions_of_four() -> None:
    rows = owned(dict.fromkeys("abcd", 5))
    dead = tuple(replace(r, modified_at=ago(60)) if r.owner == "d" else r for r in rows)
    view, claims = settle(OwnershipView(partitions(20), dead), "abc")
    assert sorted(shares(view.ownerships).values()) == [6, 7, 7]
    assert claims == 5


# --- scenario 5: unclaimed partitions ---------------------------------------------------------


def test_five_new_partitions_are_shared_among_four() -> None:
    view = OwnershipView(partitions(25), owned(dict.fromkeys("abcd", 5)))
    view, claims = settle(view, "abcd")
    assert sorted(shares(view.ownerships).values()) == [6, 6, 6, 7]
    assert claims == 5


def test_processors_that_start_at_the_same_time_reach_an_even_share() -> None:
    view, _ = settle(OwnershipView(partitions(32)), [f"p{n}" for n in range(20)])
    assert sorted(shares(view.ownerships).values()) == [1] * 8 + [2] * 12


def test_a_free_partition_is_left_to_processors_below_the_floor() -> None:
    view = OwnershipView(partitions(4), owned({"a": 2, "b": 1}))
    assert plan(view, "a", NOW).claims == ()
    assert claimed(plan(view, "b", NOW)).partition_id == "3"


def test_a_processor_at_the_floor_steals_from_one_with_two_more() -> None:
    view = OwnershipView(partitions(11), owned({"a": 5, "b": 3, "c": 3}))
    assert "a has 5" in claimed(plan(view, "b", NOW)).reason
    balanced = OwnershipView(partitions(11), owned({"a": 4, "b": 4, "c": 3}))
    assert plan(balanced, "c", NOW).claims == ()


def test_a_processor_at_the_floor_leaves_an_excess_to_one_below_it() -> None:
    view = OwnershipView(partitions(9), owned({"a": 5, "b": 3, "c": 1}))
    assert plan(view, "b", NOW).claims == ()
    assert "a has 5" in claimed(plan(view, "c", NOW)).reason


# --- renewal, expiry, loss --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds_ago", "keeps", "renews", "claims"),
    [
        (0, True, False, False),
        (9.9, True, False, False),
        (10, True, True, False),
        (29.9, True, True, False),
        (30, False, False, True),
        (-600, True, True, False),
    ],
)
def test_a_fresh_row_is_kept_an_older_one_renewed_and_an_expired_one_claimed(
    seconds_ago: float, keeps: bool, renews: bool, claims: bool
) -> None:
    planned = plan(OwnershipView(("0",), (row("0", "a", seconds_ago, epoch=7),)), "a", NOW)
    assert bool(planned.keep) is keeps
    assert [(c.epoch, c.expected_version) for c in planned.renewals] == [(7, "v-0")] * renews
    assert [claim.epoch for claim in planned.claims] == [8] * claims


def test_only_the_stores_clock_decides_about_expiry() -> None:
    times = BalancingTimes(1, 2)
    view = OwnershipView(("0",), (row("0", "a", 2),))
    assert plan(view, "b", NOW, times).claims
    assert plan(view, "b", NOW - timedelta(seconds=1), times).claims == ()


def test_a_released_partition_is_free_at_once_under_the_next_epoch() -> None:
    given_up = release(row("0", "a", epoch=4))
    assert (given_up.owner, given_up.epoch) == ("", 4)
    view = OwnershipView(("0",), (row("0", "", epoch=4),))
    assert claimed(plan(view, "b", NOW)).epoch == 5


def test_rows_of_partitions_that_no_longer_exist_are_ignored() -> None:
    view = OwnershipView(partitions(2), owned({"a": 2, "b": 2}))
    planned = plan(view, "b", NOW)
    assert planned.keep == ()
    assert claimed(planned).partition_id in partitions(2)


def test_nothing_is_claimed_from_a_hub_without_partitions() -> None:
    assert plan(OwnershipView(()), "a", NOW).claims == ()


async def test_only_one_of_two_concurrent_ownership_claims_wins() -> None:
    store = MemoryOwnershipStore(lambda: NOW)
    view = OwnershipView(("0",), (await store.owners()).rows)
    first, second = (claimed(plan(view, me, NOW)) for me in "ab")
    assert (await store.write(first)).owner == "a"
    with pytest.raises(RowChanged):
        await store.write(second)
    assert [r.owner for r in (await store.owners()).rows] == ["a"]


def test_different_processors_choose_different_partitions() -> None:
    chosen = Counter(rendezvous(partitions(32), f"p{n}") for n in range(200))
    assert len(chosen) > 25


# --- properties of any view -------------------------------------------------------------------


@st.composite
def views(draw: st.DrawFn) -> OwnershipView:
    count = draw(st.integers(1, 24))
    rows = [
        row(p, draw(st.sampled_from(["", "a", "b", "c", "d", "e"])), draw(st.integers(0, 60)))
        for p in partitions(count)
        if draw(st.booleans())
    ]
    return OwnershipView(partitions(count), tuple(rows))


@given(views(), st.sampled_from("abz"))
def test_a_claim_never_exceeds_the_processors_share(view: OwnershipView, me: str) -> None:
    planned = plan(view, me, NOW)
    living = {r.owner for r in view.ownerships if r.owner and r.modified_at > ago(30)} | {me}
    floor, extra = divmod(len(view.partition_ids), len(living))
    if planned.claims:
        ids = [r.partition_id for r in planned.keep] + [c.partition_id for c in planned.claims]
        assert len(ids) == len(set(ids)) <= floor + (1 if extra else 0)
    assert all(c.owner == me for c in planned.renewals)


@given(views(), st.integers(1, 6))
def test_from_any_view_the_shares_end_up_within_one_of_each_other(
    view: OwnershipView, count: int
) -> None:
    """Crashed processors stay down; the remaining ones take turns."""
    names = "abcdef"[:count]
    rows = tuple(
        r if r.owner in names else replace(r, modified_at=ago(99)) for r in view.ownerships
    )
    settled, claims = settle(replace(view, ownerships=rows), names)
    held = shares(settled.ownerships)
    floor = len(view.partition_ids) // count
    assert sum(held.values()) == len(view.partition_ids)
    assert all(floor <= held.get(name, 0) <= floor + 1 for name in names)
    assert claims <= 2 * len(view.partition_ids)


@pytest.mark.parametrize("newest_first", [False, True])
def test_of_two_rows_of_a_partition_the_newest_counts(newest_first: bool) -> None:
    """Earlier versions wrote rows of their own if the names in their settings differed by case."""
    rows = [row("0", "gone", 100, epoch=7), row("0", "b", 1, epoch=2)]
    view = OwnershipView(("0", "1"), tuple(rows[::-1] if newest_first else rows))
    planned = plan(view, "me", NOW)
    assert [each.partition_id for each in planned.claims] == ["1"], "b owns partition 0"
    assert [each.epoch for each in plan(view, "b", NOW).keep] == [2]
