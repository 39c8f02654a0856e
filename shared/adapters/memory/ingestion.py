"""In-memory twins of ingestion's ports: for unit tests and simulation. Same contract, no I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count

from shared.ingestion.breaker.breaker import LONG_AGO, Breaker
from shared.ingestion.breaker.failure_window import TALLIES_KEPT, Tally
from shared.ingestion.breaker.ports import BreakerSnapshot
from shared.ingestion.dead_letters.ports import StoredDeadLetter
from shared.ingestion.errors import AccountingBroken, BreakerChanged, ClaimLost, CommitRefused
from shared.ingestion.events.accounting import CommitLimits, check_epoch, check_number, check_rows
from shared.ingestion.events.ports import ReadBack, StoredCheckpoint, StoredMessage
from shared.ingestion.events.survey import Span
from shared.ingestion.model import (
    Checkpoint,
    Commit,
    DeadLetter,
    Effect,
    Event,
    Gap,
    HubState,
    Mark,
    OutboxMessage,
    Stream,
)
from shared.ingestion.ownership.load_balancing import Ownership, OwnershipClaim
from shared.ingestion.ownership.ports import OwnershipSnapshot

Clock = Callable[[], datetime]


@dataclass(slots=True)
class StreamRows:
    """One partition of the table. Rows are inserted, never overwritten, but for the checkpoint."""

    checkpoint: Checkpoint | None = None
    version: int | None = None
    effects: dict[int, Effect] = field(default_factory=dict)
    dead_letters: dict[int, DeadLetter] = field(default_factory=dict)
    gaps: dict[int, Gap] = field(default_factory=dict)
    outbox: dict[tuple[int, int], OutboxMessage] = field(default_factory=dict)
    """By the number of the event, and the message's place among those of the event."""
    leases: dict[tuple[int, int], tuple[datetime, int]] = field(default_factory=dict)
    """When each message of the outbox was committed or taken over last, and how often taken."""
    worked_at: datetime | None = None
    marks: dict[datetime, Mark] = field(default_factory=dict)

    def insert(self, commit: Commit, now: datetime) -> None:
        """Add the commit's rows. Raises AccountingBroken for a number that has a row already, or
        comes twice. Unlike a real store, it remembers the numbers that have no row any more."""
        outcomes = [effect.sequence for effect in commit.effects]
        outcomes += [letter.sequence for letter in commit.dead_letters]
        gaps = [gap.first for gap in commit.gaps]
        known = any(n in self.effects or n in self.dead_letters for n in outcomes)
        if known or any(n in self.gaps for n in gaps) or _any_twice(outcomes) or _any_twice(gaps):
            raise AccountingBroken(f"a number of {commit.checkpoint.txid} has a row already")
        for effect in commit.effects:
            self.keep(effect, now)
        self.dead_letters.update({letter.sequence: letter for letter in commit.dead_letters})
        self.gaps.update({gap.first: gap for gap in commit.gaps})
        self.checkpoint = commit.checkpoint
        self.version = (self.version or 0) + 1

    def keep(self, effect: Effect, now: datetime) -> None:
        self.effects[effect.sequence] = effect
        for index, message in enumerate(effect.messages):
            self.outbox[effect.sequence, index] = message
            self.leases[effect.sequence, index] = now, 0


def _any_twice(numbers: Sequence[int]) -> bool:
    return len(set(numbers)) < len(numbers)


