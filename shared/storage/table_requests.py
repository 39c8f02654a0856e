"""The requests and replies of Table Storage. No I/O.

The client's own writer and parser of transactions take most of the CPU time of a commit.
https://learn.microsoft.com/rest/api/storageservices/performing-entity-group-transactions
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from azure.core.exceptions import HttpResponseError
from azure.core.rest import HttpRequest

Row = dict[str, Any]
"""The properties of a row by name. One that is None is not written."""
INT32_MAX = 2**31 - 1
INT64, DOUBLE, TIME, BINARY = "Edm.Int64", "Edm.Double", "Edm.DateTime", "Edm.Binary"
READERS: Mapping[str, Any] = {
    INT64: int,
    DOUBLE: float,
    TIME: datetime.fromisoformat,
    BINARY: base64.b64decode,
}
HEADERS = {
    "Accept": "application/json;odata=minimalmetadata",
    "Content-Type": "application/json",
    "DataServiceVersion": "3.0",
    "x-ms-version": "2019-02-02",  # storage takes no token without a version
}
FAILED = 300
PARAMETER = re.compile(r"@(\w+)")
PART = re.compile(rb"\r\n\r\nHTTP/1\.1 (\d{3})[^\r\n]*\r\n((?:[^\r\n]+\r\n)*)")
ETAG = re.compile(rb"^etag: *([^\r\n]+)", re.IGNORECASE | re.MULTILINE)


class StoredRow(Row):
    """A row that was read. ``metadata`` has its ``etag``, and the time of its last write as
    ``timestamp``, which is None if only other properties were selected."""

    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """A write of one row: POST inserts, PUT replaces, PATCH changes the given properties.

    The row must still have ``version``; ``*`` is any version. If ``version`` is None, PUT writes
    the row whether or not it exists.
    """

    method: str
    row: Row
    version: str | None = None

    def request(self, table_url: str) -> HttpRequest:
        row, match = self.row, {"If-Match": self.version} if self.version else {}
        url = table_url if self.method == "POST" else row_url(table_url, *_keys(row))
        content = "" if self.method == "DELETE" else json.dumps(_properties(row), allow_nan=False)
        return HttpRequest(self.method, url, headers={**HEADERS, **match}, content=content)


def put_operation(row: Row, version: str | None) -> Operation:
    """An operation that replaces the row if it still has this version. If ``version`` is None, the
    operation inserts the row."""
    return Operation("POST" if version is None else "PUT", row, version)


def whole(number: int) -> tuple[str, str]:
    """A whole number as a property with 64 bits. A plain one is written with 32 bits."""
    return str(number), INT64


def row_url(table_url: str, partition_key: str, row_key: str) -> str:
    partition, row = (quote(each.replace("'", "''"), safe="") for each in (partition_key, row_key))
    return f"{table_url}(PartitionKey='{partition}',RowKey='{row}')"


def page_request(
    table_url: str, condition: str, parameters: Mapping[str, Any], **options: Any
) -> HttpRequest:
    """The request for a page of rows. ``$top``, ``$select`` and what ``next_page`` returned for the
    page before are options, which may be empty."""
    condition = PARAMETER.sub(lambda name: _literal(parameters[name[1]]), condition)
    wanted = {"$filter": condition, **options}.items()
    text = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in wanted if value)
    return HttpRequest("GET", f"{table_url}()?{text}", headers=HEADERS)


def next_page(response: Any) -> dict[str, str]:
    """Where the next page begins; empty after the last page."""
    names = ("NextPartitionKey", "NextRowKey")
    found = {name: response.headers.get(f"x-ms-continuation-{name}") for name in names}
    return {name: value for name, value in found.items() if value}


def transaction(account_url: str, table: str, operations: Sequence[Operation]) -> HttpRequest:
    """The request that executes the operations, all of them or none."""
    batch, changes = f"batch_{uuid.uuid4()}", f"changeset_{uuid.uuid4()}"
    lines = [f"--{batch}", f"Content-Type: multipart/mixed; boundary={changes}", ""]
    for each in operations:
        request = each.request(f"{account_url}/{table}")
        lines += [f"--{changes}", "Content-Type: application/http"]
        lines += ["Content-Transfer-Encoding: binary", ""]
        lines += [f"{request.method} {request.url} HTTP/1.1", "Prefer: return-no-content"]
        lines += [f"{name}: {value}" for name, value in request.headers.items()]
        lines += ["", str(request.content)]
    lines += [f"--{changes}--", f"--{batch}--", ""]
    headers = {**HEADERS, "Content-Type": f"multipart/mixed; boundary={batch}"}
    content = "\r\n".join(lines).encode()
    return HttpRequest("POST", f"{account_url}/$batch", headers=headers, content=content)


def versions(response: Any, count: int) -> list[str]:
    """The new version of each row of a transaction; empty for a deleted one.

    Raises HttpResponseError.
    """
    parts = PART.findall(check(response).content)
    failed = next((int(status) for status, _ in parts if int(status) >= FAILED), None)
    if failed is not None or len(parts) != count:
        raise _error(response, failed or response.status_code)
    etags = [ETAG.search(headers) for _, headers in parts]
    return [etag[1].decode() if etag else "" for etag in etags]


def check(response: Any) -> Any:
    """The response. Raises HttpResponseError with the code and text of the service."""
    if response.status_code >= FAILED:
        raise _error(response, response.status_code)
    return response


def _error(response: Any, status: int) -> HttpResponseError:
    text = response.content.decode(errors="replace")
    code, message = response.headers.get("x-ms-error-code") or "", text
    with suppress(ValueError, KeyError, TypeError):  # a proxy may have written anything
        said = json.JSONDecoder().raw_decode(text, text.index('{"odata.error"'))[0]["odata.error"]
        code, message = said["code"], said["message"]["value"]
    error = HttpResponseError(f"{status} {code}: {message}", response=response)
    error.status_code, error.error_code = status, code  # type: ignore[attr-defined]
    return error


def stored_row(content: Mapping[str, Any]) -> StoredRow:
    """A row from its JSON."""
    row = StoredRow()
    for name, value in content.items():
        if "odata." not in name and name != "Timestamp":
            read = READERS.get(content.get(f"{name}@odata.type", ""))
            row[name] = read(value) if read else value
    written = content.get("Timestamp")
    timestamp = datetime.fromisoformat(written) if written else None
    row.metadata = {"etag": content.get("odata.etag"), "timestamp": timestamp}
    return row


def _keys(row: Row) -> tuple[str, str]:
    return row["PartitionKey"], row["RowKey"]


def _properties(row: Row) -> Row:
    properties: Row = {}
    for name, value in row.items():
        if value is not None:
            properties[name], kind = _property(name, value)
            if kind:
                properties[f"{name}@odata.type"] = kind
    return properties


def _property(name: str, value: Any) -> tuple[Any, str]:
    if isinstance(value, tuple):
        return value
    if isinstance(value, (str, bool)) or (isinstance(value, int) and abs(value) <= INT32_MAX):
        return value, ""
    if isinstance(value, float):
        return value, DOUBLE
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"), TIME
    if isinstance(value, bytes):
        return base64.b64encode(value).decode(), BINARY
    raise TypeError(f"{name} cannot be stored: {value!r}")


def _literal(value: str | datetime) -> str:
    """https://learn.microsoft.com/rest/api/storageservices/querying-tables-and-entities"""
    if isinstance(value, datetime):
        return f"datetime'{_property('', value)[0]}'"
    return "'" + value.replace("'", "''") + "'"
