"""The gist's scenarios and examples, and what must hold of any view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.adapters.memory.ingestion import MemoryOwnershipStore
from shared.ingestion.errors import ClaimLost
from shared.ingestion.ownership.load_balancing import (
    BalancingPlan,
    BalancingTimes,
    Ownership,
    OwnershipClaim,
    OwnershipView,
    applied,
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
    """Each owner has so many partitions, numbered one after the other."""
    names = [owner for owner, count in shares.items() for _ in range(count)]
    return tuple(row(str(n), owner, seconds_ago) for n, owner in enumerate(names))


def shares(rows: Iterable[Ownership]) -> dict[str, int]:
    return dict(Counter(r.owner for r in rows))


def settle(
    view: OwnershipView, processors: Iterable[str], cycles_max: int = 60
) -> tuple[OwnershipView, int]:
    """Processors take turns until none of them claims; answers the claims it took."""
    names = list(processors)
    claims = 0
    for _ in range(cycles_max):
        before = claims
        for me in names:
            claim = plan(view, me, NOW).claim
            if claim is not None:
                claims += 1
                view = after(view, claim)
        if claims == before:
            return view, claims
    raise AssertionError(f"not settled: {shares(view.ownerships)}")


def after(view: OwnershipView, claim: OwnershipClaim) -> OwnershipView:
    rest = tuple(r for r in view.ownerships if r.partition_id != claim.partition_id)
    new = Ownership(claim.partition_id, claim.owner, claim.epoch, NOW, f"{claim.epoch}")
    return replace(view, ownerships=(*rest, new))


def claimed(found: BalancingPlan) -> OwnershipClaim:
    assert found.claim is not None, found.reason
    return found.claim


# --- scenario 1: the first instance, nothing owned --------------------------------------------


def test_the_first_processor_claims_one_partition_of_five() -> None:
    claim = claimed(plan(OwnershipView(partitions(5)), "a", NOW))
    assert claim.partition_id in partitions(5)
    assert (claim.owner, claim.epoch, claim.expected_version) == ("a", 1, None)


def test_alone_it_takes_all_five_one_a_cycle() -> None:
    view, claims = settle(OwnershipView(partitions(5)), "a")
    assert (shares(view.ownerships), claims) == ({"a": 5}, 5)


def test_the_choice_is_the_callers() -> None:
    claim = claimed(plan(OwnershipView(partitions(5)), "a", NOW, choose=lambda _names, _me: "3"))
    assert claim.partition_id == "3"


# --- scenario 2: as many processors as partitions, and one more -------------------------------


def test_a_sixth_processor_of_five_partitions_stays_inactive() -> None:
    view = OwnershipView(partitions(5), owned(dict.fromkeys("abcde", 1)))
    found = plan(view, "f", NOW)
    assert (found.claim, found.keep) == (None, ())
    assert "enough" in found.reason


def test_it_takes_over_once_one_of_the_five_goes_down() -> None:
    rows = owned(dict.fromkeys("abcde", 1))
    dead = replace(rows[2], modified_at=ago(31))
    claim = claimed(plan(OwnershipView(partitions(5), (*rows[:2], dead, *rows[3:])), "f", NOW))
    assert (claim.partition_id, claim.epoch, claim.expected_version) == ("2", 2, "v-2")


# --- scenario 3: a newcomer steals ------------------------------------------------------------


def test_a_fourth_processor_steals_of_eighteen_until_it_has_four() -> None:
    view = OwnershipView(partitions(18), owned({"a": 6, "b": 6, "c": 6}))
    view, claims = settle(view, "abcd")
    assert sorted(shares(view.ownerships).values()) == [4, 4, 5, 5]
    assert claims == 4


def test_it_steals_from_whom_has_the_most() -> None:
    view = OwnershipView(partitions(12), owned({"a": 3, "b": 5, "c": 4}))
    claim = claimed(plan(view, "d", NOW))
    assert "b has 5" in claim.reason
    assert claim.epoch == 2


def test_a_steal_is_conditional_on_the_row_that_was_seen() -> None:
    view = OwnershipView(partitions(2), owned({"a": 2}))
    claim = claimed(plan(view, "b", NOW))
    assert claim.expected_version == f"v-{claim.partition_id}"


# --- scenario 4: a processor goes down --------------------------------------------------------


def test_three_of_four_share_the_twenty_partitions_of_all() -> None:
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


def test_processors_that_start_together_settle() -> None:
    view, _ = settle(OwnershipView(partitions(32)), [f"p{n}" for n in range(20)])
    assert sorted(shares(view.ownerships).values()) == [1] * 8 + [2] * 12


def test_where_all_that_may_have_one_more_do_a_free_partition_is_left_to_the_poor() -> None:
    view = OwnershipView(partitions(4), owned({"a": 2, "b": 1}))
    assert plan(view, "a", NOW).claim is None
    assert claimed(plan(view, "b", NOW)).partition_id == "3"


def test_one_at_the_floor_may_take_one_more_from_whom_has_two_more() -> None:
    view = OwnershipView(partitions(11), owned({"a": 5, "b": 3, "c": 3}))
    assert "a has 5" in claimed(plan(view, "b", NOW)).reason
    balanced = OwnershipView(partitions(11), owned({"a": 4, "b": 4, "c": 3}))
    assert plan(balanced, "c", NOW).claim is None


def test_an_uneven_share_is_left_to_who_is_under_the_floor() -> None:
    view = OwnershipView(partitions(9), owned({"a": 5, "b": 3, "c": 1}))
    assert plan(view, "b", NOW).claim is None
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
def test_a_fresh_row_is_not_written_and_an_old_one_is_claimed_anew(
    seconds_ago: float, keeps: bool, renews: bool, claims: bool
) -> None:
    found = plan(OwnershipView(("0",), (row("0", "a", seconds_ago, epoch=7),)), "a", NOW)
    assert bool(found.keep) is keeps
    assert [(c.epoch, c.expected_version) for c in found.renewals] == [(7, "v-0")] * renews
    assert [found.claim.epoch if found.claim else None] == [8 if claims else None]


def test_expiry_is_a_matter_of_the_stores_clock_alone() -> None:
    times = BalancingTimes(1, 2)
    view = OwnershipView(("0",), (row("0", "a", 2),))
    assert plan(view, "b", NOW, times).claim is not None
    assert plan(view, "b", NOW - timedelta(seconds=1), times).claim is None


def test_what_was_given_up_is_free_at_once_under_the_next_epoch() -> None:
    given_up = release(row("0", "a", epoch=4))
    assert (given_up.owner, given_up.epoch) == ("", 4)
    view = OwnershipView(("0",), (row("0", "", epoch=4),))
    assert claimed(plan(view, "b", NOW)).epoch == 5


def test_rows_of_partitions_that_are_gone_do_not_count() -> None:
    view = OwnershipView(partitions(2), owned({"a": 2, "b": 2}))
    found = plan(view, "b", NOW)
    assert found.keep == ()
    assert claimed(found).partition_id in partitions(2)


def test_a_hub_without_partitions_leaves_nothing_to_do() -> None:
    assert plan(OwnershipView(()), "a", NOW).claim is None


def test_a_lost_reply_counts_only_where_the_row_is_mine() -> None:
    claim = OwnershipClaim("0", "a", 2, None, "")
    assert applied(claim, row("0", "a", epoch=2))
    assert not applied(claim, row("0", "b", epoch=2))
    assert not applied(claim, row("0", "a", epoch=3))
    assert not applied(claim, None)


async def test_of_two_claims_at_once_one_wins() -> None:
    store = MemoryOwnershipStore(lambda: NOW)
    view = OwnershipView(("0",), (await store.owners()).rows)
    first, second = (claimed(plan(view, me, NOW)) for me in "ab")
    assert (await store.write(first)).owner == "a"
    with pytest.raises(ClaimLost):
        await store.write(second)
    assert [r.owner for r in (await store.owners()).rows] == ["a"]


def test_processors_choose_differently() -> None:
    chosen = Counter(rendezvous(partitions(32), f"p{n}") for n in range(200))
    assert len(chosen) > 25


# --- of any view ------------------------------------------------------------------------------


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
def test_a_claim_never_takes_more_than_the_share(view: OwnershipView, me: str) -> None:
    found = plan(view, me, NOW)
    living = {r.owner for r in view.ownerships if r.owner and r.modified_at > ago(30)} | {me}
    floor, extra = divmod(len(view.partition_ids), len(living))
    if found.claim is not None:
        assert len(found.keep) + 1 <= floor + (1 if extra else 0)
        assert found.claim.partition_id not in {r.partition_id for r in found.keep}
    assert all(c.owner == me for c in found.renewals)


@given(views(), st.integers(1, 6))
def test_any_view_settles_within_one_of_each_other(view: OwnershipView, count: int) -> None:
    """The dead stay dead; the names that are left take turns."""
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
