"""Rows as this app and the client of the service write and read them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.core.rest import HttpRequest
from azure.data.tables import EdmType
from azure.data.tables.aio import TableServiceClient

from local.azure_apis.loopback_server import LoopbackServer, Reply, Request
from local.azurite import Azurite
from shared.azure.refusals import AccessRefused
from shared.settings.connections import StorageConnection
from shared.storage.table_requests import Row, RowOperation, literal, put_operation, whole
from shared.storage.tables import RowConflict, Table

KEYS = {"PartitionKey": "p'% ü", "RowKey": "r'|=:@ é"}
VALUES: dict[str, Any] = {
    "text": "é\r\n--batch_'\"\\u2028",
    "empty": "",
    "small": -(2**31),
    "number": 5.0,
    "tiny": 1e-300,
    "true": True,
    "time": datetime(2026, 3, 1, 12, 30, 0, 123456, UTC),
    "bytes": bytes(range(256)),
}


@pytest.fixture
async def table(azurite: Azurite) -> AsyncIterator[Table]:
    table = Table(StorageConnection("Storage", azurite.connection_string), "Anything")
    yield table
    await table.close()


async def test_a_row_is_the_same_whoever_writes_and_reads_it(
    table: Table, azurite: Azurite
) -> None:
    own = {**KEYS, **VALUES, "none": None, "large": whole(2**53 + 1)}
    await table.overwrite(own)
    read = await table.get(KEYS["PartitionKey"], KEYS["RowKey"])
    assert read == {**KEYS, **VALUES, "large": 2**53 + 1}
    async with TableServiceClient.from_connection_string(azurite.connection_string) as service:
        client = service.get_table_client("Anything")
        seen = await client.get_entity(KEYS["PartitionKey"], KEYS["RowKey"])
        assert seen["large"].edm_type is EdmType.INT64
        assert {name: seen[name] for name in VALUES} == VALUES
        assert read.metadata == {name: seen.metadata[name] for name in ("etag", "timestamp")}
        await client.upsert_entity({**KEYS, **VALUES, "large": (2**53 + 1, EdmType.INT64)})
        text, time = literal(VALUES["text"]), literal(VALUES["time"])
        rows = await table.rows(f"text eq {text} and time ge {time}")
        assert rows == [await table.get(KEYS["PartitionKey"], KEYS["RowKey"])] == [read]


async def test_each_request_names_the_version_of_the_client(table: Table, azurite: Azurite) -> None:
    """With a token, storage refuses a request without a version."""
    sent: list[HttpRequest] = []
    send = table._client.send_request
    table._client.send_request = lambda request: sent.append(request) or send(request)  # type: ignore
    row = {"PartitionKey": "p", "RowKey": "r"}
    await table.overwrite(row)
    await table.submit([RowOperation("PUT", row)])
    await table.get("p", "r")
    await table.all_rows()
    async with TableServiceClient.from_connection_string(azurite.connection_string) as service:
        expected = service.api_version
    assert {request.headers["x-ms-version"] for request in sent} == {expected}
    assert len(sent) >= 4  # more if the table had to be created


async def test_a_transaction_writes_all_rows_or_none(table: Table) -> None:
    first, second, third = ({"PartitionKey": "all", "RowKey": each} for each in "123")
    inserted, _ = await table.submit(
        [put_operation({**first, "n": 1}, None), RowOperation("PUT", second)]
    )
    changed, gone = await table.submit(
        [RowOperation("PATCH", {**first, "m": 2}, inserted), RowOperation("DELETE", second, "*")]
    )
    for version, row in ((inserted, first), (None, first), ("*", second)):
        with pytest.raises(RowConflict):
            await table.submit([put_operation(third, None), put_operation(row, version)])
    assert await table.range("all") == [{**first, "n": 1, "m": 2}]
    assert (await table.keys("all", "", "9", 9), gone) == (["1"], "")
    assert await table.put({**first, "n": 3}, changed) not in (changed, inserted)


async def test_an_error_of_the_service_keeps_its_status_and_its_code(table: Table) -> None:
    row = {"PartitionKey": "errors", "RowKey": "1"}
    with pytest.raises(HttpResponseError, match="InvalidDuplicateRow") as twice:
        await table.submit([RowOperation("PUT", row), RowOperation("PUT", row)])
    assert (twice.value.status_code, twice.value.error_code) == (400, "InvalidDuplicateRow")  # type: ignore[attr-defined]
    assert await table.range("errors") == []


async def test_all_pages_are_read_and_a_limit_holds(table: Table) -> None:
    rows: list[Row] = [{"PartitionKey": "pages'", "RowKey": f"{n:04d}"} for n in range(1050)]
    for start in range(0, len(rows), 100):
        await table.submit([put_operation(row, None) for row in rows[start : start + 100]])
    assert [row["RowKey"] for row in await table.range("pages'")] == [r["RowKey"] for r in rows]
    assert len(await table.range("pages'", limit=1001)) == 1001
    await table.delete([*rows, rows[0]])
    await table.delete(rows[:2])
    assert await table.range("pages'") == []
    assert await table.range("pages'", limit=5, select=["RowKey"]) == []


class Answering(LoopbackServer):
    """A service that gives one answer to all requests."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__()
        form = "application/xml" if body.startswith("<") else "application/json"
        self.reply = Reply(status, body, form, {"x-ms-version": "2019-02-02"})

    @property
    def table(self) -> Table:
        url = self.base_url.replace("https", "http")
        connection = f"AccountName=a;AccountKey=YQ==;TableEndpoint={url}/a"
        return Table(StorageConnection("Storage", connection), "Anything")

    def handle(self, request: Request) -> Reply:  # noqa: ARG002
        return self.reply

    def unauthorized(self, reason: str) -> Reply:  # noqa: ARG002
        return self.reply


