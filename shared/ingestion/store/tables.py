"""The rows of ingestion in Table Storage. The PartitionKey is the place. RowKeys are
``!checkpoint``, ``!working`` or ``!state``, the kind and its key, as in
``outbox|<number>|<position>``, padded to sort like numbers, or the id of a partition for its owner.
``!streams`` has a row for each stream."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import Any, get_args
from urllib.parse import unquote

from azure.core.exceptions import AzureError, HttpResponseError

from shared.azure.refusals import TEXT_LENGTH_MAX
from shared.azure.transport import server_time
from shared.ingestion.errors import AccountingBroken, RowChanged, RowRefused, StoreUnavailable
from shared.ingestion.store.newest import newest_keys
from shared.ingestion.store.rows import (
    CHECKPOINT,
    EFFECT,
    OUTBOX,
    OWNER,
    TALLY,
    CommitLimits,
    Insert,
    Kind,
    Place,
    Put,
    Remove,
    Row,
    RowPage,
    V,
    Write,
)
from shared.settings.connections import StorageConnection
from shared.storage import tables as t
from shared.storage.table_requests import Row as TableRow
from shared.storage.table_requests import RowOperation, put_operation, whole
from shared.values.redaction import redacting
from shared.values.row_values import microseconds
from shared.values.text import one_line

TABLE_NAMES = {"owner": "Ownership", "state": "Breaker", "tally": "Breaker"}
"""The tables of kinds of rows. All other kinds are in the table for events."""
EVENTS = "Ingestion"
STREAMS = "!streams"
STREAM_NAMES = ("namespace", "hub", "consumer_group", "partition_id")
NOT_RETRYABLE = (400, 413)
"""HTTP statuses of a request that is malformed or too large."""
SHORT = ("attempts", "taken")
"""Whole numbers with 32 bits. All others have 64."""
LONG = ("value", "body", "error")
"""Texts and bytes of any length, which may be split into several properties."""
KEY_ONLY = (EFFECT, OUTBOX)
"""The kinds whose key is in the RowKey only."""
IN_KEYS: Mapping[str, Callable[[Any], str]] = {
    "position": "{:04d}".format,
    "at": lambda at: _number(microseconds(at)),
    "bucket_start": lambda at: f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}",
    "instance": t.key,
}
log = logging.getLogger(__name__)


@redacting
class TableRows:
    """See RowEngine. A version is an ETag; times are those of responses and ``Timestamp``."""

    limits = CommitLimits()

    def __init__(self, connection: StorageConnection) -> None:
        self._connection = connection
        self._tables: dict[str, t.Table] = {}

    async def read(
        self,
        kind: Kind[V],
        place: Place,
        key: tuple[Any, ...] = (),
        *,
        after: int | None = None,
        limit: int | None = None,
        since: datetime | None = None,
    ) -> RowPage[V]:
        table, partition = self._table(kind), t.joined(*place)
        with store_errors("|".join(place)):
            if key or not kind.key:
                row = await table.get(partition, row_key(kind, key))
                return self._page(kind, [] if row is None else [row])
            start = row_key(kind, () if after is None else (after + 1,))
            if kind is TALLY and since is not None:
                start = row_key(kind, (since,))
            at_least = {} if since is None else {kind.since: since}
            found = await table.range(partition, start, end_of(kind), limit, at_least)
        return self._page(kind, found)

    async def newest(
        self, kind: Kind[V], place: Place, limit: int, within: tuple[int, int]
    ) -> RowPage[V]:
        table, partition = self._table(kind), t.joined(*place)

        async def keys(start: int, end: int | None, most: int) -> Sequence[str]:
            before = end_of(kind) if end is None else row_key(kind, (end,))
            return await table.keys(partition, row_key(kind, (start,)), before, most)

        with store_errors("|".join(place)):
            newest = await newest_keys(keys, *within, limit)
            if not newest:
                return self._page(kind, [])
            rows = await table.range(partition, newest[0], end_of(kind), 2 * limit)
        return self._page(kind, rows[::-1][:limit])

    async def places(self, *kinds: Kind[Any]) -> Sequence[Place]:
        table = self._table(kinds[0])
        with store_errors(_table_name(kinds[0])):
            if CHECKPOINT in kinds:
                rows = await table.range(STREAMS)
                return [place for row in rows if (place := _stream(row)) is not None]
            rows = await table.all_rows(["PartitionKey"])
        keys = {row["PartitionKey"] for row in rows}
        return [tuple(unquote(name.replace("=", "%")) for name in key.split("|")) for key in keys]

    async def write(
        self, place: Place, writes: Sequence[Write], also: Callable[[Any], None] | None = None
    ) -> Row[Any] | None:
        assert also is None, "nothing else can take part in a transaction of Table Storage"
        if not writes:
            return None
        table, partition, first = self._table(writes[0].kind), t.joined(*place), writes[0]
        operations = [each for write in writes for each in operations_of(partition, write)]
        with store_errors("|".join(place)):
            if isinstance(first, Put) and first.kind is CHECKPOINT and first.version is None:
                await table.overwrite(_listing(partition, place))
            try:
                if isinstance(first, Put) and len(operations) == 1 and not first.only:
                    version: Any = await table.put(operations[0].row, first.version)
                else:
                    version = (await table.submit(operations))[0]
            except t.RowConflict as conflict:
                raise await _cause(table, writes, operations, conflict) from conflict
        return Row(first.value, version, server_time()) if isinstance(first, Put) else None

    async def overwrite(self, kind: Kind[V], place: Place, value: V) -> None:
        with store_errors("|".join(place)):
            await self._table(kind).overwrite(row_of(kind, t.joined(*place), value))

    async def delete(self, kind: Kind[V], place: Place, values: Sequence[V]) -> None:
        partition = t.joined(*place)
        with store_errors("|".join(place)):
            await self._table(kind).delete([_keys(kind, partition, each) for each in values])

    async def purge(self, kind: Kind[Any], place: Place, up_to: Any, limit: int) -> int:
        table, partition = self._table(kind), t.joined(*place)
        start, end = row_key(kind, ()), f"{row_key(kind, (up_to,))}~"
        with store_errors("|".join(place)):
            keys = await table.keys(partition, start, end, limit)
            await table.delete([{"PartitionKey": partition, "RowKey": key} for key in keys])
        return len(keys)

    async def close(self) -> None:
        for table in self._tables.values():
            await table.close()

    def _table(self, kind: Kind[Any]) -> t.Table:
        name = _table_name(kind)
        if name not in self._tables:
            self._tables[name] = t.Table(self._connection, name)
        return self._tables[name]

    def _page(self, kind: Kind[V], found: Sequence[Any]) -> RowPage[V]:
        rows = [_row(kind, row) for row in found]
        return RowPage(tuple([row for row in rows if row is not None]), server_time())


def _table_name(kind: Kind[Any]) -> str:
    return TABLE_NAMES.get(kind.name, EVENTS)


def _listing(partition: str, place: Place) -> TableRow:
    """The row written before a stream's first commit, by which ``places`` finds the stream."""
    names = dict(zip(STREAM_NAMES, place, strict=True))
    return {"PartitionKey": STREAMS, "RowKey": partition, **names}


