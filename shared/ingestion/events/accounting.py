"""Plans the commits for the outcomes of events: which rows go into which transaction.

Each transaction covers a prefix of the outcomes that are not yet written. So the checkpoint is
correct after each transaction, even if the next one never happens.
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
    set_aside_among,
    storable,
)
from shared.ingestion.store.events import check_epoch
from shared.ingestion.store.rows import CommitLimits


@dataclass(frozen=True, slots=True)
class Writer:
    """The identity under which a processor commits: its name, and its epoch of ownership.

    The Functions trigger has no epoch. Its commits keep the epoch of the stored checkpoint. If two
    such writers commit at once, only the conditional write prevents one from overwriting the
    other's commit.
    """

    owner: str = ""
    epoch: int | None = None

    def commit_epoch(self, stored_epoch: int) -> int:
        """The epoch for a commit that replaces a checkpoint whose epoch is ``stored_epoch``. Raises
        Fenced."""
        if self.epoch is not None and self.epoch < stored_epoch:
            raise Fenced(
                f"epoch {self.epoch} is over, because the checkpoint has epoch {stored_epoch}; "
                "another processor owns the partition"
            )
        return stored_epoch if self.epoch is None else self.epoch


_FIRST = itemgetter(0)


class _Entry(NamedTuple):
    """A gap or an outcome. Once it is written, the checkpoint is at ``last``."""

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
    limits: CommitLimits,
) -> tuple[Commit, ...]:
    """The transactions that account for the outcomes and gaps, in order. Empty if there are neither
    outcomes nor gaps.

    ``events`` must include the event of each outcome. If an effect does not fit into a transaction,
    it becomes a dead letter. Raises AccountingBroken unless exactly one outcome or gap covers each
    sequence number from the checkpoint to the last outcome or gap. Raises Fenced if the writer's
    epoch is over.
    """
    if not outcomes and not gaps:
        return ()
    start = previous or beginning(min(events, key=lambda event: event.sequence))
    if not gaps and _all_fit_into_one(start, events, outcomes, limits):
        times = [event.enqueued_at for event in events]
        after = _after(start, events[-1].sequence, events[-1], times, outcomes, writer, f"{txid}.0")
        return (Commit(previous, after, tuple(cast("Sequence[Effect]", outcomes))),)
    entries = _in_order(start, _entries(events, outcomes, gaps, now, limits))
    commits: list[Commit] = []
    checkpoint = previous
    for number, part in enumerate(_parts(entries, limits)):
        last, what = part[-1], [entry.what for entry in part]
        times = [entry.event.enqueued_at for entry in part if entry.event is not None]
        if isinstance(last.what, Gap):
            times.append(last.what.found_at)  # the missing events were enqueued before this time
        at = checkpoint or start
        after = _after(at, last.last, last.event, times, what, writer, f"{txid}.{number}")
        commits.append(_commit(checkpoint, after, what))
        checkpoint = after
    return tuple(commits)


def _all_fit_into_one(
    start: Checkpoint, events: Sequence[Event], outcomes: Sequence[Outcome], limits: CommitLimits
) -> bool:
    """Whether all outcomes are effects that certainly fit into one transaction, by a rough bound.

    Most batches pass this check. Without it, the exact check of each event would take as long as
    writing the event.
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
            raise AccountingBroken(
                f"event {outcome.sequence} has an outcome but is not in the batch"
            )
        entry = _entry(outcome, event)
        if not _fits(entry, limits):
            entry = _entry(_fitting(entry, event, now, limits), event)
        if not _fits(entry, limits):  # the effect's dead letter, with its body
            entry = _entry(_fitting(entry, event, now, limits), event)
        yield entry


def _entry(outcome: Outcome, event: Event) -> _Entry:
    number = outcome.sequence
    return _Entry(number, number, outcome, event, outcome.rows, outcome.size_bytes)


def _fits(entry: _Entry, limits: CommitLimits) -> bool:
    """Whether the entry fits into a transaction together with the checkpoint's row."""
    if entry.rows >= limits.rows_max or entry.size_bytes > limits.effect_bytes_max:
        return False
    if entry.size_bytes <= limits.row_bytes_max:  # so each of its rows fits, too
        return True
    return isinstance(entry.what, Gap) or entry.what.row_bytes_max <= limits.row_bytes_max


