"""Load balancing: what a processor keeps, renews, claims and steals, for one view and for any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ingestion.model import Ownership
from shared.ingestion.ownership.load_balancing import (
    CLAIMS_MAX,
    OwnershipView,
    plan,
    release,
    rendezvous,
)
from tests.builders import NOW, ago


def partitions(count: int) -> tuple[str, ...]:
    return tuple(str(n) for n in range(count))


def row(partition_id: str, owner: str, seconds_ago: float = 0, epoch: int = 1) -> Ownership:
    return Ownership(partition_id, owner, epoch, f"v-{partition_id}", "", ago(seconds_ago))


def view(count: int, shares: Mapping[str, int] | None = None, *, dead: str = "") -> OwnershipView:
    """Partitions of which the owners have the given numbers, numbered consecutively."""
    names = [owner for owner, share in (shares or {}).items() for _ in range(share)]
    rows = [row(str(n), each, 60 * (each in dead)) for n, each in enumerate(names)]
    return OwnershipView(partitions(count), tuple(rows))


def held(seen: OwnershipView) -> dict[str, int]:
    return dict(Counter(each.owner for each in seen.ownerships))


def after(seen: OwnershipView, claim: Ownership) -> OwnershipView:
    rest = tuple(r for r in seen.ownerships if r.partition_id != claim.partition_id)
    new = replace(claim, version=f"{claim.epoch}", modified_at=NOW)
    return replace(seen, ownerships=(*rest, new))


def settle(seen: OwnershipView, processors: Iterable[str]) -> tuple[OwnershipView, int]:
    """Let the processors take turns until none of them claims. Returns the view and the number of
    claims."""
    names, claims = list(processors), 0
    for _ in range(60):
        before = claims
        for me in names:
            for claim in plan(seen, me, NOW).claims:
                claims += 1
                seen = after(seen, claim)
        if claims == before:
            return seen, claims
    raise AssertionError(f"not settled: {held(seen)}")


def first(names: Iterable[str], me: str) -> str:
    assert me == "me", "the choice must be made for this processor"
    return min(names)


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
    planned = plan(view(1024, {**others, "a": mine}), "a", NOW)
    assert len({claim.partition_id for claim in planned.claims}) == claims, planned.reason
    assert len(planned.claims) == claims


FIVE_EACH = dict.fromkeys("abcd", 5)


@pytest.mark.parametrize(
    ("seen", "processors", "shares", "claims"),
    [
        pytest.param(view(5), "a", [5], 5, id="the first processor"),
        pytest.param(
            view(18, dict.fromkeys("abc", 6)), "abcd", [4, 4, 5, 5], 4, id="a newcomer steals"
        ),
        pytest.param(view(20, FIVE_EACH, dead="d"), "abc", [6, 7, 7], 5, id="a processor crashed"),
        pytest.param(view(25, FIVE_EACH), "abcd", [6, 6, 6, 7], 5, id="new partitions"),
        pytest.param(
            view(32), [f"p{n}" for n in range(20)], [1] * 8 + [2] * 12, 32, id="all start at once"
        ),
    ],
)
def test_the_shares_of_all_processors_end_up_even_after_few_claims(
    seen: OwnershipView, processors: Iterable[str], shares: list[int], claims: int
) -> None:
    settled, made = settle(seen, processors)
    assert (sorted(held(settled).values()), made) == (shares, claims)


@pytest.mark.parametrize(
    ("count", "shares", "me", "reason"),
    [
        pytest.param(5, dict.fromkeys("abcde", 1), "f", "enough", id="more processors"),
        pytest.param(12, {"a": 3, "b": 5, "c": 4}, "d", "(b has 5)", id="the largest share"),
        pytest.param(4, {"a": 2, "b": 1}, "a", "enough", id="free ones are for those below"),
        pytest.param(4, {"a": 2, "b": 1}, "b", "take 3 (free)", id="below the floor"),
        pytest.param(11, {"a": 5, "b": 3, "c": 3}, "b", "(a has 5)", id="at the floor, two more"),
        pytest.param(11, {"a": 4, "b": 4, "c": 3}, "c", "enough", id="balanced"),
        pytest.param(9, {"a": 5, "b": 3, "c": 1}, "b", "enough", id="left to one below"),
        pytest.param(9, {"a": 5, "b": 3, "c": 1}, "c", "(a has 5)", id="the one below"),
        pytest.param(7, {"b": 3, "c": 3, "me": 1}, "me", " has 3)", id="one above the floor"),
        pytest.param(8, {"b": 3, "c": 2, "d": 2, "me": 1}, "me", "(b has 3)", id="one above it"),
        pytest.param(8, {"b": 4, "c": 2, "me": 2}, "me", "(b has 4)", id="two above the floor"),
        pytest.param(8, {"b": 3, "c": 3, "me": 2}, "me", "", id="at the floor, one more"),
        pytest.param(2, {"a": 2, "b": 2}, "b", "(a has 2)", id="rows of lost partitions"),
        pytest.param(0, {}, "a", "enough", id="no partitions"),
    ],
)
def test_a_processor_claims_or_steals_only_what_evens_the_shares(
    count: int, shares: dict[str, int], me: str, reason: str
) -> None:
    planned = plan(view(count, shares), me, NOW)
    assert len(planned.claims) == ("(" in reason or " has " in reason), planned.reason
    assert reason in planned.reason
    assert {each.partition_id for each in planned.claims} <= set(partitions(count))


@pytest.mark.parametrize(
    ("shares", "claim", "reason"),
    [
        ({"b": 2}, ("2", "me", 1, None), "4 partitions, 2 processors, 0 mine: take 2 (free)"),
        ({"b": 4}, ("0", "me", 2, "v-0"), "4 partitions, 2 processors, 0 mine: take 0 (b has 4)"),
    ],
)
def test_a_claim_names_the_version_that_it_replaces_and_its_reason(
    shares: dict[str, int], claim: tuple[str, str, int, str | None], reason: str
) -> None:
    planned = plan(view(4, shares), "me", NOW, choose=first)
    assert (planned.claims, planned.reason) == ((Ownership(*claim, reason),), reason)


def test_renewals_and_releases_state_their_reason() -> None:
    mine = row("0", "me", 15, epoch=3)
    planned = plan(OwnershipView(partitions(1), (mine,)), "me", NOW)
    assert planned.renewals == (replace(mine, reason="still at work"),)
    assert release(mine) == replace(mine, owner="", reason="given up")


@pytest.mark.parametrize(
    ("owner", "seconds_ago", "keeps", "renews", "claims"),
    [
        pytest.param("me", 0, True, False, False, id="fresh"),
        pytest.param("me", 9.9, True, False, False, id="still fresh"),
        pytest.param("me", 10, True, True, False, id="due for renewal"),
        pytest.param("me", 29.9, True, True, False, id="late"),
        pytest.param("me", 30, False, False, True, id="expired"),
        pytest.param("a", 29.9, False, False, False, id="of another"),
        pytest.param("a", 30, False, False, True, id="expired of another"),
        pytest.param("", 0, False, False, True, id="released"),
        pytest.param("me", -5, True, False, False, id="clocks differ slightly"),
        pytest.param("me", -30.1, True, True, False, id="own, before the clock was set back"),
        pytest.param("me", -86_400, True, True, False, id="own, far ahead"),
        pytest.param("a", -30, False, False, False, id="of another, slightly ahead"),
        pytest.param("a", -30.1, False, False, True, id="of another, before the clock was set"),
    ],
)
def test_the_stores_clock_decides_whether_a_row_is_kept_renewed_or_free(
    owner: str, seconds_ago: float, *, keeps: bool, renews: bool, claims: bool
) -> None:
    planned = plan(OwnershipView(("0",), (row("0", owner, seconds_ago, epoch=7),)), "me", NOW)
    assert [kept.epoch for kept in planned.keep] == [7] * keeps
    assert [(c.epoch, c.version) for c in planned.renewals] == [(7, "v-0")] * renews
    assert [(c.epoch, c.version) for c in planned.claims] == [(8, "v-0")] * claims
    assert all("(free)" in claim.reason for claim in planned.claims)


def test_processors_choose_different_partitions() -> None:
    """Processors that make the same choice at the same time compete for one partition."""
    assert len(Counter(rendezvous(partitions(32), f"p{n}") for n in range(200))) > 25
    even = view(6, {"b": 3, "c": 3})
    seen = replace(even, ownerships=(*even.ownerships, row("x", "gone", 9999)))
    assert plan(seen, "me", NOW, choose=first).claims[0].partition_id == "0"
    chosen = {plan(seen, f"processor-{n}", NOW).claims[0].partition_id for n in range(40)}
    assert chosen == set(partitions(6))


@pytest.mark.parametrize("newest_first", [False, True])
def test_of_two_rows_of_a_partition_the_newest_counts(newest_first: bool) -> None:
    """Earlier versions wrote rows of their own if the names in their settings differed by case."""
    rows = [row("0", "gone", 100, epoch=7), row("0", "b", 1, epoch=2)]
    seen = OwnershipView(("0", "1"), tuple(rows[::-1] if newest_first else rows))
    planned = plan(seen, "me", NOW)
    assert [each.partition_id for each in planned.claims] == ["1"], "b owns partition 0"
    assert [each.epoch for each in plan(seen, "b", NOW).keep] == [2]


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
def test_a_claim_never_exceeds_the_processors_share(seen: OwnershipView, me: str) -> None:
    planned = plan(seen, me, NOW)
    living = {r.owner for r in seen.ownerships if r.owner and r.modified_at > ago(30)} | {me}
    floor, extra = divmod(len(seen.partition_ids), len(living))
    if planned.claims:
        ids = [r.partition_id for r in planned.keep] + [c.partition_id for c in planned.claims]
        assert len(ids) == len(set(ids)) <= floor + (1 if extra else 0)
    assert all(c.owner == me for c in planned.renewals)


@given(views(), st.integers(1, 6))
def test_from_any_view_the_shares_end_up_within_one_of_each_other(
    seen: OwnershipView, count: int
) -> None:
    """Crashed processors stay down; the remaining ones take turns."""
    names = "abcdef"[:count]
    rows = tuple(
        r if r.owner in names else replace(r, modified_at=ago(99)) for r in seen.ownerships
    )
    settled, claims = settle(replace(seen, ownerships=rows), names)
    shares = held(settled)
    floor = len(seen.partition_ids) // count
    assert sum(shares.values()) == len(seen.partition_ids)
    assert all(floor <= shares.get(name, 0) <= floor + 1 for name in names)
    assert claims <= 2 * len(seen.partition_ids)
