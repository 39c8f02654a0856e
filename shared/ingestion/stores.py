"""The stores of events, of the breaker, and of the owners of partitions, on any engine of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from shared.ingestion.breaker.breaker import Breaker
from shared.ingestion.breaker.failure_window import TALLIES_KEPT, Tally
from shared.ingestion.breaker.ports import BreakerSnapshot, decode_breaker, encode_breaker
from shared.ingestion.dead_letters.ports import StoredDeadLetter
from shared.ingestion.errors import BreakerChanged, ClaimLost, CommitRefused, RowUnreadable
from shared.ingestion.events.accounting import check_epoch, check_number, check_rows
from shared.ingestion.events.ports import StoredCheckpoint, StoredMessage
from shared.ingestion.metering import of_breaker, of_commit
from shared.ingestion.model import (
    Commit,
    DeadLetter,
    Effect,
    Gap,
    Mark,
    OutboxMessage,
    Stream,
    in_one_case,
)
from shared.ingestion.ownership.load_balancing import Ownership, OwnershipClaim
from shared.ingestion.ownership.ports import OwnershipSnapshot
from shared.ingestion.rows import (
    BREAKER,
    CHECKPOINT,
    DEAD,
    EFFECT,
    GAP,
    MARK,
    OUTBOX,
    OWNER,
    TALLY,
    WORKING,
    BreakerRow,
    Insert,
    OwnerRow,
    Place,
    Put,
    QueuedMessage,
    Remove,
    Row,
    RowChanged,
    RowEngine,
    Working,
    Write,
)
from shared.values.metering import Meter, no_meter
from shared.values.redaction import redacting

NUMBER_MAX = 2**63 - 1
PURGED_MAX, PURGES_MAX = 100, 20
"""How many old tallies are deleted at a time, and how often in a row."""
WriteInTransaction = Callable[[Any, Stream, Sequence[Effect]], None]
"""A function that writes further results of effects to the user's own tables. The function runs in
the transaction that writes the outcomes of the events. So the outcomes and the user's rows are
committed together, or not at all. The function must neither commit nor roll back. If the function
raises an error, the transaction is rolled back, and the function is called for fewer effects.
"""


class EventStore:
    """See IngestionStore, DeadLetterStore, NewestDeadLetters and RetentionStore.

    ``write_in_transaction`` is called in the transaction of each commit and redrive that has
    effects.
    """

    def __init__(
        self,
        rows: RowEngine,
        write_in_transaction: WriteInTransaction | None = None,
        meter: Meter = no_meter,
    ) -> None:
        self._rows = rows
        self._meter = meter
        self._write_in_transaction = write_in_transaction
        self.limits = rows.limits
        self.close = rows.close

    async def load(self, stream: Stream) -> StoredCheckpoint:
        page = await self._rows.read(CHECKPOINT, stream.place)
        if page.first is None:
            return StoredCheckpoint(None, page.read_at)
        return StoredCheckpoint(page.first.value, page.read_at, page.first.version)

    async def commit(
        self, stream: Stream, saved: StoredCheckpoint, commit: Commit
    ) -> StoredCheckpoint:
        check_epoch(saved.checkpoint, commit)
        check_rows(commit.rows, self.limits)
        writes = commit_writes(commit, saved.version)
        refusal = f"{stream.key}: the checkpoint changed since it was read"
        row = await self._write(stream, writes, refusal, commit.effects)
        assert row is not None
        self._meter(of_commit(stream, commit, row.written_at))
        return StoredCheckpoint(commit.checkpoint, row.written_at, row.version)

    async def outbox(self, stream: Stream, limit: int) -> Sequence[StoredMessage]:
        page = await self._rows.read(OUTBOX, stream.place, limit=limit)
        return [
            StoredMessage(
                OutboxMessage(row.value.message_id, row.value.body),
                (row.value.sequence, row.value.position),
                row.value.sequence,
                row.value.taken or 0,
                page.read_at - row.written_at,
                row.version,
            )
            for row in page.rows
        ]

    async def take(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        writes = [
            Put(OUTBOX, _queued(each, each.taken + 1), each.version, ("taken",))
            for each in messages
        ]
        refusal = f"{stream.key}: another instance took over or sent a message of the outbox"
        await self._write(stream, writes, refusal)

    async def sent(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        await self._rows.delete(OUTBOX, stream.place, [_queued(each) for each in messages])

    async def mark_at_work(self, stream: Stream) -> None:
        await self._rows.overwrite(WORKING, stream.place, Working())

    async def idle_for(self, stream: Stream) -> timedelta | None:
        page = await self._rows.read(WORKING, stream.place)
        return page.read_at - page.first.written_at if page.first else None

    # --- dead letters and gaps ---

    async def streams(self) -> Sequence[Stream]:
        places = await self._rows.places(CHECKPOINT, DEAD)
        return sorted([Stream(*place) for place in places], key=lambda stream: stream.key)

    async def dead_letters(
        self,
        stream: Stream,
        after: int | None,
        limit: int,
        failed_since: datetime | None = None,
    ) -> Sequence[StoredDeadLetter]:
        page = await self._rows.read(
            DEAD, stream.place, after=after, limit=limit, since=failed_since
        )
        return _letters(stream, page.rows)

    async def newest_dead_letters(self, stream: Stream, limit: int) -> Sequence[StoredDeadLetter]:
        try:
            checkpoint = (await self.load(stream)).checkpoint
            within = (checkpoint.start, checkpoint.sequence) if checkpoint else (0, 0)
        except RowUnreadable:
            within = (0, NUMBER_MAX)
        return _letters(stream, (await self._rows.newest(DEAD, stream.place, limit, within)).rows)

    async def dead_letter(self, stream: Stream, sequence: int) -> StoredDeadLetter | None:
        page = await self._rows.read(DEAD, stream.place, (sequence,))
        return next(iter(_letters(stream, page.rows)), None)

    async def redrive(self, stored: StoredDeadLetter, effect: Effect) -> None:
        check_number(stored.letter, effect)
        check_rows(1 + effect.rows, self.limits)
        await self._end(stored, [effect])

    async def remove(self, stored: StoredDeadLetter) -> None:
        await self._end(stored, [])

    async def gaps(
        self,
        stream: Stream,
        after: int | None,
        limit: int,
        found_since: datetime | None = None,
    ) -> Sequence[Gap]:
        page = await self._rows.read(GAP, stream.place, after=after, limit=limit, since=found_since)
        return [row.value for row in page.rows]

    # --- retention ---

    async def marks(self, stream: Stream) -> Sequence[Mark]:
        return [row.value for row in (await self._rows.read(MARK, stream.place)).rows]

    async def put_mark(self, stream: Stream, mark: Mark) -> None:
        await self._rows.overwrite(MARK, stream.place, mark)

    async def remove_marks(self, stream: Stream, marks: Sequence[Mark]) -> None:
        await self._rows.delete(MARK, stream.place, marks)

    async def purge_effects(self, stream: Stream, up_to: int, limit: int) -> int:
        return await self._rows.purge(EFFECT, stream.place, up_to, limit)

    async def _end(self, stored: StoredDeadLetter, effects: Sequence[Effect]) -> None:
        """Delete the dead letter, and write the effects that replace it."""
        name = f"{stored.stream.key}: {stored.letter.sequence}"
        await self._write(
            stored.stream,
            [Remove(DEAD, stored.letter, stored.version), *effect_writes(effects)],
            f"{name}: the dead letter was changed or removed",
            effects,
        )

    async def _write(
        self, stream: Stream, writes: Sequence[Write], refusal: str, effects: Sequence[Effect] = ()
    ) -> Row[Any] | None:
        own = self._write_in_transaction
        also = (lambda connection: own(connection, stream, effects)) if own and effects else None
        try:
            return await self._rows.write(stream.place, writes, also)
        except RowChanged as error:
            raise CommitRefused(refusal) from error


def commit_writes(commit: Commit, version: Any) -> list[Write]:
    return [
        Put(CHECKPOINT, commit.checkpoint, version),
        *effect_writes(commit.effects),
        Insert(DEAD, commit.dead_letters),
        Insert(GAP, commit.gaps),
    ]


def effect_writes(effects: Sequence[Effect]) -> list[Write]:
    """One row for each value, and one for each message."""
    messages = [
        QueuedMessage(each.sequence, position, message.message_id, message.body)
        for each in effects
        if each.messages
        for position, message in enumerate(each.messages)
    ]
    values = [each for each in effects if each.value is not None]
    return [Insert(EFFECT, values), Insert(OUTBOX, messages)]


def _queued(stored: StoredMessage, taken: int | None = None) -> QueuedMessage:
    sequence, position = stored.key
    return QueuedMessage(sequence, position, stored.message.message_id, stored.message.body, taken)


def _letters(stream: Stream, rows: Sequence[Row[DeadLetter]]) -> list[StoredDeadLetter]:
    return [StoredDeadLetter(stream, row.value, row.version) for row in rows]


@redacting
class RowBreakerStore:
    """See BreakerStore."""

    def __init__(self, rows: RowEngine, name: str, meter: Meter = no_meter) -> None:
        self._rows, self._name, self._place, self._meter = rows, name, (name,), meter
        self._purged_before: datetime | None = None
        self.close = rows.close

    async def load(self) -> BreakerSnapshot:
        page = await self._rows.read(BREAKER, self._place)
        breaker = decode_breaker(page.first.value.state) if page.first else Breaker()
        self._meter(of_breaker(self._name, breaker.mode))
        return BreakerSnapshot(breaker, page.read_at, page.first and page.first.version)

    async def replace(self, seen: BreakerSnapshot, breaker: Breaker) -> BreakerSnapshot:
        row = BreakerRow(str(breaker.mode), encode_breaker(breaker))
        try:
            new = await self._rows.write(self._place, [Put(BREAKER, row, seen.version)])
        except RowChanged as error:
            text = f"{self._name}: another instance changed the breaker first"
            raise BreakerChanged(text) from error
        assert new is not None
        self._meter(of_breaker(self._name, breaker.mode))
        return BreakerSnapshot(breaker, new.written_at, new.version)

    async def put_tally(self, tally: Tally) -> None:
        await self._rows.overwrite(TALLY, self._place, tally)
        await self._purge(tally.bucket_start - TALLIES_KEPT)

    async def tallies(self, since: datetime) -> Sequence[Tally]:
        page = await self._rows.read(TALLY, self._place, since=since)
        # Not every engine compares microseconds.
        return [row.value for row in page.rows if row.value.bucket_start >= since]

    async def _purge(self, before: datetime) -> None:
        """Delete the tallies of all instances from before this time, once in a while."""
        if self._purged_before is not None and before < self._purged_before + TALLIES_KEPT:
            return
        self._purged_before = before
        up_to = before - timedelta(microseconds=1)
        for _ in range(PURGES_MAX):
            if await self._rows.purge(TALLY, self._place, up_to, PURGED_MAX) < PURGED_MAX:
                return


class RowOwnershipStore:
    """See OwnershipStore. A version is the place of a row, and the row's version.

    Earlier versions wrote the names of hub and consumer group in the case of the settings; rows
    that exist keep their place.
    """

    def __init__(self, rows: RowEngine, namespace: str, hub: str, consumer_group: str) -> None:
        self._rows = rows
        self._place = _in_one_case((namespace, hub, consumer_group))
        self.close = rows.close

    async def owners(self) -> OwnershipSnapshot:
        found: list[Ownership] = []
        stored = await self._rows.places(OWNER)
        same = {place for place in stored if _in_one_case(place) == self._place}
        for place in {self._place, *same}:
            page = await self._rows.read(OWNER, place)
            found += [ownership(place, row) for row in page.rows]
        return OwnershipSnapshot(tuple(found), page.read_at)

    async def write(self, claim: OwnershipClaim) -> Ownership:
        place, version = claim.expected_version or (self._place, None)
        row = OwnerRow(claim.partition_id, claim.owner, claim.epoch, claim.reason)
        try:
            new = await self._rows.write(place, [Put(OWNER, row, version)])
        except RowChanged as error:
            text = f"partition {claim.partition_id}: another instance claimed it first"
            raise ClaimLost(text) from error
        assert new is not None
        return ownership(place, new)


def _in_one_case(names: Place) -> Place:
    return tuple(map(in_one_case, names))


def ownership(place: Place, row: Row[OwnerRow]) -> Ownership:
    owner = row.value
    version = (place, row.version)
    return Ownership(owner.partition_id, owner.owner, owner.epoch, row.written_at, version)
