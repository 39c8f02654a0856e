"""Plans the commits for the outcomes of events. Each transaction covers a prefix of what is not yet
written, so the checkpoint is correct after each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import itemgetter
from typing import NamedTuple

from shared.ingestion.errors import AccountingBroken
from shared.ingestion.events.survey import beginning
from shared.ingestion.model import (
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
    """Who commits. The Functions trigger has no epoch, and keeps the stored one."""

    owner: str = ""
    epoch: int | None = None

    def commit_epoch(self, stored: Checkpoint) -> int:
        """The epoch of a commit after the stored checkpoint. Raises Fenced."""
        epoch = stored.epoch if self.epoch is None else self.epoch
        check_epoch(stored, epoch)
        return epoch


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
    """The transactions that account for the outcomes and gaps, in order. An effect that fits into
    none becomes a dead letter. Raises Fenced, and AccountingBroken unless exactly one outcome or
    gap covers each number from the checkpoint to the last one."""
    if not outcomes and not gaps:
        return ()
    start = previous or beginning(min(events, key=lambda event: event.sequence))
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
    if entry.rows >= limits.rows_max or entry.size_bytes > limits.effect_bytes_max:
        return False
    if entry.size_bytes <= limits.row_bytes_max:  # so each of its rows fits, too
        return True
    return isinstance(entry.what, Gap) or entry.what.row_bytes_max <= limits.row_bytes_max


def _fitting(entry: _Entry, event: Event, now: datetime, limits: CommitLimits) -> Outcome:
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
    """The entries by number. Raises AccountingBroken if a number is missing or occurs twice."""
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
        epoch=writer.commit_epoch(start),
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
    """The event's dead letter, whose body is left out if it is too large; the hub has it."""
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