def _fitting(entry: _Entry, event: Event, now: datetime, limits: CommitLimits) -> Outcome:
    """A dead letter that fits, to replace an entry that does not fit."""
    if isinstance(entry.what, DeadLetter):
        told, body = entry.what.error[:1000], entry.what.body
        if body is not None:
            told += f" (the body of {len(body)} bytes is too large for a row)"
        return replace(entry.what, body=None, error=told)
    error = (
        f"the effect needs {entry.rows} rows and {entry.size_bytes} bytes, but a transaction "
        f"takes at most {limits.rows_max - 1} rows and {limits.effect_bytes_max} bytes, and a row "
        f"at most {limits.row_bytes_max} bytes"
    )
    return dead_letter(event, FailureKind.TOO_LARGE, error, now)


def _in_order(start: Checkpoint, entries: Iterable[_Entry]) -> list[_Entry]:
    """The entries by sequence number. Raises AccountingBroken if a number is missing or occurs
    twice."""
    ordered = sorted(entries, key=_FIRST)
    expected = start.sequence + 1
    for entry in ordered:
        if entry.first != expected or entry.last < entry.first:
            raise AccountingBroken(
                f"the next sequence number must be {expected}, but the plan has {entry.first} to "
                f"{entry.last}"
            )
        expected = entry.last + 1
    return ordered


def _parts(entries: Sequence[_Entry], limits: CommitLimits) -> Iterator[list[_Entry]]:
    """Divide the entries among transactions. One row of each is reserved for the checkpoint."""
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


def _after(
    start: Checkpoint,
    last: int,
    at_end: Event | None,
    times: Sequence[datetime],
    what: Sequence[Outcome | Gap],
    writer: Writer,
    txid: str,
) -> Checkpoint:
    """The checkpoint after everything up to ``last``, with the event there, if it is not a gap."""
    return Checkpoint(
        start=start.start,
        sequence=last,
        offset=at_end.offset if at_end else start.offset,
        enqueued_at=max([start.enqueued_at, *times]),
        epoch=writer.commit_epoch(start.epoch),
        owner=writer.owner,
        txid=txid,
        set_aside=start.set_aside + set_aside_among(what),
    )


def _commit(
    previous: Checkpoint | None, after: Checkpoint, items: Sequence[Outcome | Gap]
) -> Commit:
    return Commit(
        previous,
        after,
        tuple(item for item in items if isinstance(item, Effect)),
        tuple(item for item in items if isinstance(item, DeadLetter)),
        tuple(item for item in items if isinstance(item, Gap)),
    )


def dead_letter(
    event: Event,
    kind: FailureKind,
    error: str,
    now: datetime,
    attempts: int = 1,
) -> DeadLetter:
    """The dead letter of an event. ``plan_commits`` leaves out a body that is too large for a row
    of the store; it can be read back from the hub."""
    return DeadLetter(
        sequence=event.sequence,
        offset=event.offset,
        enqueued_at=event.enqueued_at,
        failed_at=now,
        kind=kind,
        error=storable(error[:4000]),
        attempts=attempts,
        partition_key=event.partition_key and storable(event.partition_key),
        body=event.body,
    )


# --- the status of a commit whose reply was lost ----------------------------------------------


class CommitStatus(StrEnum):
    """The status of a commit whose reply was lost: was the commit written?"""

    APPLIED = "applied"
    NOT_APPLIED = "not_applied"  # the previous checkpoint is unchanged: repeat the commit
    OVERTAKEN = "overtaken"  # another writer has committed since: start again from its checkpoint


def commit_status(commit: Commit, stored: Checkpoint | None) -> CommitStatus:
    """The status of a commit, judged by the checkpoint that is stored now.

    NOT_APPLIED is true for this moment only, because the lost request may still arrive. The
    commit can be repeated with the same conditional write, because the store accepts at most one
    of the two requests: the lost one or the repeated one.
    Raises Fenced.
    """
    if stored is not None and stored.txid == commit.checkpoint.txid:
        return CommitStatus.APPLIED
    if stored == commit.previous:
        return CommitStatus.NOT_APPLIED
    check_epoch(stored, commit)
    return CommitStatus.OVERTAKEN