JSON = '{"odata.error":{"code":"%s","message":{"lang":"en-US","value":"gone > now"}}}'
XML = (
    '<?xml version="1.0"?><m:error xmlns:m="http://x"><m:code>%s</m:code>'
    '<m:message xml:lang="en-US">gone > now</m:message></m:error>'
)
IN_PART = (
    "--batch\r\nContent-Type: multipart/mixed; boundary=c\r\n\r\n--c\r\n"
    "Content-Type: application/http\r\n\r\nHTTP/1.1 %d X\r\nContent-Type: any\r\n\r\n"
    "%s\r\n--c--\r\n--batch--"
)


@pytest.mark.parametrize("form", [JSON, XML])
@pytest.mark.parametrize("in_part", [False, True])
@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (403, "AuthorizationFailure", AccessRefused),
        (409, "EntityAlreadyExists", RowConflict),
        (409, "TableBeingDeleted", HttpResponseError),  # no row has changed
        (404, "TableNotFound", HttpResponseError),
        (413, "RequestBodyTooLarge", HttpResponseError),
    ],
)
async def test_a_refusal_is_told_apart_by_the_code_in_its_body(
    form: str, in_part: bool, status: int, code: str, error: type[Exception]
) -> None:
    body = form % code
    body = IN_PART % (status, body) if in_part else body
    async with Answering(202 if in_part else status, body) as server:
        table = server.table
        table.create = lambda: asyncio.sleep(0)  # type: ignore[method-assign]
        row = {"PartitionKey": "p", "RowKey": "r"}
        with pytest.raises(error) as refused:
            await table.submit([RowOperation("PUT", row)] * (1 + in_part))
        if not in_part:
            with pytest.raises(error):
                await table.overwrite(row)
        if error is AccessRefused:
            assert f"403 {code}" in str(refused.value)
        elif error is HttpResponseError:
            assert str(refused.value).startswith(f"{status} {code}: gone ")
            assert refused.value.status_code == status  # type: ignore[attr-defined]
        await table.close()


async def test_a_row_that_cannot_be_stored_is_named(table: Table) -> None:
    for value in (2**31, -(2**31) - 1, float("nan"), float("inf"), object()):
        with pytest.raises(TypeError, match="large cannot be stored"):
            await table.overwrite({"PartitionKey": "p", "RowKey": "r", "large": value})


async def test_a_transaction_without_all_its_answers_is_an_error() -> None:
    async with Answering(202, "--batch--") as server:
        cut = server.table
        with pytest.raises(HttpResponseError):
            await cut.submit([RowOperation("PUT", {"PartitionKey": "p", "RowKey": "r"})])
        await cut.close()
