"""The exact bounds of transactions, in rows and bytes, and the content of dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from shared.ingestion.errors import AccountingBroken, Fenced
from shared.ingestion.events.accounting import Writer, dead_letter, plan_commits
from shared.ingestion.model import (
    ROW_OVERHEAD_BYTES,
    Commit,
    DeadLetter,
    Effect,
    FailureKind,
    Gap,
    Outcome,
)
from shared.ingestion.store.events import check_epoch, check_number
from shared.ingestion.store.rows import CommitLimits
from tests.builders import NOW
from tests.ingestion.test_accounting import (
    LIMITS,
    checkpoint,
    event,
    events,
    plan,
    poisoned,
    sending,
)

LATER = NOW + timedelta(hours=1)


def keeping(sequence: int, characters: int = 1) -> Effect:
    return Effect(sequence, "v" * characters)


def sizes(commits: Sequence[Commit]) -> list[int]:
    return [len(c.effects) + len(c.dead_letters) + len(c.gaps) for c in commits]


# --- effects that fit into one transaction ---


@pytest.mark.parametrize("count", [1, 2, 3, 99, 100])
def test_a_transaction_has_one_row_for_the_checkpoint_and_up_to_99_for_effects(count: int) -> None:
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


def test_each_large_value_gets_a_transaction_of_its_own() -> None:
    """Values of 100,000 characters take up to 1.2 MB each."""
    limits = CommitLimits(size_bytes_max=1_500_000, row_bytes_max=1_500_000)
    made = [replace(keeping(n), value="ü" * 100_000) for n in (1, 2)]
    total = ROW_OVERHEAD_BYTES + sum(effect.size_bytes for effect in made)
    commits = plan(checkpoint(0), made, limits=limits)
    assert sizes(commits) == ([2] if total <= limits.size_bytes_max else [1, 1])
    many = [replace(keeping(n), value="ü" * 100_000) for n in range(1, 20)]
    for part in plan(checkpoint(0), many, limits=limits):
        assert ROW_OVERHEAD_BYTES + sum(e.size_bytes for e in part.effects) <= 1_500_000


def test_each_gap_takes_one_row() -> None:
    gaps = [Gap(n, n, NOW, "gone") for n in range(1, 5)]
    assert sizes(plan(checkpoint(0), [], gaps, CommitLimits(rows_max=3))) == [2, 2]


# --- effects that fit into no transaction ---


@pytest.mark.parametrize(("rows_max", "kept"), [(4, True), (3, False)])
def test_an_effect_may_use_all_rows_beside_the_checkpoints(rows_max: int, kept: bool) -> None:
    (commit,) = plan(checkpoint(0), [sending(1, 3), poisoned(2)][:1], limits=CommitLimits(rows_max))
    assert bool(commit.effects) is kept


@pytest.mark.parametrize(("surplus", "kept"), [(0, True), (-1, False)])
def test_an_effect_may_use_all_bytes_beside_the_checkpoints(surplus: int, kept: bool) -> None:
    effect = keeping(1, 5000)
    limits = CommitLimits(size_bytes_max=ROW_OVERHEAD_BYTES + effect.size_bytes + surplus)
    (commit,) = plan(checkpoint(0), [effect], limits=limits)
    assert bool(commit.effects) is kept


@pytest.mark.parametrize(("surplus", "kept"), [(0, True), (-1, False)])
def test_the_largest_row_of_an_effect_may_fill_the_row_limit_exactly(
    surplus: int, kept: bool
) -> None:
    effect = Effect(1, "v" * 5000, sending(1, 1, "m" * 4000).messages)
    limits = CommitLimits(row_bytes_max=effect.row_bytes_max + surplus)
    (commit,) = plan(checkpoint(0), [effect], limits=limits)
    assert bool(commit.effects) is kept


def test_a_gap_is_always_written() -> None:
    gap = Gap(1, 3, NOW, "gone")
    (commit,) = plan(checkpoint(0), [], [gap], CommitLimits(row_bytes_max=1))
    assert commit.gaps == (gap,)


def test_the_dead_letter_of_a_too_large_effect_states_sizes_and_time() -> None:
    effect = sending(1, 5)
    limits = CommitLimits(rows_max=5, size_bytes_max=400_000, row_bytes_max=300_000)
    (commit,) = plan_commits(
        checkpoint(0), [event(1)], [effect], [], Writer("me", 3), "tx", LATER, limits
    )
    (letter,) = commit.dead_letters
    assert letter == dead_letter(
        event(1),
        FailureKind.TOO_LARGE,
        f"the effect needs 5 rows and {effect.size_bytes} bytes, but a transaction takes at most "
        "4 rows and 398976 bytes, and a row at most 300000 bytes",
        LATER,
    )


def test_the_checkpoint_advances_past_an_event_with_a_too_large_effect() -> None:
    (commit,) = plan(checkpoint(0), [sending(1, 5)], limits=CommitLimits(rows_max=5))
    assert commit.checkpoint.offset == "@1"
    assert commit.checkpoint.enqueued_at == event(1).enqueued_at


def test_a_too_large_dead_letter_loses_its_body_and_most_of_its_error() -> None:
    long = dead_letter(event(1, b"x" * 50_000), FailureKind.POISON, "e" * 4000, NOW)
    (commit,) = plan(checkpoint(0), [long], limits=CommitLimits(row_bytes_max=20_000))
    told = "e" * 1000 + " (the body of 50000 bytes is too large for a row)"
    assert commit.dead_letters == (replace(long, body=None, error=told),)


# --- sequence numbers ---


@pytest.mark.parametrize("first", [0, 3, 4, 6, 7])
def test_outcomes_of_events_outside_the_batch_are_refused(first: int) -> None:
    """The batch must hold events 5 and 6, which follow the checkpoint at 4."""
    wrong = [keeping(first), keeping(first + 1)]
    with pytest.raises(AccountingBroken):
        plan_commits(checkpoint(4), events(5, 6), wrong, [], Writer("me", 3), "tx", NOW, LIMITS)


def test_events_that_do_not_follow_the_checkpoint_are_refused() -> None:
    for sequences, outcomes in (((6, 7), (6, 7)), ((6, 7), (5, 6)), ((6, 5), (6, 6))):
        made: list[Outcome] = [keeping(n) for n in outcomes]
        with pytest.raises(AccountingBroken):
            plan_commits(
                checkpoint(4), events(*sequences), made, [], Writer("me", 3), "tx", NOW, LIMITS
            )


def test_a_missing_number_is_named_in_the_error() -> None:
    expected = r"^the next sequence number must be 5, but the plan has 6 to 6$"
    with pytest.raises(AccountingBroken, match=expected):
        plan(checkpoint(4), [keeping(6), poisoned(7)])


# --- dead letters, epochs ---


def test_a_dead_letter_holds_the_event_and_the_time_of_its_failure() -> None:
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


@pytest.mark.parametrize(("size", "kept"), [(60_001, True), (1_015_000, True), (1_020_000, False)])
def test_a_dead_letter_holds_each_body_that_fits_into_a_row(size: int, kept: bool) -> None:
    body = b"x" * size
    failed = [event(1, body), event(2, body), event(3)]
    outcomes: list[Outcome] = [
        dead_letter(failed[0], FailureKind.POISON, "bad", NOW),
        Effect(2, "x" * 2_000_000),  # too large itself, so event 2 becomes a dead letter
        keeping(3),
    ]
    commits = plan_commits(checkpoint(0), failed, outcomes, [], Writer("me", 1), "tx", NOW, LIMITS)
    letters = [letter for commit in commits for letter in commit.dead_letters]
    assert [letter.body for letter in letters] == [body if kept else None] * 2
    told = [f"the body of {size} bytes is too large for a row" in each.error for each in letters]
    assert told == [not kept] * 2
    limits = CommitLimits()
    assert all(letter.row_bytes_max <= limits.row_bytes_max for letter in letters)
    sizes = [sum(letter.size_bytes for letter in commit.dead_letters) for commit in commits]
    assert max(sizes) <= limits.size_bytes_max


def test_the_error_of_a_fenced_writer_names_both_epochs() -> None:
    expected = (
        "^epoch 2 is over, because the checkpoint has epoch 3; another processor owns the "
        "partition$"
    )
    with pytest.raises(Fenced, match=expected):
        Writer("me", 2).commit_epoch(3)
    (late,) = plan(checkpoint(0, epoch=1), [keeping(1)], writer=Writer("me", 1))
    expected = (
        "^epoch 1 is over, because the stored checkpoint has epoch 2; another processor owns the "
        "partition$"
    )
    with pytest.raises(Fenced, match=expected):
        check_epoch(checkpoint(5, epoch=2), late)


def test_an_effect_of_another_event_cannot_replace_a_dead_letter() -> None:
    letter = dead_letter(event(7), FailureKind.POISON, "bad", NOW)
    check_number(letter, keeping(7))
    expected = r"^the effect belongs to event 8, but the dead letter belongs to event 7$"
    with pytest.raises(AccountingBroken, match=expected):
        check_number(letter, keeping(8))
