"""One table: reads of one range, writes under the version that was read; made where missing.

And names and values as the keys and properties of its rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any
from urllib.parse import quote

from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.data.tables import EdmType, TableTransactionError, UpdateMode
from azure.data.tables.aio import TableServiceClient

from shared.adapters.azure.credentials import credential_for
from shared.adapters.azure.transport import ServerTimeTransport
from shared.settings.connections import StorageConnection
from shared.values.redaction import redacting

TRANSACTION_ROWS_MAX = 100
PAGE_ROWS_MAX = 1000
RANGE = "PartitionKey eq @partition and RowKey ge @start and RowKey lt @end"
MARK = "mark"
TEXT_LENGTH_MAX = 16_000
"""Characters of one property, which holds 64 KiB in UTF-16; each may take two units."""
BYTES_MAX = 60_000
CONFLICTS = (404, 409, 412)
"""Row gone, row there already, row changed: each means that what was read is out of date."""

Row = dict[str, Any]
Operation = tuple[str, Row] | tuple[str, Row, Mapping[str, Any]]


class RowConflict(Exception):
    """A row is gone, is there already, or has changed; nothing was written."""


@redacting
class Table:
    """A table of a storage account. Versions are ETags; None is that of a row that is not there."""

    def __init__(self, connection: StorageConnection, name: str) -> None:
        self._service = table_service(connection)
        self._table = self._service.get_table_client(name)
        self._name = name

    async def get(self, partition_key: str, row_key: str) -> Any | None:
        """The row; None where there is none, or no table yet."""
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
        """All rows that match, or the first ``limit``, by key; of each only what is selected."""
        try:
            return await self._first_rows(query, parameters, limit, select)
        except ResourceNotFoundError:
            await self.create()
            return await self._first_rows(query, parameters, limit, select)

    async def range(
        self,
        partition_key: str,
        start: str,
        end: str,
        limit: int | None = None,
        at_least: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """The rows of a partition from key ``start`` on and before ``end``, of them those whose
        properties are ``at_least`` so much."""
        query, bounds = RANGE, {"partition": partition_key, "start": start, "end": end}
        for name, value in (at_least or {}).items():
            query, bounds[name] = f"{query} and {name} ge @{name}", value
        return await self.rows(query, bounds, limit)

    async def keys(self, partition_key: str, start: str, end: str, limit: int) -> list[str]:
        """The row keys of a range, and nothing else of the rows."""
        bounds = {"partition": partition_key, "start": start, "end": end}
        return [row["RowKey"] for row in await self.rows(RANGE, bounds, limit, ["RowKey"])]

    async def put(self, row: Row, version: str | None) -> str:
        """Write a row over the one of that version; answers the new one. Raises RowConflict."""
        try:
            if version is None:
                answer = await self._insert(row)
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
        """The same with a mark of its own in the row: a client that has lost a reply repeats the
        request, is told of a conflict, and knows by the mark that it was its own doing."""
        marked = {**row, MARK: uuid.uuid4().hex}
        try:
            return await self.put(marked, version)
        except RowConflict:
            standing = await self.get(row["PartitionKey"], row["RowKey"])
            if standing is None or standing.get(MARK) != marked[MARK]:
                raise
            return str(standing.metadata["etag"])

    async def overwrite(self, row: Row) -> None:
        """Write a row, whatever stood there before."""
        try:
            await self._table.upsert_entity(row, mode=UpdateMode.REPLACE)
        except ResourceNotFoundError:
            await self.create()
            await self._table.upsert_entity(row, mode=UpdateMode.REPLACE)

    async def submit(self, operations: Sequence[Operation]) -> Sequence[Mapping[str, Any]]:
        """Write all rows of one partition or none. Raises RowConflict."""
        if not operations:
            return []  # the service has no empty transactions
        try:
            return await self._table.submit_transaction(operations)
        except TableTransactionError as error:
            if error.status_code in CONFLICTS:
                raise RowConflict(str(error.message)) from error
            raise

    async def delete(self, rows: Sequence[Row]) -> None:
        """Delete rows of one partition; those that are gone already, or are given twice, do not
        matter."""
        once = list({row["RowKey"]: row for row in rows}.values())
        for start in range(0, len(once), TRANSACTION_ROWS_MAX):
            chunk = once[start : start + TRANSACTION_ROWS_MAX]
            try:
                await self.submit([("delete", row) for row in chunk])
            except RowConflict:
                for row in chunk:
                    await self._table.delete_entity(row)

    async def create(self) -> None:
        await self._service.create_table_if_not_exists(self._name)

    async def close(self) -> None:
        await self._service.close()

    async def _insert(self, row: Row) -> Mapping[str, Any]:
        try:
            return await self._table.create_entity(row)
        except ResourceNotFoundError:
            await self.create()
            return await self._table.create_entity(row)

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


def guarded(row: Row, version: str | None) -> Operation:
    """The operation of a transaction that writes a row over the one of that version."""
    if version is None:
        return ("create", row)
    return ("update", row, {"mode": UpdateMode.REPLACE, **_only_if(version)})


def changed(row: Row, version: str) -> Operation:
    """The operation of a transaction that changes some values of the row of that version."""
    return ("update", row, {"mode": UpdateMode.MERGE, **_only_if(version)})


def removal(row: Row, version: str) -> Operation:
    """The operation of a transaction that deletes the row of that version."""
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
    credential = credential_for(url, connection.client_id)
    return TableServiceClient(
        endpoint=url, credential=credential, transport=transport, retry_total=3
    )


# --- keys and properties: values are whole numbers of 64 bits, long texts and bytes, and times ---


def whole(number: int) -> tuple[int, EdmType]:
    """A number that may need 64 bits; the client takes a plain one for 32."""
    return number, EdmType.INT64


def number_of(value: Any) -> int:
    return int(getattr(value, "value", value))


def time_of(value: datetime) -> datetime:
    """The client's own kind of time as a plain one."""
    at = value.astimezone(UTC)
    return datetime(
        at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond, tzinfo=UTC
    )


def text_fields(name: str, text: str | None) -> Row:
    """A text of any length over the properties ``name``, ``name_1`` …; nothing for None."""
    return _pieces(name, text, TEXT_LENGTH_MAX)


def text_of(row: Mapping[str, Any], name: str) -> str | None:
    found = list(_found(row, name))
    return "".join(found) if found else None


def bytes_fields(name: str, data: bytes | None) -> Row:
    """Bytes of any length over the properties ``name``, ``name_1`` …; nothing for None."""
    return _pieces(name, data, BYTES_MAX)


def bytes_of(row: Mapping[str, Any], name: str) -> bytes | None:
    found = list(_found(row, name))
    return b"".join(found) if found else None


def _pieces(name: str, value: str | bytes | None, length_max: int) -> Row:
    if value is None:
        return {}
    starts = range(0, max(len(value), 1), length_max)
    return {_name(name, n): value[i : i + length_max] for n, i in enumerate(starts)}


def _found(row: Mapping[str, Any], name: str) -> Iterator[Any]:
    for n in count():
        piece = row.get(_name(name, n))
        if piece is None:
            return
        yield piece


def _name(name: str, number: int) -> str:
    return name if number == 0 else f"{name}_{number}"


def key(text: str) -> str:
    """Any text as a key: readable where it can be, and another one for each text.

    A key knows neither ``/`` nor ``\\``, ``#``, ``?`` and controls.
    """
    return quote(text, safe=" ,:@!$").replace("%", "=")


def joined(*names: str) -> str:
    """Several names as one key; the separator is in none of them once they are keys."""
    return "|".join([key(name) for name in names])
