"""Rows as this app and the client of the service write and read them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from azure.core.exceptions import HttpResponseError
from azure.data.tables import EdmType

from local.azurite import Azurite
from shared.settings.connections import StorageConnection
from shared.storage.table_requests import Operation, page_request, put_operation, transaction, whole
from shared.storage.tables import RowConflict, Table, table_service

KEYS = {"PartitionKey": "p'% ü", "RowKey": "r'|=:@ é"}
VALUES = {
    "text": "é\r\n--batch_'\"\\u2028",
    "empty": "",
    "small": -(2**31) + 1,
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
    async with table_service(StorageConnection("Storage", azurite.connection_string)) as service:
        client = service.get_table_client("Anything")
        seen = await client.get_entity(KEYS["PartitionKey"], KEYS["RowKey"])
        assert seen["large"].edm_type is EdmType.INT64
        assert {name: seen[name] for name in VALUES} == VALUES
        assert read.metadata == {name: seen.metadata[name] for name in ("etag", "timestamp")}
        await client.upsert_entity({**KEYS, **VALUES, "large": (2**53 + 1, EdmType.INT64)})
        rows = await table.rows("text eq @text and time ge @time", VALUES)
        assert rows == [await table.get(KEYS["PartitionKey"], KEYS["RowKey"])] == [read]


async def test_each_request_names_the_version_of_the_client(table: Table) -> None:
    """With a token, storage refuses a request without a version."""
    row = put_operation({"PartitionKey": "p", "RowKey": "r"}, None)
    expected = table._service.api_version
    for request in (row.request(""), page_request("", "", {}), transaction("", "T", [row])):
        assert request.headers["x-ms-version"] == expected


async def test_a_transaction_writes_all_rows_or_none(table: Table) -> None:
    first, second, third = ({"PartitionKey": "all", "RowKey": each} for each in "123")
    inserted, _ = await table.submit(
        [put_operation({**first, "n": 1}, None), Operation("PUT", second)]
    )
    changed, gone = await table.submit(
        [Operation("PATCH", {**first, "m": 2}, inserted), Operation("DELETE", second, "*")]
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
        await table.submit([Operation("PUT", row), Operation("PUT", row)])
    assert (twice.value.status_code, twice.value.error_code) == (400, "InvalidDuplicateRow")  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="large"):
        await table.overwrite({**row, "large": 2**31})
    assert await table.range("errors") == []


async def test_all_pages_are_read_and_a_page_request_has_the_limits(table: Table) -> None:
    rows = [{"PartitionKey": "pages'", "RowKey": f"{n:04d}"} for n in range(1050)]
    for start in range(0, len(rows), 100):
        await table.submit([put_operation(row, None) for row in rows[start : start + 100]])
    assert [row["RowKey"] for row in await table.range("pages'")] == [r["RowKey"] for r in rows]
    assert len(await table.range("pages'", limit=1001)) == 1001
    await table.delete([*rows, rows[0]])
    await table.delete(rows[:2])
    assert await table.range("pages'") == []
    request = page_request("http://x/T", "a ge @a", {"a": "it's"}, **{"$top": 5, "$select": ""})
    assert request.url == "http://x/T()?$filter=a%20ge%20%27it%27%27s%27&$top=5"
