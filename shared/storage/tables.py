"""Access to one table of Table Storage, which is created if it does not exist: range reads, and
conditional writes by ETag. Also converts names and values to keys and properties."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any
from urllib.parse import quote

from azure.core import AsyncPipelineClient
from azure.core.exceptions import HttpResponseError
from azure.core.pipeline import policies
from azure.core.rest import HttpRequest
from azure.data.tables.aio import TableServiceClient

from shared.azure.credentials import credential_for
from shared.azure.refusals import REFUSED, table_access
from shared.azure.transport import ServerTimeTransport, server_time
from shared.settings.connections import StorageConnection
from shared.storage.table_requests import (
    HEADERS,
    Row,
    RowOperation,
    StoredRow,
    error_of,
    literal,
    put_operation,
    row_url,
    stored_row,
    transaction,
    versions,
)
from shared.values.redaction import redacting
from shared.values.row_values import TEXT_LENGTH_MAX

TRANSACTION_ROWS_MAX = 100
PAGE_ROWS_MAX = 1000
NEXT = ("NextPartitionKey", "NextRowKey")
MARK = "mark"
BYTES_MAX = 60_000
CONFLICTS = (404, 409, 412)
"""HTTP statuses for a row that is gone, that already exists, or that changed."""

ANY_VERSION = "*"
NOT_FOUND = 404
TABLE_NOT_FOUND = "TableNotFound"
TABLE_EXISTS = "TableAlreadyExists"
IDLE = (
    policies.ProxyPolicy,  # the transport knows the proxy
    policies.AsyncRedirectPolicy,
    policies.ContentDecodePolicy,
    policies.CustomHookPolicy,
    policies.NetworkTraceLoggingPolicy,
    policies.HttpLoggingPolicy,
)
"""The client's policies that this module does not need, a quarter of a request's CPU."""


class RowConflict(Exception):
    """A row is gone, already exists, or changed since it was read; nothing was written."""


@redacting
class Table:
    """A table. A row's version is its ETag, None if there is none. Methods raise AccessRefused."""

    def __init__(self, connection: StorageConnection, name: str) -> None:
        self.access = table_access(connection, name)
        self._url, self._client = _client(connection)
        self._name, self._table_url = name, f"{self._url}/{name}"

    async def get(self, partition_key: str, row_key: str) -> StoredRow | None:
        """The row. None if the row, or the whole table, does not exist."""
        url = row_url(self._table_url, partition_key, row_key)
        response, error = await self._sent(HttpRequest("GET", url, headers=HEADERS))
        if error and error.status_code != NOT_FOUND:
            raise error
        return None if error else stored_row(response.json())

    async def rows(
        self, condition: str, limit: int | None = None, select: Sequence[str] = ()
    ) -> list[Any]:
        """The rows that meet the condition, by key: at most ``limit``, all properties or
        ``select``."""
        rows: list[StoredRow] = []
        wanted: dict[str, Any] = {"$filter": condition, "$select": ",".join(select)}
        wanted["$top"] = limit and min(limit, PAGE_ROWS_MAX)
        while True:
            query = "&".join(
                f"{name}={quote(str(of), safe='')}" for name, of in wanted.items() if of
            )
            request = HttpRequest("GET", f"{self._table_url}()?{query}", headers=HEADERS)
            response = await self._answer(request)
            rows += map(stored_row, response.json()["value"])
            after = {name: response.headers.get(f"x-ms-continuation-{name}") for name in NEXT}
            if not any(after.values()) or (limit is not None and len(rows) >= limit):
                return rows[:limit]
            wanted |= after

    async def range(
        self,
        partition_key: str,
        start: str = "",
        end: str | None = None,
        limit: int | None = None,
        at_least: Mapping[str, Any] | None = None,
        select: Sequence[str] = (),
    ) -> list[Any]:
        """The rows of a partition from key ``start`` (included) to ``end`` (not included) whose
        properties are at least the values in ``at_least``."""
        condition = f"PartitionKey eq {literal(partition_key)} and RowKey ge {literal(start)}"
        if end is not None:
            condition += f" and RowKey lt {literal(end)}"
        for name, value in (at_least or {}).items():
            condition += f" and {name} ge {literal(value)}"
        return await self.rows(condition, limit, select)

    async def all_rows(self, select: Sequence[str] = ()) -> list[Any]:
        return await self.rows("PartitionKey ge ''", select=select)

    async def keys(self, partition_key: str, start: str, end: str, limit: int) -> list[str]:
        """At most ``limit`` row keys from the start of a range."""
        rows = await self.range(partition_key, start, end, limit, select=["RowKey"])
        return [row["RowKey"] for row in rows]

    async def put(self, row: Row, version: str | None) -> str:
        """Replace the row of this version (None: insert), return the new. Raises RowConflict."""
        return await self._write(put_operation(row, version))

    async def put_marked(self, row: Row, version: str | None) -> str:
        """Like ``put``, but with a unique mark in the row, by which this call recognizes its own
        write if a reply is lost and the client repeats the request."""
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
        await self._write(RowOperation("PUT", row))

    async def submit(self, operations: Sequence[RowOperation]) -> Sequence[str]:
        """Execute operations on rows of one partition, all or none, and return the new version of
        each; that of a deleted row is empty. Raises RowConflict."""
        if not operations:
            return []  # the service rejects an empty transaction
        request = transaction(self._url, self._name, operations)
        return versions(await self._answer(request, operations[0].row, len(operations)))

    async def delete(self, rows: Sequence[Row]) -> None:
        """Delete rows of one partition. Rows may be gone already, or occur twice in ``rows``."""
        distinct = list({row["RowKey"]: row for row in rows}.values())
        for start in range(0, len(distinct), TRANSACTION_ROWS_MAX):
            chunk = distinct[start : start + TRANSACTION_ROWS_MAX]
            try:
                await self.submit([RowOperation("DELETE", row, ANY_VERSION) for row in chunk])
            except RowConflict:
                for row in chunk:
                    with suppress(RowConflict):
                        await self._write(RowOperation("DELETE", row, ANY_VERSION))

    def now(self) -> datetime:
        """The service's time of the last response that this task received."""
        return server_time()

    async def create(self) -> None:
        body = {"TableName": self._name}
        request = HttpRequest("POST", f"{self._url}/Tables", headers=HEADERS, json=body)
        _, error = await self._sent(request)
        if error and error.error_code != TABLE_EXISTS:  # type: ignore[attr-defined]
            raise error

    async def close(self) -> None:
        await self._client.close()

    async def _write(self, operation: RowOperation) -> str:
        answer = await self._answer(operation.request(self._table_url), operation.row)
        return str(answer.headers.get("ETag", ""))

    async def _answer(self, request: HttpRequest, row: Row | None = None, count: int = 0) -> Any:
        """The answer to one or ``count`` operations; creates the table. Raises RowConflict."""
        response, error = await self._sent(request, count)
        if error and error.error_code == TABLE_NOT_FOUND:  # type: ignore[attr-defined]
            await self.create()
            response, error = await self._sent(request, count)
        if error is None:
            return response
        of_table = error.error_code.startswith("Table")  # type: ignore[attr-defined]
        if row is not None and error.status_code in CONFLICTS and not of_table:
            raise RowConflict(row["RowKey"]) from error
        raise error

    async def _sent(
        self, request: HttpRequest, count: int = 0
    ) -> tuple[Any, HttpResponseError | None]:
        """The response, and its error, if any. Raises AccessRefused."""
        with self.access.explained():
            response = await self._client.send_request(request)
            error = error_of(response, count)
            if error and error.status_code in REFUSED:
                raise error
            return response, error


