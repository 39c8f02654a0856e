"""Lost events, found by the events that share their operations."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

import pytest

from shared.sampling.companions import (
    Pairs,
    Share,
    companions_of,
    judge_companions,
    judge_days,
    with_companions,
)
from shared.sampling.verdict import Verdict, VerdictKind

START = date(2026, 10, 1)
WIGGLE = (0.001, -0.002, 0.0, 0.002, -0.001)
USUAL = {"OrderConfirmed": 0.95, "Payment": 0.9}


def pairs(index: int, shares: Mapping[str, float] = USUAL, operations: int = 2_000) -> Pairs:
    """A day on which these shares of the operations with a checkout have other events. They are
    independent of each other. ``Payment`` operations have a checkout, too, and OrderConfirmed."""
    wiggle = 1 + WIGGLE[index % len(WIGGLE)]
    counts = {event: round(share * wiggle * operations) for event, share in shares.items()}
    found = {(event, "checkout"): Share(operations, n) for event, n in counts.items()}
    found |= {("checkout", event): Share(n, n) for event, n in counts.items()}
    for one, count in counts.items():
        for other in counts.keys() - {one}:
            found[other, one] = Share(count, round(count * counts[other] / operations))
    return found


def lost(share: float) -> Mapping[str, float]:
    return {**USUAL, "OrderConfirmed": 0.95 * (1 - share)}


@pytest.mark.parametrize(("days", "share"), [(1, 0.1), (6, 0.1), (7, 0.05), (28, 0.04)])
def test_a_fall_of_the_share_is_a_loss(days: int, share: float) -> None:
    seen = judge_companions(pairs(days, lost(share)), [pairs(n) for n in range(days)])
    assert {event for event, found in seen.items() if found.lost} == {"OrderConfirmed"}
    test = seen["OrderConfirmed"].test
    low, high = test.lost_between
    assert low <= 0.95 * share * 2_000 <= high


def test_in_the_first_week_a_small_fall_is_not_called_a_loss() -> None:
    history = [pairs(n, operations=20_000) for n in range(7)]
    for days, fallen in ((3, False), (7, True)):
        seen = judge_companions(pairs(days, lost(0.05), 20_000), history[:days])
        assert seen["OrderConfirmed"].fallen is fallen


def test_an_event_that_seems_steadier_than_the_others_is_not_called_lost_early() -> None:
    """Eight days are too few to know its noise, and the shares of the others vary by 3 %."""
    moves = (0.0, 0.03, -0.01, -0.03, 0.01, 0.02, -0.02)

    def varying(index: int) -> Mapping[str, float]:
        return {f"Other{n}": 0.8 * (1 + moves[(index + n) % 7]) for n in (1, 2, 3)}

    history = [pairs(n, {**USUAL, **varying(n)}, 20_000) for n in range(8)]
    today = pairs(8, {**lost(0.04), **varying(8)}, 20_000)
    assert not judge_companions(today, history)["OrderConfirmed"].fallen
    steady = [pairs(n, operations=20_000) for n in range(8)]
    assert judge_companions(pairs(8, lost(0.04), 20_000), steady)["OrderConfirmed"].fallen


def test_the_verdict_names_the_pair_and_the_loss() -> None:
    history = [pairs(n, operations=1_904) for n in range(28)]
    seen = judge_companions(pairs(28, lost(0.25), 1_904), history)["OrderConfirmed"]
    assert seen.test.text == (
        "of 1,904 kept operations with checkout, 71.4 % have OrderConfirmed; 94.8 to 95.1 % in the"
        " last 28 days: about 449 of those lost (429 to 470)"
    )


@pytest.mark.parametrize("days", [1, 3, 8, 28])
@pytest.mark.parametrize("operations", [200, 2_000, 9_000])
def test_a_change_of_traffic_or_sampling_is_no_loss(days: int, operations: int) -> None:
    seen = judge_companions(pairs(days, operations=operations), [pairs(n) for n in range(days)])
    assert not any(found.fallen for found in seen.values())


def test_an_event_of_which_nothing_is_left_is_lost() -> None:
    today = {pair: share for pair, share in pairs(9).items() if "OrderConfirmed" not in pair}
    seen = judge_companions(today, [pairs(n) for n in range(9)])
    assert seen["OrderConfirmed"].lost
    assert seen["OrderConfirmed"].test.today.both == 0


def test_an_event_with_a_new_name_is_not_called_lost() -> None:
    renamed = {"OrderConfirmedV2": 0.95, "Payment": 0.9}
    days = [*map(pairs, range(9)), *(pairs(n, renamed) for n in range(9, 12))]
    for seen in judge_days(days)[9:]:
        assert seen["OrderConfirmed"].renamed
        judged = with_companions(verdict(VerdictKind.EVENTS_LOST), seen["OrderConfirmed"])
        assert judged.kind is VerdictKind.UNCERTAIN
        assert "OrderConfirmedV2 is new" in judged.reason


def test_a_companion_with_other_operations_does_not_make_a_loss() -> None:
    """A tenth more checkouts come from a test that does nothing else."""
    day = dict(pairs(9))
    for event in USUAL:
        share = day[event, "checkout"]
        day[event, "checkout"] = Share(2_200, share.both)
    seen = judge_companions(day, [pairs(n) for n in range(9)])
    assert not any(found.lost for found in seen.values())
    assert any("have changed" in found.doubt for found in seen.values())


def test_a_lasting_loss_does_not_become_usual() -> None:
    days = [*map(pairs, range(10)), *(pairs(n, lost(0.1)) for n in range(10, 30))]
    assert all(seen["OrderConfirmed"].lost for seen in judge_days(days)[10:])


def test_an_event_of_one_day_is_not_missed_on_the_next() -> None:
    days = [*map(pairs, range(9)), pairs(9, {**USUAL, "Sale": 0.9}), pairs(10)]
    assert not any(found.fallen for found in judge_days(days)[-1].values())


def test_rare_and_unstable_pairs_are_no_companions() -> None:
    history = [pairs(n, {"Rare": 0.2, "Often": 0.9}) for n in range(5)]
    assert companions_of(history)["Often"] == ["checkout", "Rare"]
    assert "Rare" not in companions_of(history)
    assert companions_of([pairs(0, operations=99)]) == {}


def verdict(kind: VerdictKind = VerdictKind.NORMAL) -> Verdict:
    return Verdict(START, kind, "96 % of what was expected", {"value": 1.0})


def test_one_verdict_has_the_evidence_of_both() -> None:
    history = [pairs(n) for n in range(9)]
    seen = judge_companions(pairs(9, lost(0.1)), history)["OrderConfirmed"]
    judged = with_companions(verdict(), seen)
    assert judged.kind is VerdictKind.EVENTS_LOST
    assert judged.reason.endswith("by its count: 96 % of what was expected")
    assert judged.evidence["value"] == 1.0
    assert judged.evidence["companion"] == "checkout"


def test_whole_operations_can_be_lost_although_the_share_is_as_usual() -> None:
    seen = judge_companions(pairs(9, operations=1_000), [pairs(n) for n in range(9)])
    judged = with_companions(verdict(VerdictKind.EVENTS_LOST), seen["OrderConfirmed"])
    assert judged.kind is VerdictKind.EVENTS_LOST
    assert "whole ones are missing" in judged.reason
