"""Planning commits: each sequence number ends up in exactly one effect, dead letter or gap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ingestion.errors import AccountingBroken, Fenced, StreamRecreated
from shared.ingestion.events.accounting import (
    CommitStatus,
    Writer,
    commit_status,
    dead_letter,
    plan_commits,
)
from shared.ingestion.events.survey import beginning, check_same_hub, holes, new_events
from shared.ingestion.model import (
    Checkpoint,
    Commit,
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
from shared.ingestion.store.rows import CommitLimits
from tests.builders import NOW

ME = Writer("me", 3)
LIMITS = CommitLimits()


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


def test_redelivered_events_are_skipped_and_the_order_is_restored() -> None:
    new = new_events(checkpoint(4), events(6, 3, 4, 5, 5))
    assert [e.sequence for e in new] == [5, 6]


def test_missing_numbers_before_and_within_a_batch_are_found() -> None:
    missing = holes(new_events(checkpoint(4), events(8, 9, 12)), Span(5, 12))
    assert missing == (Span(5, 7), Span(10, 11))
    assert [span.count for span in missing] == [3, 2]


def test_a_stream_starts_right_before_its_first_event() -> None:
    start = beginning(event(41))
    assert (start.start, start.sequence) == (41, 40)
    assert holes(new_events(start, events(41, 42)), Span(41, 42)) == ()
    (commit,) = plan(None, [sending(41), sending(42)])
    assert commit.previous is None
    assert (commit.checkpoint.start, commit.checkpoint.sequence) == (41, 42)


def test_an_old_number_with_a_newer_time_reveals_a_recreated_hub() -> None:
    reborn = replace(event(2), enqueued_at=NOW + timedelta(seconds=4.5))
    with pytest.raises(StreamRecreated, match="event 2"):
        new_events(checkpoint(4), [reborn])
    with pytest.raises(
        StreamRecreated, match="the hub's last event is 3, but the checkpoint is at event 4"
    ):
        check_same_hub(checkpoint(4), HubState(NOW, 3))


def test_a_hub_created_after_the_checkpoints_event_is_another_hub() -> None:
    made = checkpoint(4).enqueued_at + timedelta(seconds=11)
    with pytest.raises(
        StreamRecreated, match="the checkpoint is at event 4, which was enqueued earlier"
    ):
        check_same_hub(checkpoint(4), HubState(made, 9))
    check_same_hub(checkpoint(4), HubState(made - timedelta(seconds=2), 9))


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


@pytest.mark.parametrize(
    ("count", "rows_each", "sizes"),
    [
        (99, 1, [99]),
        (100, 1, [99, 1]),
        (150, 1, [99, 51]),
        (150, 2, [49, 49, 49, 3]),
        (150, 0, [150]),
        (3, 99, [1, 1, 1]),
    ],
)
def test_transactions_are_bounded_in_rows_including_the_checkpoints(
    count: int, rows_each: int, sizes: list[int]
) -> None:
    commits = plan(checkpoint(0), [sending(n, rows_each) for n in range(1, count + 1)])
    assert [len(commit.effects) for commit in commits] == sizes
    assert all(commit.rows <= 100 for commit in commits)


def test_transactions_are_bounded_in_bytes() -> None:
    commits = plan(checkpoint(0), [Effect(n, "x" * 500_000) for n in range(1, 8)])
    assert [len(commit.effects) for commit in commits] == [3, 3, 1]


@pytest.mark.parametrize("text", ["a\0b", "half \ud83d a pair"])
def test_text_that_some_store_cannot_keep_is_refused(text: str) -> None:
    for make in (
        lambda: Effect(1, text),
        lambda: OutboxMessage(text, ""),
        lambda: sending(1, 1, text),
    ):
        with pytest.raises(ValueError, match=r"NUL|surrogates"):
            make()


def test_unstorable_characters_in_an_error_are_replaced() -> None:
    letter = dead_letter(event(1), FailureKind.POISON, "a\0b \ud83d 🚀", NOW)
    assert letter.error == "a?b ? 🚀"


@pytest.mark.parametrize(
    "effect",
    [
        sending(1, 100),
        Effect(1, "x" * 2_000_000),
        Effect(1, "x" * 600_000),  # fits into a transaction, but not into a row
        Effect(1, "ü" * 260_000),
    ],
)
def test_an_effect_too_large_for_a_transaction_becomes_a_dead_letter(effect: Effect) -> None:
    (commit,) = plan(checkpoint(0), [effect, sending(2)])
    assert [d.kind for d in commit.dead_letters] == [FailureKind.TOO_LARGE]
    assert [e.sequence for e in commit.effects] == [2]


def test_a_body_too_large_for_a_transaction_is_left_out_of_the_dead_letter() -> None:
    letter = dead_letter(event(1, b"x" * 60_000), FailureKind.POISON, "e" * 5000, NOW)
    assert (len(letter.body or b""), letter.offset, len(letter.error)) == (60_000, "@1", 4000)
    (commit,) = plan(checkpoint(0), [letter], limits=CommitLimits(100, 50_000))
    assert commit.dead_letters[0].body is None


@pytest.mark.parametrize(
    ("outcomes", "gaps"),
    [
        ([sending(2)], []),
        ([sending(1), sending(3)], []),
        ([sending(1), poisoned(1)], []),
        ([sending(1), sending(2)], [Gap(2, 2, NOW, "gone")]),
        ([sending(4)], [Gap(1, 2, NOW, "gone")]),
        ([sending(0), sending(1)], []),
        ([sending(1)], [Gap(2, 1, NOW, "none")]),
    ],
)
def test_a_number_left_out_or_counted_twice_is_refused(
    outcomes: list[Outcome], gaps: list[Gap]
) -> None:
    with pytest.raises(AccountingBroken):
        plan(checkpoint(0), outcomes, gaps)


def test_an_outcome_without_its_event_is_refused() -> None:
    with pytest.raises(AccountingBroken, match="event 1 has an outcome but is not in the batch"):
        plan_commits(checkpoint(0), [], [sending(1)], [], ME, "tx", NOW, LIMITS)


def test_a_writer_with_an_old_epoch_is_fenced() -> None:
    with pytest.raises(Fenced):
        plan(checkpoint(0, epoch=4), [sending(1)])


def test_without_outcomes_and_gaps_no_commit_is_planned() -> None:
    assert plan(checkpoint(0), []) == ()


def test_a_commit_at_the_end_of_a_gap_keeps_the_last_known_offset() -> None:
    (commit,) = plan(checkpoint(4), [], [Gap(5, 9, NOW, "gone")])
    assert (commit.checkpoint.sequence, commit.checkpoint.offset) == (9, "@4")


def test_a_late_event_of_a_gap_counts_as_redelivered() -> None:
    found_at = NOW + timedelta(seconds=10)
    (commit,) = plan(checkpoint(4), [], [Gap(5, 9, found_at, "gone")])
    assert new_events(commit.checkpoint, events(8, 9)) == ()
    reborn = replace(event(2), enqueued_at=found_at + timedelta(seconds=1))
    with pytest.raises(StreamRecreated):
        new_events(commit.checkpoint, [reborn])


@pytest.mark.parametrize(
    ("standing", "expected"),
    [
        ("mine", CommitStatus.APPLIED),
        ("before", CommitStatus.NOT_APPLIED),
        ("others", CommitStatus.OVERTAKEN),
        ("none", CommitStatus.OVERTAKEN),
    ],
)
def test_the_stored_checkpoint_shows_the_status_of_a_commit(
    standing: str, expected: CommitStatus
) -> None:
    (commit,) = plan(checkpoint(4), [sending(5)])
    checkpoints = {
        "mine": commit.checkpoint,
        "before": checkpoint(4),
        "others": replace(checkpoint(7, epoch=3), txid="other.0"),
        "none": None,
    }
    assert commit_status(commit, checkpoints[standing]) is expected


def test_the_status_of_a_first_commit_is_found_in_the_same_way() -> None:
    (commit,) = plan(None, [sending(5)])
    assert commit_status(commit, None) is CommitStatus.NOT_APPLIED
    assert commit_status(commit, commit.checkpoint) is CommitStatus.APPLIED


def test_a_checkpoint_of_a_higher_epoch_fences_the_writer() -> None:
    (commit,) = plan(checkpoint(4), [sending(5)])
    with pytest.raises(Fenced):
        commit_status(commit, checkpoint(7, epoch=4))


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


@given(
    st.lists(st.tuples(st.sampled_from(["", "x" * 60, "é" * 40]), st.integers(0, 2)), min_size=1),
    st.integers(4, 100),
    st.integers(10_000, 100_000),
    st.booleans(),
)
def test_planning_a_whole_batch_and_planning_by_event_give_the_same_commits(
    shapes: list[tuple[str, int]], rows_max: int, size_bytes_max: int, begins: bool
) -> None:
    outcomes = [
        replace(sending(n, messages, text), value=text or None)
        for n, (text, messages) in enumerate(shapes, 5)
    ]
    previous = None if begins else checkpoint(4)
    limits = CommitLimits(rows_max, size_bytes_max, row_bytes_max=size_bytes_max // 2)
    by_event = plan(previous, reversed(outcomes), limits=limits)
    assert plan(previous, outcomes, limits=limits) == by_event
