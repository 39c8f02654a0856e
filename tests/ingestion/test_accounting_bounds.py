"""Where transactions begin and end, to the row and the byte, and what dead letters carry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from shared.ingestion.errors import AccountingBroken, Fenced
from shared.ingestion.events.accounting import (
    CommitLimits,
    Writer,
    check_epoch,
    check_number,
    dead_letter,
    plan_commits,
)
from shared.ingestion.model import (
    ROW_OVERHEAD_BYTES,
    Commit,
    DeadLetter,
    Effect,
    FailureKind,
    Gap,
    Outcome,
)
from tests.builders import NOW
from tests.ingestion.test_accounting import checkpoint, event, events, plan, poisoned, sending

LATER = NOW + timedelta(hours=1)


def keeping(sequence: int, characters: int = 1) -> Effect:
    return Effect(sequence, "v" * characters)


def sizes(commits: Sequence[Commit]) -> list[int]:
    return [len(c.effects) + len(c.dead_letters) + len(c.gaps) for c in commits]


# --- what fits into one transaction ---


@pytest.mark.parametrize("count", [1, 2, 3, 99, 100])
def test_a_transaction_has_a_row_for_the_checkpoint_and_99_for_effects(count: int) -> None:
    commits = plan(checkpoint(0), [keeping(n) for n in range(1, count + 1)])
    assert sizes(commits) == ([count] if count < 100 else [99, 1])


@pytest.mark.parametrize(("rows_max", "parts"), [(3, [2, 2, 2]), (4, [3, 3]), (7, [6])])
def test_each_transaction_keeps_a_row_for_the_checkpoint(rows_max: int, parts: list[int]) -> None:
    commits = plan(checkpoint(0), [keeping(n) for n in range(1, 7)], limits=CommitLimits(rows_max))
    assert sizes(commits) == parts


@pytest.mark.parametrize(("surplus", "parts"), [(0, [2, 1]), (-1, [1, 2])])
def test_a_transaction_is_filled_to_the_byte(surplus: int, parts: list[int]) -> None:
    made = [keeping(1, 5000), keeping(2, 5000), poisoned(3)]
    limit = ROW_OVERHEAD_BYTES + made[0].size_bytes + made[1].size_bytes + surplus
    assert sizes(plan(checkpoint(0), made, limits=CommitLimits(size_bytes_max=limit))) == parts


def test_large_values_count_each() -> None:
    """Two of 100,000 characters take up to 1.2 MB each, and go into a transaction of their own."""
    limits = CommitLimits(size_bytes_max=1_500_000, row_bytes_max=1_500_000)
    made = [replace(keeping(n), value="ü" * 100_000) for n in (1, 2)]
    total = ROW_OVERHEAD_BYTES + sum(effect.size_bytes for effect in made)
    commits = plan(checkpoint(0), made, limits=limits)
    assert sizes(commits) == ([2] if total <= limits.size_bytes_max else [1, 1])
    many = [replace(keeping(n), value="ü" * 100_000) for n in range(1, 20)]
    for part in plan(checkpoint(0), many, limits=limits):
        assert ROW_OVERHEAD_BYTES + sum(e.size_bytes for e in part.effects) <= 1_500_000


def test_gaps_take_a_row_each() -> None:
    gaps = [Gap(n, n, NOW, "gone") for n in range(1, 5)]
    assert sizes(plan(checkpoint(0), [], gaps, CommitLimits(rows_max=3))) == [2, 2]


# --- what fits into none ---


@pytest.mark.parametrize(("rows_max", "kept"), [(4, True), (3, False)])
def test_an_effect_of_as_many_rows_as_are_left_is_kept(rows_max: int, kept: bool) -> None:
    (commit,) = plan(checkpoint(0), [sending(1, 3), poisoned(2)][:1], limits=CommitLimits(rows_max))
    assert bool(commit.effects) is kept


@pytest.mark.parametrize(("surplus", "kept"), [(0, True), (-1, False)])
def test_an_effect_is_kept_up_to_the_byte_that_is_left(surplus: int, kept: bool) -> None:
    effect = keeping(1, 5000)
    limits = CommitLimits(size_bytes_max=ROW_OVERHEAD_BYTES + effect.size_bytes + surplus)
    (commit,) = plan(checkpoint(0), [effect], limits=limits)
    assert bool(commit.effects) is kept


@pytest.mark.parametrize(("surplus", "kept"), [(0, True), (-1, False)])
def test_an_effect_is_kept_whose_largest_row_fits_to_the_byte(surplus: int, kept: bool) -> None:
    effect = Effect(1, "v" * 5000, sending(1, 1, "m" * 4000).messages)
    limits = CommitLimits(row_bytes_max=effect.row_bytes_max + surplus)
    (commit,) = plan(checkpoint(0), [effect], limits=limits)
    assert bool(commit.effects) is kept


def test_a_gap_is_always_written() -> None:
    gap = Gap(1, 3, NOW, "gone")
    (commit,) = plan(checkpoint(0), [], [gap], CommitLimits(row_bytes_max=1))
    assert commit.gaps == (gap,)


def test_what_fits_into_no_transaction_becomes_a_dead_letter_that_tells_why_and_when() -> None:
    effect = sending(1, 5)
    limits = CommitLimits(rows_max=5, size_bytes_max=400_000, row_bytes_max=300_000)
    (commit,) = plan_commits(
        checkpoint(0), [event(1)], [effect], [], Writer("me", 3), "tx", LATER, limits
    )
    (letter,) = commit.dead_letters
    assert letter == dead_letter(
        event(1),
        FailureKind.TOO_LARGE,
        f"5 rows of {effect.size_bytes} bytes exceed a transaction of 4 rows and 398976 bytes, "
        "300000 in one",
        LATER,
    )


def test_the_checkpoint_stands_at_an_event_that_led_to_too_much() -> None:
    (commit,) = plan(checkpoint(0), [sending(1, 5)], limits=CommitLimits(rows_max=5))
    assert commit.checkpoint.offset == "@1"
    assert commit.checkpoint.enqueued_at == event(1).enqueued_at


def test_a_dead_letter_that_fits_nowhere_loses_its_body_and_most_of_its_error() -> None:
    long = dead_letter(event(1, b"x" * 50_000), FailureKind.POISON, "e" * 4000, NOW)
    (commit,) = plan(checkpoint(0), [long], limits=CommitLimits(row_bytes_max=20_000))
    assert commit.dead_letters == (replace(long, body=None, error="e" * 1000),)


# --- numbers ---


@pytest.mark.parametrize("first", [0, 3, 4, 6, 7])
def test_outcomes_of_other_events_than_came_are_refused(first: int) -> None:
    """Events 5 and 6 came after 4."""
    wrong = [keeping(first), keeping(first + 1)]
    with pytest.raises(AccountingBroken):
        plan_commits(checkpoint(4), events(5, 6), wrong, [], Writer("me", 3), "tx", NOW)


def test_events_that_do_not_follow_the_checkpoint_are_refused() -> None:
    for came, outcomes in (((6, 7), (6, 7)), ((6, 7), (5, 6)), ((6, 5), (6, 6))):
        made: list[Outcome] = [keeping(n) for n in outcomes]
        with pytest.raises(AccountingBroken):
            plan_commits(checkpoint(4), events(*came), made, [], Writer("me", 3), "tx", NOW)


def test_a_number_that_is_left_out_is_named() -> None:
    with pytest.raises(AccountingBroken, match=r"^5 comes next, not 6 to 6$"):
        plan(checkpoint(4), [keeping(6), poisoned(7)])


# --- dead letters, epochs ---


def test_a_dead_letter_carries_the_event_and_when_it_failed_for_the_first_time() -> None:
    failed = replace(event(7, b"body"), partition_key="device\0-1")
    assert dead_letter(failed, FailureKind.POISON, "bad", LATER) == DeadLetter(
        sequence=7,
        offset="@7",
        enqueued_at=failed.enqueued_at,
        failed_at=LATER,
        kind=FailureKind.POISON,
        error="bad",
        attempts=1,
        partition_key="device?-1",
        body=b"body",
    )


@pytest.mark.parametrize(("size", "kept"), [(60_000, True), (60_001, False)])
def test_a_body_of_60_000_bytes_is_kept(size: int, kept: bool) -> None:
    body = b"x" * size
    letter = dead_letter(event(7, body), FailureKind.POISON, "bad", NOW)
    assert letter.body == (body if kept else None)


def test_whoever_is_fenced_is_told_of_both_epochs() -> None:
    with pytest.raises(Fenced, match=r"^epoch 2 is over: the checkpoint is of epoch 3$"):
        Writer("me", 2).epoch_over(3)
    (late,) = plan(checkpoint(0, epoch=1), [keeping(1)], writer=Writer("me", 1))
    with pytest.raises(Fenced, match=r"^epoch 1 is over: now it is 2$"):
        check_epoch(checkpoint(5, epoch=2), late)


def test_an_effect_of_another_event_does_not_settle_a_dead_letter() -> None:
    letter = dead_letter(event(7), FailureKind.POISON, "bad", NOW)
    check_number(letter, keeping(7))
    with pytest.raises(AccountingBroken, match=r"^the effect of 8 is none of 7$"):
        check_number(letter, keeping(8))
