"""In-memory adapters of the ports of ingestion, for unit tests and simulation.

They keep the same contracts as the real adapters, without I/O.
"""

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
from shared.ingestion.errors import (
    AccountingBroken,
    BreakerChanged,
    ClaimLost,
    CommitRefused,
    NotFound,
)
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
    """The rows of one stream. A commit overwrites the checkpoint and inserts all other rows."""

    checkpoint: Checkpoint | None = None
    version: int | None = None
    effects: dict[int, Effect] = field(default_factory=dict)
    dead_letters: dict[int, DeadLetter] = field(default_factory=dict)
    gaps: dict[int, Gap] = field(default_factory=dict)
    outbox: dict[tuple[int, int], OutboxMessage] = field(default_factory=dict)
    """The keys are the sequence number of the event and the index of the message in its effect."""
    leases: dict[tuple[int, int], tuple[datetime, int]] = field(default_factory=dict)
    """For each message of the outbox, the time when it was committed or last taken over, and how
    often it was taken over."""
    worked_at: datetime | None = None
    marks: dict[datetime, Mark] = field(default_factory=dict)

    def insert(self, commit: Commit, now: datetime) -> None:
        """Add the rows of a commit.

        Raises AccountingBroken for a sequence number that already has a row or occurs twice. Unlike
        a real store, this one also keeps a row for an effect without a value.
        """
        outcomes = [effect.sequence for effect in commit.effects]
        outcomes += [letter.sequence for letter in commit.dead_letters]
        gaps = [gap.first for gap in commit.gaps]
        exists = any(n in self.effects or n in self.dead_letters for n in outcomes)
        exists = exists or any(n in self.gaps for n in gaps)
        if exists or _any_twice(outcomes) or _any_twice(gaps):
            raise AccountingBroken(
                f"transaction {commit.checkpoint.txid}: a sequence number already has a row"
            )
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
    """See IngestionStore, DeadLetterStore and RetentionStore.

    Its commits have the limits and conditions of a transaction of Table Storage.
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
            raise CommitRefused(
                f"{stream.key}: the checkpoint has version {rows.version}, not {saved.version}"
            )
        rows.insert(commit, self._clock())
        return StoredCheckpoint(rows.checkpoint, self._clock(), rows.version)

    async def outbox(self, stream: Stream, limit: int) -> Sequence[StoredMessage]:
        rows, now = self.rows[stream], self._clock()
        return [
            StoredMessage(message, key, key[0], taken, now - since)
            for key, message in sorted(rows.outbox.items())[:limit]
            for since, taken in [rows.leases[key]]
        ]

    async def take(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        leases, outbox = self.rows[stream].leases, self.rows[stream].outbox
        if any(m.key not in outbox or leases[m.key][1] != m.taken for m in messages):
            raise CommitRefused(
                f"{stream.key}: another instance took over or sent a message of the outbox"
            )
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
        letters = [
            letter
            for sequence, letter in rows
            if (after is None or sequence > after) and letter.failed_at >= since
        ]
        return [StoredDeadLetter(stream, letter, letter) for letter in letters[:limit]]

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
            raise CommitRefused(
                f"{stored.stream.key}: {stored.letter.sequence}: the dead letter was changed or "
                "removed"
            )
        del rows.dead_letters[stored.letter.sequence]

    async def gaps(
        self,
        stream: Stream,
        after: int | None,
        limit: int,
        found_since: datetime | None = None,
    ) -> Sequence[Gap]:
        after_number, since = -1 if after is None else after, found_since or LONG_AGO
        rows = sorted(self.rows[stream].gaps.items())
        return [gap for n, gap in rows if n > after_number and gap.found_at >= since][:limit]

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
    """A hub whose partitions are lists of events. Reads back at most ``read_max`` at a time."""

    def __init__(self, read_max: int = 100, ids: tuple[str, ...] = ("0",)) -> None:
        self.ids = ids
        self.groups = {"$Default"}
        self.events: dict[Stream, list[Event]] = defaultdict(list)
        self.created_at = LONG_AGO
        self._last: dict[Stream, int] = {}
        self._read_max = read_max

    def add(self, stream: Stream, *events: Event) -> None:
        self.events[stream].extend(events)
        self._last[stream] = events[-1].sequence

    def forget(self, stream: Stream, before: int) -> None:
        """Drop the events before a sequence number, as retention does."""
        self.events[stream] = [e for e in self.events[stream] if e.sequence >= before]

    def recreate(self, stream: Stream, now: datetime) -> None:
        """Delete the hub and create it again under the same name."""
        self.events[stream], self._last[stream], self.created_at = [], -1, now

    async def partition_ids(self) -> tuple[str, ...]:
        return self.ids

    async def check_group(self, consumer_group: str, partition_id: str) -> None:  # noqa: ARG002
        if consumer_group not in self.groups:
            raise NotFound(f"consumer group {consumer_group} does not exist")

    async def state(self, stream: Stream) -> HubState:
        newest_at = self.events[stream][-1].enqueued_at if self.events[stream] else None
        return HubState(self.created_at, self._last.get(stream, -1), newest_at)

    async def sequence_at(self, stream: Stream, time: datetime) -> int:
        later = [e.sequence for e in self.events[stream] if e.enqueued_at >= time]
        return min(later, default=self._last.get(stream, -1) + 1)

    async def read_back(self, stream: Stream, span: Span) -> ReadBack:
        oldest = min([e.sequence for e in self.events[stream]], default=None)
        within = [e for e in self.events[stream] if span.first <= e.sequence <= span.last]
        if not within:
            return ReadBack((), span.last, oldest)
        read = tuple(within[: self._read_max])
        done = len(read) == len(within)
        return ReadBack(read, span.last if done else read[-1].sequence, oldest)


class MemoryOwnershipStore:
    """See OwnershipStore. No version is used twice, even if a row is deleted and inserted again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows: dict[str, Ownership] = {}
        self._versions = count(1)

    async def owners(self) -> OwnershipSnapshot:
        return OwnershipSnapshot(tuple(self._rows.values()), self._clock())

    async def write(self, claim: OwnershipClaim) -> Ownership:
        current = self._rows.get(claim.partition_id)
        version = current.version if current else None
        if version != claim.expected_version:
            raise ClaimLost(
                f"partition {claim.partition_id}: it has version {version}, not "
                f"{claim.expected_version}"
            )
        row = Ownership(
            claim.partition_id, claim.owner, claim.epoch, self._clock(), next(self._versions)
        )
        self._rows[claim.partition_id] = row
        return row


class MemoryBreakerStore:
    """See BreakerStore. It keeps one state with a version, and tallies by bucket and instance."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen = BreakerSnapshot(Breaker(), clock())
        self._tallies: dict[tuple[datetime, str], Tally] = {}

    async def load(self) -> BreakerSnapshot:
        return BreakerSnapshot(self._seen.breaker, self._clock(), self._seen.version)

    async def replace(self, seen: BreakerSnapshot, breaker: Breaker) -> BreakerSnapshot:
        if seen.version != self._seen.version:
            raise BreakerChanged(
                f"the breaker has version {self._seen.version}, not {seen.version}"
            )
        self._seen = BreakerSnapshot(breaker, self._clock(), (seen.version or 0) + 1)
        return self._seen

    async def put_tally(self, tally: Tally) -> None:
        self._tallies[tally.bucket_start, tally.instance] = tally
        since = tally.bucket_start - TALLIES_KEPT
        self._tallies = {key: t for key, t in self._tallies.items() if t.bucket_start >= since}

    async def tallies(self, since: datetime) -> Sequence[Tally]:
        return [tally for tally in self._tallies.values() if tally.bucket_start >= since]