class MemoryIngestionStore:
    """Streams in a dictionary: an IngestionStore, a DeadLetterStore and a RetentionStore.

    Takes what a table's transaction takes, under the same condition.
    """

    def __init__(self, clock: Clock, rows_max: int = 100) -> None:
        self._clock = clock
        self.limits = CommitLimits(rows_max)
        self.rows: dict[Stream, StreamRows] = defaultdict(StreamRows)

    async def load(self, stream: Stream) -> StoredCheckpoint:
        rows = self.rows[stream]
        return StoredCheckpoint(rows.checkpoint, self._clock(), rows.version)

    async def commit(
        self, stream: Stream, saved: StoredCheckpoint, commit: Commit
    ) -> StoredCheckpoint:
        rows = self.rows[stream]
        check_epoch(saved.checkpoint, commit)
        check_rows(commit.rows, self.limits)
        if rows.version != saved.version:
            raise CommitRefused(f"{stream.key}: version {rows.version} stands")
        rows.insert(commit, self._clock())
        return StoredCheckpoint(rows.checkpoint, self._clock(), rows.version)

    async def outbox(self, stream: Stream, limit: int) -> Sequence[StoredMessage]:
        of, now = self.rows[stream], self._clock()
        return [
            StoredMessage(message, key, key[0], taken, now - since)
            for key, message in sorted(of.outbox.items())[:limit]
            for since, taken in [of.leases[key]]
        ]

    async def take(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        leases, outbox = self.rows[stream].leases, self.rows[stream].outbox
        if any(m.key not in outbox or leases[m.key][1] != m.taken for m in messages):
            raise CommitRefused(f"{stream.key}: a message was taken over or sent")
        for each in messages:
            leases[each.key] = self._clock(), each.taken + 1

    async def sent(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        for stored in messages:
            self.rows[stream].outbox.pop(stored.key, None)
            self.rows[stream].leases.pop(stored.key, None)

    async def mark_at_work(self, stream: Stream) -> None:
        self.rows[stream].worked_at = self._clock()

    async def idle_for(self, stream: Stream) -> timedelta | None:
        worked_at = self.rows[stream].worked_at
        return None if worked_at is None else self._clock() - worked_at

    # --- dead letters ---

    async def streams(self) -> Sequence[Stream]:
        begun = [s for s, rows in self.rows.items() if rows.checkpoint or rows.dead_letters]
        return sorted(begun, key=lambda stream: stream.key)

    async def dead_letters(
        self,
        stream: Stream,
        after: int | None,
        limit: int,
        failed_since: datetime | None = None,
    ) -> Sequence[StoredDeadLetter]:
        rows, since = sorted(self.rows[stream].dead_letters.items()), failed_since or LONG_AGO
        found = [
            letter
            for sequence, letter in rows
            if (after is None or sequence > after) and letter.failed_at >= since
        ]
        return [StoredDeadLetter(stream, letter, letter) for letter in found[:limit]]

    async def newest_dead_letters(self, stream: Stream, limit: int) -> Sequence[StoredDeadLetter]:
        rows = sorted(self.rows[stream].dead_letters.items(), reverse=True)
        return [StoredDeadLetter(stream, letter, letter) for _, letter in rows[:limit]]

    async def dead_letter(self, stream: Stream, sequence: int) -> StoredDeadLetter | None:
        letter = self.rows[stream].dead_letters.get(sequence)
        return StoredDeadLetter(stream, letter, letter) if letter else None

    async def redrive(self, stored: StoredDeadLetter, effect: Effect) -> None:
        check_number(stored.letter, effect)
        check_rows(1 + effect.rows, self.limits)
        await self.remove(stored)
        self.rows[stored.stream].keep(effect, self._clock())

    async def remove(self, stored: StoredDeadLetter) -> None:
        rows = self.rows[stored.stream]
        if rows.dead_letters.get(stored.letter.sequence) != stored.version:
            raise CommitRefused(f"{stored.letter.sequence} is no dead letter any more")
        del rows.dead_letters[stored.letter.sequence]

    async def gaps(
        self,
        stream: Stream,
        after: int | None,
        limit: int,
        found_since: datetime | None = None,
    ) -> Sequence[Gap]:
        first, since = -1 if after is None else after, found_since or LONG_AGO
        rows = sorted(self.rows[stream].gaps.items())
        return [gap for n, gap in rows if n > first and gap.found_at >= since][:limit]

    # --- retention ---

    async def marks(self, stream: Stream) -> Sequence[Mark]:
        return [mark for _, mark in sorted(self.rows[stream].marks.items())]

    async def put_mark(self, stream: Stream, mark: Mark) -> None:
        self.rows[stream].marks[mark.at] = mark

    async def remove_marks(self, stream: Stream, marks: Sequence[Mark]) -> None:
        for mark in marks:
            self.rows[stream].marks.pop(mark.at, None)

    async def purge_effects(self, stream: Stream, up_to: int, limit: int) -> int:
        effects = self.rows[stream].effects
        old = [n for n in sorted(effects) if n <= up_to and effects[n].value is not None][:limit]
        for sequence in old:
            del effects[sequence]
        return len(old)


class MemoryHubReader:
    """Partitions as lists of events by number. Reads so many at once."""

    def __init__(self, read_max: int = 100, ids: tuple[str, ...] = ("0",)) -> None:
        self.ids = ids
        self.events: dict[Stream, list[Event]] = defaultdict(list)
        self.created_at = LONG_AGO
        self._last: dict[Stream, int] = {}
        self._read_max = read_max

    def add(self, stream: Stream, *events: Event) -> None:
        self.events[stream].extend(events)
        self._last[stream] = events[-1].sequence

    def forget(self, stream: Stream, before: int) -> None:
        """Retention: the events before this number go."""
        self.events[stream] = [e for e in self.events[stream] if e.sequence >= before]

    def recreate(self, stream: Stream, now: datetime) -> None:
        """The hub is deleted, and made anew under the same name."""
        self.events[stream], self._last[stream], self.created_at = [], -1, now

    async def partition_ids(self) -> tuple[str, ...]:
        return self.ids

    async def state(self, stream: Stream) -> HubState:
        return HubState(self.created_at, self._last.get(stream, -1))

    async def sequence_at(self, stream: Stream, time: datetime) -> int:
        later = [e.sequence for e in self.events[stream] if e.enqueued_at >= time]
        return min(later, default=self._last.get(stream, -1) + 1)

    async def read_back(self, stream: Stream, span: Span) -> ReadBack:
        within = [e for e in self.events[stream] if span.first <= e.sequence <= span.last]
        if len(within) <= self._read_max:
            return ReadBack(tuple(within), span.last)
        read = tuple(within[: self._read_max])
        return ReadBack(read, read[-1].sequence)


class MemoryOwnershipStore:
    """Rows with versions; a claim under an old version is refused. No version comes twice, also
    where a row was deleted and is made anew."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows: dict[str, Ownership] = {}
        self._versions = count(1)

    async def owners(self) -> OwnershipSnapshot:
        return OwnershipSnapshot(tuple(self._rows.values()), self._clock())

    async def write(self, claim: OwnershipClaim) -> Ownership:
        standing = self._rows.get(claim.partition_id)
        version = standing.version if standing else None
        if version != claim.expected_version:
            raise ClaimLost(f"partition {claim.partition_id}: {version} stands")
        row = Ownership(
            claim.partition_id, claim.owner, claim.epoch, self._clock(), next(self._versions)
        )
        self._rows[claim.partition_id] = row
        return row


class MemoryBreakerStore:
    """A row with a version, and the tallies by bucket and instance."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen = BreakerSnapshot(Breaker(), clock())
        self._tallies: dict[tuple[datetime, str], Tally] = {}

    async def load(self) -> BreakerSnapshot:
        return BreakerSnapshot(self._seen.breaker, self._clock(), self._seen.version)

    async def replace(self, seen: BreakerSnapshot, breaker: Breaker) -> BreakerSnapshot:
        if seen.version != self._seen.version:
            raise BreakerChanged(f"version {self._seen.version} stands")
        self._seen = BreakerSnapshot(breaker, self._clock(), (seen.version or 0) + 1)
        return self._seen

    async def put_tally(self, tally: Tally) -> None:
        self._tallies[tally.bucket_start, tally.instance] = tally
        since = tally.bucket_start - TALLIES_KEPT
        self._tallies = {key: t for key, t in self._tallies.items() if t.bucket_start >= since}

    async def tallies(self, since: datetime) -> Sequence[Tally]:
        return [tally for tally in self._tallies.values() if tally.bucket_start >= since]
