"""Stores the results of ingestion on Table Storage, and reads them back.

Each stream has a partition of the table, and each commit is one transaction on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from shared.adapters.azure.transport import server_time
from shared.adapters.tables.ingestion_rows import (
    CHECKPOINT,
    DEAD,
    EFFECT,
    GAP,
    MARK,
    OUTBOX,
    STREAMS,
    WORKING,
    checkpoint_of,
    checkpoint_row,
    commit_rows,
    effect_rows,
    end_of,
    gap_of,
    letter_of,
    letter_row,
    mark_of,
    mark_row,
    message_of,
    numbered,
    partition_key,
    store_errors,
    stream_of,
    stream_row,
    taken_row,
)
from shared.adapters.tables.newest import newest_keys
from shared.adapters.tables.table import (
    Operation,
    RowConflict,
    Table,
    delete_operation,
    merge_operation,
    put_operation,
    time_of,
)
from shared.ingestion.dead_letters.ports import StoredDeadLetter
from shared.ingestion.errors import AccountingBroken, CommitRefused, RowUnreadable
from shared.ingestion.events.accounting import CommitLimits, check_epoch, check_number, check_rows
from shared.ingestion.events.ports import StoredCheckpoint, StoredMessage
from shared.ingestion.model import Commit, Effect, Gap, Mark, Stream
from shared.settings.connections import StorageConnection
from shared.values.redaction import redacting

TABLE_NAME = "Ingestion"
NUMBER_MAX = 2**63 - 1


@redacting
class TableIngestionStore:
    """See IngestionStore, DeadLetterStore and RetentionStore.

    Versions are the rows' ETags. Times are the ``Date`` headers of the service's responses.
    """

    limits = CommitLimits()

    def __init__(self, connection: StorageConnection) -> None:
        self._table = Table(connection, TABLE_NAME)

    async def load(self, stream: Stream) -> StoredCheckpoint:
        with store_errors(stream.key):
            row = await self._table.get(partition_key(stream), CHECKPOINT)
        if row is None:
            return StoredCheckpoint(None, server_time())
        return StoredCheckpoint(checkpoint_of(row), server_time(), row.metadata["etag"])

    async def commit(
        self, stream: Stream, saved: StoredCheckpoint, commit: Commit
    ) -> StoredCheckpoint:
        check_epoch(saved.checkpoint, commit)
        check_rows(commit.rows, self.limits)
        row = checkpoint_row(stream, commit.checkpoint)
        operations: list[Operation] = [put_operation(row, saved.version)]
        operations += [("create", row) for row in commit_rows(stream, commit)]
        with store_errors(stream.key):
            if saved.version is None:
                # A stream is listed before its first commit, so that ``streams`` finds each stream
                # with rows.
                await self._table.overwrite(stream_row(stream))
            try:
                answers = await self._table.submit(operations)
            except RowConflict as conflict:
                raise await self._refusal(stream, saved, conflict) from conflict
        return StoredCheckpoint(commit.checkpoint, server_time(), answers[0]["etag"])

    async def _refusal(
        self, stream: Stream, saved: StoredCheckpoint, conflict: RowConflict
    ) -> Exception:
        """The error to raise: for a changed checkpoint, or else for a row that already exists."""
        current = await self._table.get(partition_key(stream), CHECKPOINT)
        version = current.metadata["etag"] if current is not None else None
        if version != saved.version:
            return CommitRefused(f"{stream.key}: the checkpoint changed since it was read")
        return AccountingBroken(f"{stream.key}: {conflict}")

    async def outbox(self, stream: Stream, limit: int) -> Sequence[StoredMessage]:
        rows = await self._first(stream, OUTBOX, 0, limit)
        messages = [message_of(row, server_time()) for row in rows]
        return [message for message in messages if message is not None]

    async def take(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        key = partition_key(stream)
        rows = [merge_operation(taken_row(key, each), each.version) for each in messages]
        with store_errors(stream.key):
            try:
                await self._table.submit(rows)
            except RowConflict as error:
                raise CommitRefused(
                    f"{stream.key}: another instance took over or sent a message of the outbox"
                ) from error

    async def sent(self, stream: Stream, messages: Sequence[StoredMessage]) -> None:
        key = partition_key(stream)
        with store_errors(stream.key):
            await self._table.delete([{"PartitionKey": key, "RowKey": m.key} for m in messages])

    async def mark_at_work(self, stream: Stream) -> None:
        with store_errors(stream.key):
            await self._table.overwrite({"PartitionKey": partition_key(stream), "RowKey": WORKING})

    async def idle_for(self, stream: Stream) -> timedelta | None:
        with store_errors(stream.key):
            row = await self._table.get(partition_key(stream), WORKING)
        return None if row is None else server_time() - time_of(row.metadata["timestamp"])

    # --- dead letters ---

    async def streams(self) -> Sequence[Stream]:
        with store_errors(TABLE_NAME):
            rows = await self._table.rows("PartitionKey eq @streams", {"streams": STREAMS})
        return sorted(filter(None, map(stream_of, rows)), key=lambda stream: stream.key)

    async def dead_letters(
        self,
        stream: Stream,
        after: int | None,
        limit: int,
        failed_since: datetime | None = None,
    ) -> Sequence[StoredDeadLetter]:
        since = {} if failed_since is None else {"failed_at": failed_since}
        rows = await self._first(stream, DEAD, 0 if after is None else after + 1, limit, since)
        return [_stored(stream, row) for row in rows]

    async def newest_dead_letters(self, stream: Stream, limit: int) -> Sequence[StoredDeadLetter]:
        try:
            checkpoint = (await self.load(stream)).checkpoint
            if checkpoint is None:
                return []
            first, last = checkpoint.start, checkpoint.sequence
        except RowUnreadable:
            first, last = 0, NUMBER_MAX
        key = partition_key(stream)

        async def keys(start: int, end: int | None, most: int) -> Sequence[str]:
            before = end_of(DEAD) if end is None else numbered(DEAD, end)
            return await self._table.keys(key, numbered(DEAD, start), before, most)

        with store_errors(stream.key):
            newest = await newest_keys(keys, first, last, limit)
            if not newest:
                return []
            rows = await self._table.range(key, newest[0], end_of(DEAD), 2 * limit)
        return [_stored(stream, row) for row in reversed(rows)][:limit]

    async def dead_letter(self, stream: Stream, sequence: int) -> StoredDeadLetter | None:
        if sequence < 0:  # keys have no negative numbers
            return None
        with store_errors(stream.key):
            row = await self._table.get(partition_key(stream), numbered(DEAD, sequence))
        return None if row is None else _stored(stream, row)

    async def redrive(self, stored: StoredDeadLetter, effect: Effect) -> None:
        check_number(stored.letter, effect)
        check_rows(1 + effect.rows, self.limits)
        rows = effect_rows(partition_key(stored.stream), effect)
        await self._end(stored, [("create", row) for row in rows])

    async def remove(self, stored: StoredDeadLetter) -> None:
        await self._end(stored, [])

    async def gaps(
        self,
        stream: Stream,
        after: int | None,
        limit: int,
        found_since: datetime | None = None,
    ) -> Sequence[Gap]:
        since = {} if found_since is None else {"found_at": found_since}
        rows = await self._first(stream, GAP, 0 if after is None else after + 1, limit, since)
        return [gap_of(row) for row in rows]

    # --- retention ---

    async def marks(self, stream: Stream) -> Sequence[Mark]:
        with store_errors(stream.key):
            rows = await self._table.range(partition_key(stream), numbered(MARK, 0), end_of(MARK))
        return [mark_of(row) for row in rows]

    async def put_mark(self, stream: Stream, mark: Mark) -> None:
        with store_errors(stream.key):
            await self._table.overwrite(mark_row(stream, mark))

    async def remove_marks(self, stream: Stream, marks: Sequence[Mark]) -> None:
        with store_errors(stream.key):
            await self._table.delete([mark_row(stream, mark) for mark in marks])

    async def purge_effects(self, stream: Stream, up_to: int, limit: int) -> int:
        key, end = partition_key(stream), numbered(EFFECT, up_to + 1)
        with store_errors(stream.key):
            rows = await self._table.range(key, numbered(EFFECT, 0), end, limit)
            await self._table.delete(
                [{"PartitionKey": key, "RowKey": row["RowKey"]} for row in rows]
            )
        return len(rows)

    async def close(self) -> None:
        await self._table.close()

    async def _end(self, stored: StoredDeadLetter, others: Sequence[Operation]) -> None:
        """Delete the dead letter, and execute other operations in the same transaction."""
        row = letter_row(partition_key(stored.stream), stored.letter)
        operations = [delete_operation(row, stored.version), *others]
        name = f"{stored.stream.key}: {stored.letter.sequence}"
        with store_errors(name):
            try:
                await self._table.submit(operations)
            except RowConflict as error:
                raise CommitRefused(f"{name}: the dead letter was changed or removed") from error

    async def _first(
        self,
        stream: Stream,
        kind: str,
        start: int,
        limit: int,
        at_least: Mapping[str, datetime] | None = None,
    ) -> list[Any]:
        with store_errors(stream.key):
            return await self._table.range(
                partition_key(stream), numbered(kind, start), end_of(kind), limit, at_least
            )


def _stored(stream: Stream, row: Any) -> StoredDeadLetter:
    return StoredDeadLetter(stream, letter_of(row), row.metadata["etag"])