def _stream(row: Mapping[str, Any]) -> Place | None:
    """The names of a stream. None if they cannot be read; the stream is then not listed."""
    names = [row.get(name) for name in STREAM_NAMES]
    if all(isinstance(name, str) for name in names):
        return tuple(map(str, names))
    log.warning("[stream_unreadable] %s cannot be read", _where(row, EVENTS))
    return None


def _where(row: Mapping[str, Any], table: str) -> str:
    return f"row '{row['PartitionKey']}/{row['RowKey']}' of table {table}"


def _row(kind: Kind[V], row: Any) -> Row[V] | None:
    at, readers = row.metadata["timestamp"], _readers(kind)
    where = _where(row, _table_name(kind))
    value = kind.value_of(list(readers), lambda name: readers[name](row), where, at)
    return None if value is None else Row(value, row.metadata["etag"], at)


async def _cause(
    table: t.Table,
    writes: Sequence[Write],
    operations: Sequence[RowOperation],
    conflict: t.RowConflict,
) -> Exception:
    """The error to raise: for a changed row, or else for an inserted row that exists."""
    first, row = writes[0], operations[0].row
    if not isinstance(first, Insert) and any(isinstance(each, Insert) for each in writes):
        current = await table.get(row["PartitionKey"], row["RowKey"])
        version = current.metadata["etag"] if current is not None else None
        if version == first.version:
            return AccountingBroken(f"{row['PartitionKey']}: {conflict}")
    return RowChanged(f"{row['PartitionKey']}: {row['RowKey']}")


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Raises the client's errors as StoreUnavailable, or as RowRefused if a retry is useless, or as
    AccountingBroken for a row that occurs twice."""
    try:
        yield
    except HttpResponseError as error:
        if error.status_code in NOT_RETRYABLE:
            is_twice = getattr(error, "error_code", "") == "InvalidDuplicateRow"
            refusal = AccountingBroken if is_twice else RowRefused
            raise refusal(f"{what}: {one_line(error.message)}") from error
        raise StoreUnavailable(f"{what}: {one_line(error.message, TEXT_LENGTH_MAX)}") from error
    except (AzureError, OSError) as error:
        raise StoreUnavailable(f"{what}: {one_line(error)}") from error


# --- keys and properties ------------------------------------------------------------------------


def row_key(kind: Kind[Any], key: Sequence[Any]) -> str:
    """The RowKey, or its beginning if not all fields of the key are given."""
    if kind is OWNER:
        return t.key(key[0]) if key else ""
    parts = [IN_KEYS.get(name, _number)(each) for name, each in zip(kind.key, key, strict=False)]
    if kind.key:
        return "|".join([kind.name, *(parts or [""])])
    return f"!{kind.name}"


def end_of(kind: Kind[Any]) -> str:
    """A key that sorts after all keys of a kind and before those of the next one."""
    return "\u00ff" if kind is OWNER else f"{kind.name}}}"


def _number(number: int) -> str:
    """Padded to the length of the largest 64-bit number. Keys have no negative numbers."""
    return f"{number:019d}" if number >= 0 else "-"


def row_of(kind: Kind[V], partition: str, value: V, only: Sequence[str] = ()) -> TableRow:
    row = _keys(kind, partition, value)
    left_out = kind.key if kind in KEY_ONLY else ()
    for name in only or _readers(kind):
        each = getattr(value, name)
        if name in LONG:
            row |= t.long_fields(name, each)
        elif isinstance(each, str):
            row[name] = str(each)  # of an enum, its value
        elif each is not None and name not in left_out:
            row[name] = whole(each) if isinstance(each, int) and name not in SHORT else each
    return row


def _keys(kind: Kind[V], partition: str, value: V) -> TableRow:
    return {"PartitionKey": partition, "RowKey": row_key(kind, kind.key_of(value))}


def operations_of(partition: str, write: Write) -> list[RowOperation]:
    kind = write.kind
    if isinstance(write, Insert):
        return [put_operation(row_of(kind, partition, each), None) for each in write.values]
    if isinstance(write, Remove):
        return [RowOperation("DELETE", _keys(kind, partition, write.value), write.version)]
    row = row_of(kind, partition, write.value, write.only)
    if write.only:
        return [RowOperation("PATCH", row, write.version)]
    return [put_operation(row, write.version)]


@cache
def _readers(kind: Kind[Any]) -> Mapping[str, Callable[[Any], Any]]:
    """How each field is read from a row. Numbers of the key are read from the RowKey."""
    return {name: _reader(kind, name, of) for name, of in kind.types.items()}


def _reader(kind: Kind[Any], name: str, of: Any) -> Callable[[Any], Any]:
    of = next((each for each in get_args(of) if each is not type(None)), of)
    if of is int and name in kind.key:
        place = 1 + kind.key.index(name)
        return lambda row: int(row["RowKey"].split("|")[place])
    if name in LONG:
        return lambda row: row[name] and t.long_of(row, name)
    if of is datetime:
        return lambda row: row[name].astimezone(UTC)
    return lambda row: row[name] if of is str else of(row[name])
