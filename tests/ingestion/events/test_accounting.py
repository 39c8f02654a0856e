"""Planning commits: each sequence number ends up in exactly one effect, dead letter or gap, in
transactions with exact bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ingestion.errors import AccountingBroken, Fenced, StreamRecreated
from shared.ingestion.events.accounting import Writer, dead_letter, plan_commits
from shared.ingestion.events.survey import check_same_hub, holes, new_events
from shared.ingestion.model import (
    ROW_OVERHEAD_BYTES,
    Checkpoint,
    Commit,
    DeadLetter,
    Effect,
    Event,
    FailureKind,
    Gap,
    HubState,
    OutboxMessage,
    Outcome,
    Span,
    Stream,
    message_id,
)
from shared.ingestion.store.events import check_epoch, check_number
from shared.ingestion.store.rows import CommitLimits
from tests.builders import NOW

ME = Writer("me", 3)
LIMITS = CommitLimits()
LATER = NOW + timedelta(hours=1)


def event(sequence: int, body: bytes = b"{}") -> Event:
    return Event(sequence, f"@{sequence}", NOW + timedelta(seconds=sequence), body)


def events(*sequences: int) -> list[Event]:
    return [event(sequence) for sequence in sequences]


def checkpoint(sequence: int, epoch: int = 0) -> Checkpoint:
    at = NOW + timedelta(seconds=sequence)
    return Checkpoint(1, sequence, f"@{sequence}", at, epoch, "old", "old.0")


def sending(sequence: int, messages: int = 1, body: str = "m") -> Effect:
    outbox = tuple(OutboxMessage(f"{sequence}:{n}", body) for n in range(messages))
    return Effect(sequence, messages=outbox)


def poisoned(sequence: int) -> Outcome:
    return dead_letter(event(sequence), FailureKind.POISON, "bad", NOW)


def plan(
    previous: Checkpoint | None,
    outcomes: Iterable[Outcome],
    gaps: Iterable[Gap] = (),
    limits: CommitLimits = LIMITS,
    writer: Writer = ME,
) -> tuple[Commit, ...]:
    chosen = list(outcomes)
    batch = [event(outcome.sequence) for outcome in chosen]
    return plan_commits(previous, batch, chosen, list(gaps), writer, "tx", NOW, limits)


def keeping(sequence: int, characters: int = 1) -> Effect:
    return Effect(sequence, "v" * characters)


def gap(first: int, last: int) -> Gap:
    return Gap(first, last, NOW, "gone")


def each(effect: Effect, count: int) -> list[Effect]:
    return [replace(effect, sequence=n) for n in range(1, count + 1)]


def sizes(commits: Sequence[Commit]) -> list[int]:
    return [len(c.effects) + len(c.dead_letters) + len(c.gaps) for c in commits]


# --- which events are new, and which numbers are missing --------------------------------------


def test_an_old_number_with_a_newer_time_reveals_a_recreated_hub() -> None:
    reborn = replace(event(2), enqueued_at=NOW + timedelta(seconds=4.5))
    with pytest.raises(StreamRecreated, match="event 2"):
        new_events(checkpoint(4), [reborn])


@pytest.mark.parametrize(
    ("made_seconds", "last", "error"),
    [
        (0, 3, "the hub's last event is 3, but the checkpoint is at event 4"),
        (15, 9, "the checkpoint is at event 4, which was enqueued earlier"),
        (13, 9, ""),
    ],
)
def test_a_hub_that_ends_before_the_checkpoint_or_was_created_after_it_is_another_hub(
    made_seconds: float, last: int, error: str
) -> None:
    """The event of the checkpoint was enqueued after 4 seconds, by a clock that may differ."""
    state = HubState(NOW + timedelta(seconds=made_seconds), last)
    if not error:
        check_same_hub(checkpoint(4), state)
        return
    with pytest.raises(StreamRecreated, match=error):
        check_same_hub(checkpoint(4), state)


def test_redelivered_events_are_recognized_although_the_hubs_clock_went_back() -> None:
    late_clock = replace(event(5), enqueued_at=NOW)
    outcomes = [sending(5)]
    (commit,) = plan_commits(checkpoint(4), [late_clock], outcomes, [], ME, "tx", NOW, LIMITS)
    assert commit.checkpoint.enqueued_at == checkpoint(4).enqueued_at
    assert new_events(commit.checkpoint, events(3, 4)) == ()


def test_events_that_were_set_aside_are_counted_with_the_checkpoint_that_covers_them() -> None:
    log = [replace(sending(n, messages=0), set_aside="a log") for n in range(6, 10)]
    quick = plan(replace(checkpoint(5), set_aside=7), log)
    assert [(c.checkpoint.sequence, c.checkpoint.set_aside, c.rows) for c in quick] == [(9, 11, 1)]
    mixed = [log[0], poisoned(7), log[2], sending(9, 2)]
    slow = plan(replace(checkpoint(5), set_aside=7), mixed, limits=CommitLimits(rows_max=3))
    counts = [(c.checkpoint.sequence, c.checkpoint.set_aside) for c in slow]
    assert counts == [(8, 9), (9, 9)]


def test_a_late_event_of_a_gap_counts_as_redelivered() -> None:
    found_at = NOW + timedelta(seconds=10)
    (commit,) = plan(checkpoint(4), [], [Gap(5, 9, found_at, "gone")])
    assert (commit.checkpoint.sequence, commit.checkpoint.offset) == (9, "@4"), "the last known"
    assert new_events(commit.checkpoint, events(8, 9)) == ()
    reborn = replace(event(2), enqueued_at=found_at + timedelta(seconds=1))
    with pytest.raises(StreamRecreated):
        new_events(commit.checkpoint, [reborn])


# --- the bounds of transactions, in rows and bytes --------------------------------------------

TWO = [keeping(1, 5000), keeping(2, 5000), poisoned(3)]
TWO_BYTES = ROW_OVERHEAD_BYTES + 2 * keeping(1, 5000).size_bytes


@pytest.mark.parametrize(
    ("outcomes", "limits", "parts"),
    [
        *[(each(keeping(1), n), LIMITS, [n]) for n in (1, 2, 3, 99)],
        (each(keeping(1), 100), LIMITS, [99, 1]),
        (each(sending(1), 150), LIMITS, [99, 51]),
        (each(sending(1, 2), 150), LIMITS, [49, 49, 49, 3]),
        (each(sending(1, 0), 150), LIMITS, [150]),
        (each(sending(1, 99), 3), LIMITS, [1, 1, 1]),
        (each(keeping(1), 6), CommitLimits(3), [2, 2, 2]),
        (each(keeping(1), 6), CommitLimits(4), [3, 3]),
        (each(keeping(1), 6), CommitLimits(7), [6]),
        (each(Effect(1, "x" * 500_000), 7), LIMITS, [3, 3, 1]),
        (TWO, CommitLimits(size_bytes_max=TWO_BYTES), [2, 1]),
        (TWO, CommitLimits(size_bytes_max=TWO_BYTES - 1), [1, 2]),
    ],
)
def test_a_transaction_is_filled_to_its_last_row_and_byte_beside_the_checkpoints(
    outcomes: list[Outcome], limits: CommitLimits, parts: list[int]
) -> None:
    commits = plan(checkpoint(0), outcomes, limits=limits)
    assert sizes(commits) == parts
    assert all(commit.rows <= limits.rows_max for commit in commits)


LARGE = keeping(1, 5000)
WIDE = Effect(1, "v" * 5000, sending(1, 1, "m" * 4000).messages)


@pytest.mark.parametrize(
    ("effect", "limits", "kept"),
    [
        (sending(1, 3), CommitLimits(4), True),
        (sending(1, 3), CommitLimits(3), False),
        (LARGE, CommitLimits(size_bytes_max=ROW_OVERHEAD_BYTES + LARGE.size_bytes), True),
        (LARGE, CommitLimits(size_bytes_max=ROW_OVERHEAD_BYTES + LARGE.size_bytes - 1), False),
        (WIDE, CommitLimits(row_bytes_max=WIDE.row_bytes_max), True),
        (WIDE, CommitLimits(row_bytes_max=WIDE.row_bytes_max - 1), False),
        (sending(1, 100), LIMITS, False),
        (Effect(1, "x" * 2_000_000), LIMITS, False),
        (Effect(1, "x" * 600_000), LIMITS, False),  # fits into a transaction, but not into a row
        (Effect(1, "ü" * 260_000), LIMITS, False),
    ],
)
def test_an_effect_that_fits_into_no_transaction_becomes_a_dead_letter(
    effect: Effect, limits: CommitLimits, *, kept: bool
) -> None:
    (commit,) = plan(checkpoint(0), [effect], limits=limits)
    assert [d.kind for d in commit.dead_letters] == [FailureKind.TOO_LARGE] * (not kept)
    assert [e.sequence for e in commit.effects] == [1] * kept
    after = commit.checkpoint
    assert (after.sequence, after.offset, after.enqueued_at) == (1, "@1", event(1).enqueued_at)


def test_the_dead_letter_of_a_too_large_effect_states_sizes_and_time() -> None:
    effect = sending(1, 5)
    limits = CommitLimits(rows_max=5, size_bytes_max=400_000, row_bytes_max=300_000)
    (commit,) = plan_commits(checkpoint(0), [event(1)], [effect], [], ME, "tx", LATER, limits)
    (letter,) = commit.dead_letters
    assert letter == dead_letter(
        event(1),
        FailureKind.TOO_LARGE,
        f"the effect needs 5 rows and {effect.size_bytes} bytes, but a transaction takes at most "
        "4 rows and 398976 bytes, and a row at most 300000 bytes",
        LATER,
    )


# --- dead letters -----------------------------------------------------------------------------


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


def test_a_long_error_is_cut_and_its_unstorable_characters_are_replaced() -> None:
    letter = dead_letter(event(1), FailureKind.POISON, "a\0b \ud83d 🚀" + "e" * 5000, NOW)
    assert letter.error == "a?b ? 🚀" + "e" * (4000 - 7)


def test_a_too_large_dead_letter_loses_its_body_and_most_of_its_error() -> None:
    long = dead_letter(event(1, b"x" * 50_000), FailureKind.POISON, "e" * 4000, NOW)
    (commit,) = plan(checkpoint(0), [long], limits=CommitLimits(row_bytes_max=20_000))
    told = "e" * 1000 + " (the body of 50000 bytes is too large for a row)"
    assert commit.dead_letters == (replace(long, body=None, error=told),)


@pytest.mark.parametrize(("size", "kept"), [(60_001, True), (1_015_000, True), (1_020_000, False)])
def test_a_dead_letter_holds_each_body_that_fits_into_a_row(size: int, kept: bool) -> None:
    body = b"x" * size
    failed = [event(1, body), event(2, body), event(3)]
    outcomes: list[Outcome] = [
        dead_letter(failed[0], FailureKind.POISON, "bad", NOW),
        Effect(2, "x" * 2_000_000),  # too large itself, so event 2 becomes a dead letter
        keeping(3),
    ]
    commits = plan_commits(checkpoint(0), failed, outcomes, [], ME, "tx", NOW, LIMITS)
    letters = [letter for commit in commits for letter in commit.dead_letters]
    assert [letter.body for letter in letters] == [body if kept else None] * 2
    told = [f"the body of {size} bytes is too large for a row" in each.error for each in letters]
    assert told == [not kept] * 2
    assert all(letter.row_bytes_max <= LIMITS.row_bytes_max for letter in letters)
    sums = [sum(letter.size_bytes for letter in commit.dead_letters) for commit in commits]
    assert max(sums) <= LIMITS.size_bytes_max


@pytest.mark.parametrize("text", ["a\0b", "half \ud83d a pair"])
def test_text_that_some_store_cannot_keep_is_refused(text: str) -> None:
    for make in (
        lambda: Effect(1, text),
        lambda: OutboxMessage(text, ""),
        lambda: sending(1, 1, text),
    ):
        with pytest.raises(ValueError, match=r"NUL|surrogates"):
            make()


# --- sequence numbers and epochs --------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "outcomes", "gaps"),
    [
        pytest.param([6], [6], [], id="left out before"),
        pytest.param([5, 7], [5, 7], [], id="left out between"),
        pytest.param([5, 5], [5, 5], [], id="counted twice"),
        pytest.param([5, 6], [5, 6], [gap(6, 6)], id="an effect and a gap"),
        pytest.param([8], [8], [gap(5, 6)], id="left out after a gap"),
        pytest.param([4, 5], [4, 5], [], id="before the checkpoint"),
        pytest.param([5], [5], [gap(6, 5)], id="an empty gap"),
        *[pytest.param([5, 6], [n, n + 1], [], id=f"not in the batch: {n}") for n in (0, 3, 4)],
        *[pytest.param([5, 6], [n, n + 1], [], id=f"not in the batch: {n}") for n in (6, 7)],
        pytest.param([6, 7], [6, 7], [], id="a batch that does not follow"),
        pytest.param([6, 7], [5, 6], [], id="outcomes that do not belong to the batch"),
        pytest.param([6, 5], [6, 6], [], id="a batch out of order"),
        pytest.param([], [5], [], id="no batch"),
    ],
)
def test_a_number_left_out_or_counted_twice_is_refused(
    batch: list[int], outcomes: list[int], gaps: list[Gap]
) -> None:
    """The checkpoint is at 4."""
    with pytest.raises(AccountingBroken):
        plan_commits(
            checkpoint(4), events(*batch), [*map(keeping, outcomes)], gaps, ME, "tx", NOW, LIMITS
        )


def test_the_error_names_the_missing_number_or_event() -> None:
    expected = r"^the next sequence number must be 5, but the plan has 6 to 6$"
    with pytest.raises(AccountingBroken, match=expected):
        plan(checkpoint(4), [keeping(6), poisoned(7)])
    with pytest.raises(AccountingBroken, match="event 1 has an outcome but is not in the batch"):
        plan_commits(checkpoint(0), [], [sending(1)], [], ME, "tx", NOW, LIMITS)


def test_the_error_of_a_fenced_writer_names_both_epochs() -> None:
    told = "^epoch 3 is over, because the stored checkpoint has epoch 4; another processor owns the"
    with pytest.raises(Fenced, match=f"{told} partition$"):
        plan(checkpoint(0, epoch=4), [sending(1)])
    (late,) = plan(checkpoint(0, epoch=1), [keeping(1)])
    with pytest.raises(Fenced, match=f"{told} partition$"):
        check_epoch(checkpoint(5, epoch=4), late.checkpoint.epoch)


def test_an_effect_of_another_event_cannot_replace_a_dead_letter() -> None:
    letter = dead_letter(event(7), FailureKind.POISON, "bad", NOW)
    check_number(letter, keeping(7))
    expected = r"^the effect belongs to event 8, but the dead letter belongs to event 7$"
    with pytest.raises(AccountingBroken, match=expected):
        check_number(letter, keeping(8))


def test_the_id_of_a_message_names_its_event() -> None:
    stream = Stream("ns", "hub", "$Default", "7")
    assert stream.key == "ns|hub|$Default|7"
    assert message_id(stream, 12) == "hub:7:12"
    assert message_id(stream, 12, 3) == "hub:7:12:3"


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[Checkpoint, list[Event], dict[int, int]]:
    at = draw(st.integers(0, 20))
    sequences = draw(st.lists(st.integers(0, 200), min_size=1, max_size=150))
    rows = {n: draw(st.integers(-1, 3)) for n in set(sequences)}
    old = [replace(event(n), enqueued_at=NOW) for n in sequences if n <= at]
    return checkpoint(at), old + events(*(n for n in sequences if n > at)), rows


@given(deliveries(), st.integers(4, 100))
def test_each_sequence_number_is_accounted_for_exactly_once(
    delivery: tuple[Checkpoint, list[Event], dict[int, int]], rows_max: int
) -> None:
    start, batch, rows = delivery
    new = new_events(start, batch)
    outcomes = [
        poisoned(e.sequence) if rows[e.sequence] < 0 else sending(e.sequence, rows[e.sequence])
        for e in new
    ]
    last = max([start.sequence, *(e.sequence for e in batch)])
    missing = holes(new, Span(start.sequence + 1, last))
    gaps = [Gap(span.first, span.last, NOW, "gone") for span in missing]
    commits = plan(start, outcomes, gaps, CommitLimits(rows_max))
    counted: Counter[int] = Counter()
    standing = start
    for commit in commits:
        assert commit.previous == standing
        assert commit.checkpoint.sequence > standing.sequence
        assert commit.checkpoint.enqueued_at >= standing.enqueued_at
        assert commit.rows <= rows_max
        counted.update(e.sequence for e in commit.effects)
        counted.update(d.sequence for d in commit.dead_letters)
        for gap in commit.gaps:
            counted.update(range(gap.first, gap.last + 1))
        standing = commit.checkpoint
        assert set(counted) == set(range(start.sequence + 1, standing.sequence + 1))
    assert set(counted.values()) <= {1}
    assert len({commit.checkpoint.txid for commit in commits}) == len(commits)
    assert standing.sequence == last
    assert {e.sequence for e in new} == {e.sequence for e in batch if e.sequence > start.sequence}
    assert new_events(standing, new) == ()
