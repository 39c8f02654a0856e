"""How what became of events is written: cut into transactions, and none of it twice.

Each transaction is a prefix of what is left, so that whatever happens between two of them the
checkpoint tells the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from operator import itemgetter
from typing import NamedTuple, cast

from shared.ingestion.errors import AccountingBroken, Fenced
from shared.ingestion.events.survey import beginning, follows
from shared.ingestion.model import (
    CHARACTER_BYTES_MAX,
    ROW_OVERHEAD_BYTES,
    Checkpoint,
    Commit,
    DeadLetter,
    Effect,
    Event,
    FailureKind,
    Gap,
    Outcome,
    storable,
)


@dataclass(frozen=True, slots=True)
class CommitLimits:
    """What one transaction takes. Table Storage: 100 rows, less than 4 MiB, and 1 MiB a row."""

    rows_max: int = 100
    size_bytes_max: int = 3_500_000
    row_bytes_max: int = 1_020_000

    @property
    def effect_bytes_max(self) -> int:
        """What is left besides the checkpoint."""
        return self.size_bytes_max - ROW_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class Writer:
    """Who commits, and under which epoch of ownership.

    Without an epoch (the Functions trigger has none) it goes on under the one that stands: then
    the condition of the commit alone keeps two writers apart.
    """

    owner: str = ""
    epoch: int | None = None

    def epoch_over(self, standing: int) -> int:
        """The epoch to commit under, over a checkpoint of ``standing``. Raises Fenced."""
        if self.epoch is not None and self.epoch < standing:
            raise Fenced(f"epoch {self.epoch} is over: the checkpoint is of epoch {standing}")
        return standing if self.epoch is None else self.epoch


_FIRST = itemgetter(0)


class _Entry(NamedTuple):
    """A gap or an outcome, and where the checkpoint stands once it is written."""

    first: int
    last: int
    what: Outcome | Gap
    event: Event | None
    rows: int
    size_bytes: int


def plan_commits(
    previous: Checkpoint | None,
    events: Sequence[Event],
    outcomes: Sequence[Outcome],
    gaps: Sequence[Gap],
    writer: Writer,
    txid: str,
    now: datetime,
    limits: CommitLimits = CommitLimits(),
) -> tuple[Commit, ...]:
    """The transactions that account for the outcomes and gaps, in order; () where there are none.

    ``events`` has at least the event of each outcome. Every number from the checkpoint to the
    last outcome must be in exactly one outcome or gap, else AccountingBroken. An effect that fits
    into no transaction becomes a dead letter. Raises Fenced where the writer's epoch is over.
    """
    if not outcomes and not gaps:
        return ()
    start = previous or beginning(min(events, key=lambda event: event.sequence))
    if not gaps and _all_fit_into_one(start, events, outcomes, limits):
        after = _moved(start, events, writer, f"{txid}.0")
        return (Commit(previous, after, tuple(cast("Sequence[Effect]", outcomes))),)
    entries = _in_order(start, _entries(events, outcomes, gaps, now, limits))
    commits: list[Commit] = []
    checkpoint = previous
    for number, part in enumerate(_parts(entries, limits)):
        after = _after(checkpoint or start, part, writer, f"{txid}.{number}")
        commits.append(_commit(checkpoint, after, part))
        checkpoint = after
    return tuple(commits)


def _all_fit_into_one(
    start: Checkpoint, events: Sequence[Event], outcomes: Sequence[Outcome], limits: CommitLimits
) -> bool:
    """Whether nothing failed, and all of it surely fits into one transaction, by a rough bound.

    Most batches are so. They are told apart as a whole, for a look at each event costs as much as
    writing it.
    """
    if len(events) != len(outcomes) or not follows(start, events):
        return False
    rows, characters = 1, 0
    for number, outcome in enumerate(outcomes, start.sequence + 1):
        if not isinstance(outcome, Effect) or outcome.sequence != number:
            return False
        if outcome.value is not None:
            rows += 1
            characters += len(outcome.value)
        if outcome.messages:
            rows += len(outcome.messages)
            characters += sum([len(message.body) for message in outcome.messages])
    size_bytes = rows * ROW_OVERHEAD_BYTES + characters * CHARACTER_BYTES_MAX
    return rows <= limits.rows_max and size_bytes <= min(
        limits.size_bytes_max, limits.row_bytes_max
    )


def _moved(start: Checkpoint, events: Sequence[Event], writer: Writer, txid: str) -> Checkpoint:
    """The checkpoint once all of the events are accounted for."""
    return Checkpoint(
        start=start.start,
        sequence=events[-1].sequence,
        offset=events[-1].offset,
        enqueued_at=max([start.enqueued_at, *[event.enqueued_at for event in events]]),
        epoch=writer.epoch_over(start.epoch),
        owner=writer.owner,
        txid=txid,
    )


def _entries(
    events: Sequence[Event],
    outcomes: Sequence[Outcome],
    gaps: Sequence[Gap],
    now: datetime,
    limits: CommitLimits,
) -> Iterator[_Entry]:
    by_sequence = {event.sequence: event for event in events}
    for gap in gaps:
        yield _Entry(gap.first, gap.last, gap, None, 1, ROW_OVERHEAD_BYTES)
    for outcome in outcomes:
        event = by_sequence.get(outcome.sequence)
        if event is None:
            raise AccountingBroken(f"{outcome.sequence} has an outcome and never came")
        entry = _entry(outcome, event)
        yield entry if _fits(entry, limits) else _entry(_fitting(entry, event, now, limits), event)


def _entry(outcome: Outcome, event: Event) -> _Entry:
    number = outcome.sequence
    return _Entry(number, number, outcome, event, outcome.rows, outcome.size_bytes)


def _fits(entry: _Entry, limits: CommitLimits) -> bool:
    """Whether a transaction takes it, besides a row for the checkpoint."""
    if entry.rows >= limits.rows_max or entry.size_bytes > limits.effect_bytes_max:
        return False
    if entry.size_bytes <= limits.row_bytes_max:  # then so is each of its rows
        return True
    return isinstance(entry.what, Gap) or entry.what.row_bytes_max <= limits.row_bytes_max


def _fitting(entry: _Entry, event: Event, now: datetime, limits: CommitLimits) -> Outcome:
    """The dead letter that fits, of what would never be written."""
    if isinstance(entry.what, DeadLetter):
        return replace(entry.what, body=None, error=entry.what.error[:1000])
    error = (
        f"{entry.rows} rows of {entry.size_bytes} bytes exceed a transaction of "
        f"{limits.rows_max - 1} rows and {limits.effect_bytes_max} bytes, "
        f"{limits.row_bytes_max} in one"
    )
    return dead_letter(event, FailureKind.TOO_LARGE, error, now)


def _in_order(start: Checkpoint, entries: Iterable[_Entry]) -> list[_Entry]:
    """The entries by number. Raises AccountingBroken where a number is left out or comes twice."""
    ordered = sorted(entries, key=_FIRST)
    expected = start.sequence + 1
    for entry in ordered:
        if entry.first != expected or entry.last < entry.first:
            raise AccountingBroken(f"{expected} comes next, not {entry.first} to {entry.last}")
        expected = entry.last + 1
    return ordered


def _parts(entries: Sequence[_Entry], limits: CommitLimits) -> Iterator[list[_Entry]]:
    """Fill one transaction after the other, keeping a row in each for the checkpoint."""
    part: list[_Entry] = []
    rows, size_bytes = 1, ROW_OVERHEAD_BYTES
    for entry in entries:
        full = rows + entry.rows > limits.rows_max
        if part and (full or size_bytes + entry.size_bytes > limits.size_bytes_max):
            yield part
            part, rows, size_bytes = [], 1, ROW_OVERHEAD_BYTES
        part.append(entry)
        rows += entry.rows
        size_bytes += entry.size_bytes
    yield part


def _after(start: Checkpoint, part: Sequence[_Entry], writer: Writer, txid: str) -> Checkpoint:
    at_end = part[-1].event
    times = [entry.event.enqueued_at for entry in part if entry.event is not None]
    if isinstance(part[-1].what, Gap):
        times.append(part[-1].what.found_at)  # nobody knows when; not after this
    return Checkpoint(
        start=start.start,
        sequence=part[-1].last,
        offset=at_end.offset if at_end else start.offset,
        enqueued_at=max([start.enqueued_at, *times]),
        epoch=writer.epoch_over(start.epoch),
        owner=writer.owner,
        txid=txid,
    )


def _commit(previous: Checkpoint | None, after: Checkpoint, part: Sequence[_Entry]) -> Commit:
    things = [entry.what for entry in part]
    return Commit(
        previous,
        after,
        tuple(thing for thing in things if isinstance(thing, Effect)),
        tuple(thing for thing in things if isinstance(thing, DeadLetter)),
        tuple(thing for thing in things if isinstance(thing, Gap)),
    )


def dead_letter(
    event: Event,
    kind: FailureKind,
    error: str,
    now: datetime,
    attempts: int = 1,
    body_bytes_max: int = 60_000,
) -> DeadLetter:
    """The dead letter of an event; a larger body stays in the hub, where the offset finds it."""
    return DeadLetter(
        sequence=event.sequence,
        offset=event.offset,
        enqueued_at=event.enqueued_at,
        failed_at=now,
        kind=kind,
        error=storable(error[:4000]),
        attempts=attempts,
        partition_key=event.partition_key and storable(event.partition_key),
        body=event.body if len(event.body) <= body_bytes_max else None,
    )


# --- what every store checks before it writes ---------------------------------------------------


def check_epoch(standing: Checkpoint | None, commit: Commit) -> None:
    """Raises Fenced where the standing checkpoint is of a higher epoch than the commit."""
    if standing is not None and standing.epoch > commit.checkpoint.epoch:
        raise Fenced(f"epoch {commit.checkpoint.epoch} is over: now it is {standing.epoch}")


def check_rows(rows: int, limits: CommitLimits) -> None:
    """Raises AccountingBroken where one transaction would have more rows than the store takes."""
    if rows > limits.rows_max:
        raise AccountingBroken(f"{rows} rows in one transaction of at most {limits.rows_max}")


def check_number(letter: DeadLetter, effect: Effect) -> None:
    """Raises AccountingBroken where the effect is not of the dead letter's event."""
    if effect.sequence != letter.sequence:
        raise AccountingBroken(f"the effect of {effect.sequence} is none of {letter.sequence}")


# --- what became of a commit whose reply was lost ---------------------------------------------


class CommitStatus(StrEnum):
    APPLIED = "applied"
    NOT_APPLIED = "not_applied"  # what was there before still stands: commit the same again
    OVERTAKEN = "overtaken"  # somebody went on since: survey again from what stands now


def commit_status(commit: Commit, standing: Checkpoint | None) -> CommitStatus:
    """What became of a commit, by the checkpoint that stands now.

    NOT_APPLIED is of this moment only, for the lost call may still arrive: the same commit under
    the same condition is safe, for only one of the two can be taken. Raises Fenced.
    """
    if standing is not None and standing.txid == commit.checkpoint.txid:
        return CommitStatus.APPLIED
    if standing == commit.previous:
        return CommitStatus.NOT_APPLIED
    check_epoch(standing, commit)
    return CommitStatus.OVERTAKEN
