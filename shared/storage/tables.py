"""Access to one table of Table Storage: range reads, and conditional writes by ETag.

The table is created if it does not exist. The module also converts names and values to the keys and
properties of rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote

from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.data.tables import EdmType, TableTransactionError, UpdateMode
from azure.data.tables.aio import TableServiceClient

from shared.azure.credentials import credential_for
from shared.azure.refusals import explaining_refusals, table_access
from shared.azure.transport import ServerTimeTransport, server_time
from shared.settings.connections import StorageConnection
from shared.values.redaction import redacting

TRANSACTION_ROWS_MAX = 100
PAGE_ROWS_MAX = 1000
MARK = "mark"
TEXT_LENGTH_MAX = 16_000
"""Maximum number of characters in one property. A property holds 64 KiB in UTF-16, and a character
may take two units of two bytes each."""
BYTES_MAX = 60_000
CONFLICTS = (404, 409, 412)
"""HTTP statuses for a row that is gone, that already exists, or that changed. Each means that what
the caller read is out of date."""

T = TypeVar("T")
Row = dict[str, Any]
Operation = tuple[str, Row] | tuple[str, Row, Mapping[str, Any]]


class RowConflict(Exception):
    """A row is gone, already exists, or changed since it was read; nothing was written."""


@redacting
@explaining_refusals
class Table:
    """A table of a storage account. A row's version is its ETag, or None if it does not exist.

    All methods raise AccessRefused.
    """

    def __init__(self, connection: StorageConnection, name: str) -> None:
        self.access = table_access(connection, name)
        self._service = table_service(connection)
        self._table = self._service.get_table_client(name)
        self._name = name

    async def get(self, partition_key: str, row_key: str) -> Any | None:
        """The row. None if the row, or the whole table, does not exist."""
        try:
            return await self._table.get_entity(partition_key, row_key)
        except ResourceNotFoundError:
            return None

    async def rows(
        self,
        query: str,
        parameters: Mapping[str, Any],
        limit: int | None = None,
        select: list[str] | None = None,
    ) -> list[Any]:
        """The rows that match the query, in the order of their keys.

        Returns at most ``limit`` rows; None means all rows. ``select`` names the properties to
        return; None means all properties.
        """
        return await self._creating(lambda: self._first_rows(query, parameters, limit, select))

    async def range(
        self,
        partition_key: str,
        start: str = "",
        end: str | None = None,
        limit: int | None = None,
        at_least: Mapping[str, Any] | None = None,
        select: list[str] | None = None,
    ) -> list[Any]:
        """The rows of a partition from key ``start`` (included) to ``end`` (not included).

        Returns only rows whose properties are at least the values in ``at_least``.
        """
        query = "PartitionKey eq @partition and RowKey ge @start"
        bounds: Row = {"partition": partition_key, "start": start}
        if end is not None:
            query, bounds["end"] = f"{query} and RowKey lt @end", end
        for name, value in (at_least or {}).items():
            query, bounds[name] = f"{query} and {name} ge @{name}", value
        return await self.rows(query, bounds, limit, select)

    async def all_rows(self, select: list[str] | None = None) -> list[Any]:
        return await self.rows("PartitionKey ge ''", {}, select=select)

    async def keys(self, partition_key: str, start: str, end: str, limit: int) -> list[str]:
        """At most ``limit`` row keys from the start of a range. The other properties of the rows
        are not read."""
        rows = await self.range(partition_key, start, end, limit, select=["RowKey"])
        return [row["RowKey"] for row in rows]

    async def put(self, row: Row, version: str | None) -> str:
        """Replace the row if it still has this version. If ``version`` is None, insert the row.

        Returns the new version. Raises RowConflict.
        """
        try:
            if version is None:
                answer = await self._creating(lambda: self._table.create_entity(row))
            else:
                answer = await self._table.update_entity(
                    row, mode=UpdateMode.REPLACE, **_only_if(version)
                )
        except HttpResponseError as error:
            if error.status_code in CONFLICTS:
                raise RowConflict(row["RowKey"]) from error
            raise
        return str(answer["etag"])

    async def put_marked(self, row: Row, version: str | None) -> str:
        """Like ``put``, but with a unique mark in the row.

        If the reply to a write is lost, the client repeats the request, which conflicts with the
        client's own write. The mark shows that this call wrote the row.
        """
        marked = {**row, MARK: uuid.uuid4().hex}
        try:
            return await self.put(marked, version)
        except RowConflict:
            current = await self.get(row["PartitionKey"], row["RowKey"])
            if current is None or current.get(MARK) != marked[MARK]:
                raise
            return str(current.metadata["etag"])

    async def overwrite(self, row: Row) -> None:
        """Insert or replace a row unconditionally."""
        await self._creating(lambda: self._table.upsert_entity(row, mode=UpdateMode.REPLACE))

    async def submit(self, operations: Sequence[Operation]) -> Sequence[Mapping[str, Any]]:
        """Execute operations on rows of one partition: all of them or none. Raises RowConflict."""
        if not operations:
            return []  # the service rejects an empty transaction
        try:
            return await self._table.submit_transaction(operations)
        except TableTransactionError as error:
            if error.status_code in CONFLICTS:
                raise RowConflict(str(error.message)) from error
            raise

    async def delete(self, rows: Sequence[Row]) -> None:
        """Delete rows of one partition. Rows may be gone already, or occur twice in ``rows``."""
        distinct = list({row["RowKey"]: row for row in rows}.values())
        for start in range(0, len(distinct), TRANSACTION_ROWS_MAX):
            chunk = distinct[start : start + TRANSACTION_ROWS_MAX]
            try:
                await self.submit([("delete", row) for row in chunk])
            except RowConflict:
                for row in chunk:
                    await self._table.delete_entity(row)

    def now(self) -> datetime:
        """The service's time of the last response that this task received."""
        return server_time()

    async def create(self) -> None:
        await self._service.create_table_if_not_exists(self._name)

    async def close(self) -> None:
        await self._service.close()

    async def _creating(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of a call, before which the table is created if it does not exist."""
        try:
            return await call()
        except ResourceNotFoundError:
            await self.create()
            return await call()

    async def _first_rows(
        self,
        query: str,
        parameters: Mapping[str, Any],
        limit: int | None,
        select: list[str] | None,
    ) -> list[Any]:
        pages = self._table.query_entities(
            query,
            parameters=dict(parameters),
            results_per_page=limit and min(limit, PAGE_ROWS_MAX),
            select=select,
        ).by_page()
        rows: list[Any] = []
        async for page in pages:
            rows += [row async for row in page]
            if limit is not None and len(rows) >= limit:
                break
        return rows[:limit]


def put_operation(row: Row, version: str | None) -> Operation:
    """An operation that replaces the row if it still has this version. If ``version`` is None, the
    operation inserts the row."""
    if version is None:
        return ("create", row)
    return ("update", row, {"mode": UpdateMode.REPLACE, **_only_if(version)})


def merge_operation(row: Row, version: str) -> Operation:
    """An operation that changes the given properties if the row still has this version."""
    return ("update", row, {"mode": UpdateMode.MERGE, **_only_if(version)})


def delete_operation(row: Row, version: str) -> Operation:
    """An operation that deletes the row if it still has this version."""
    return ("delete", row, _only_if(version))


def _only_if(version: str) -> dict[str, Any]:
    return {"etag": version, "match_condition": MatchConditions.IfNotModified}


def table_service(connection: StorageConnection) -> TableServiceClient:
    transport = ServerTimeTransport()
    if connection.connection_string:
        return TableServiceClient.from_connection_string(
            connection.connection_string, transport=transport, retry_total=3
        )
    url = connection.table_url
    credential = credential_for(url, connection.identity)
    return TableServiceClient(
        endpoint=url, credential=credential, transport=transport, retry_total=3
    )


# --- keys and properties: 64-bit whole numbers, times, and texts and bytes of any length ---


def whole(number: int) -> tuple[int, EdmType]:
    """A whole number as a 64-bit property. The client writes a plain int with 32 bits."""
    return number, EdmType.INT64


def number_of(value: Any) -> int:
    """The whole number of a property, which the client returns plain or wrapped with its type."""
    return int(getattr(value, "value", value))


def time_of(value: datetime) -> datetime:
    """Convert the client's subclass of datetime to a plain datetime in UTC."""
    at = value.astimezone(UTC)
    return datetime.combine(at.date(), at.timetz())


def long_fields(name: str, value: str | bytes | None) -> Row:
    """The properties ``name``, ``name_1`` … that hold a text or bytes of any length; empty for
    None."""
    if value is None:
        return {}
    length_max = TEXT_LENGTH_MAX if isinstance(value, str) else BYTES_MAX
    starts = range(0, max(len(value), 1), length_max)
    return {_name(name, n): value[i : i + length_max] for n, i in enumerate(starts)}


def long_of(row: Mapping[str, Any], name: str) -> Any:
    """The text or bytes that ``long_fields`` split; None if there are none."""
    pieces: list[Any] = []
    while (piece := row.get(_name(name, len(pieces)))) is not None:
        pieces.append(piece)
    return pieces[0][:0].join(pieces) if pieces else None


def _name(name: str, number: int) -> str:
    return name if number == 0 else f"{name}_{number}"


def key(text: str) -> str:
    """The key for a text. It is readable where possible, and different texts have different keys.

    ``/``, ``\\``, ``#``, ``?`` and control characters are escaped, because a key must not contain
    them.
    """
    return quote(text, safe=" ,:@!$").replace("%", "=")


def joined(*names: str) -> str:
    """The key for several names, separated by ``|``. ``key`` escapes each name, so an escaped
    name contains no ``|``."""
    return "|".join([key(name) for name in names])