def _client(connection: StorageConnection) -> tuple[str, AsyncPipelineClient[Any, Any]]:
    """The address of the tables, and a client with the SDK's own login, retries and tracing."""
    transport, url = ServerTimeTransport(), connection.table_url
    if connection.connection_string:
        service = TableServiceClient.from_connection_string(
            connection.connection_string, transport=transport, retry_total=3
        )
    else:
        credential = credential_for(url, connection.identity)
        service = TableServiceClient(
            endpoint=url, credential=credential, transport=transport, retry_total=3
        )
    url = service.url.partition("?")[0].rstrip("/")
    used = [each for each in service._policies if not isinstance(each, IDLE)]
    return url, AsyncPipelineClient(url, transport=transport, policies=used)


# --- keys and properties: 64-bit whole numbers, times, and texts and bytes of any length ---


def long_fields(name: str, value: str | bytes | None) -> Row:
    """The properties ``name``, ``name_1`` … that hold a text or bytes of any length."""
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
    r"""A readable key without ``/``, ``\``, ``#``, ``?`` and control characters; one per text."""
    return quote(text, safe=" ,:@!$").replace("%", "=")


def joined(*names: str) -> str:
    """The key for several names, separated by ``|``, which ``key`` escapes."""
    return "|".join([key(name) for name in names])
