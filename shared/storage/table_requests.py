"""The requests and replies of Table Storage, without I/O, because the client's own writer and
parser of transactions take most of the CPU time of a commit.
https://learn.microsoft.com/rest/api/storageservices/performing-entity-group-transactions"""

from __future__ import annotations

import base64
import json
import math
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from azure.core.exceptions import HttpResponseError
from azure.core.rest import HttpRequest

Row = dict[str, Any]
"""The properties of a row by name. One that is None is not written."""
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
PART_START = "Content-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n"
PART_HEADERS = "".join([f"{name}: {value}\r\n" for name, value in HEADERS.items()])
FAILED = 300
PART = re.compile(rb"\r\n\r\nHTTP/1\.1 (\d{3})[^\r\n]*\r\n((?:[^\r\n]+\r\n)*)")
ETAG = re.compile(rb"^etag: *([^\r\n]+)", re.IGNORECASE | re.MULTILINE)
CODE = re.compile(rb'code"?[:>]\s*"?(\w+)')
TEXT = re.compile(rb'(?:value"\s*:\s*"|<(?:\w+:)?message[^>]*>)([^"<\\]*)')
"""The code and the text of an error, in JSON or XML."""


class StoredRow(Row):
    """A row that was read. ``metadata`` has ``etag`` and the ``timestamp`` of its last write."""

    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RowOperation:
    """A write of one row: POST inserts, PUT replaces, PATCH changes the given properties. The row
    must still have ``version``, unless that is ``*`` or None."""

    method: str
    row: Row
    version: str | None = None

    def request(self, table_url: str) -> HttpRequest:
        url, match, content = self._parts(table_url)
        return HttpRequest(self.method, url, headers={**HEADERS, **match}, content=content)

    def part(self, table_url: str) -> str:
        """The same request as a part of a transaction."""
        url, match, content = self._parts(table_url)
        length = {"Content-Length": len(content)} if content else {}  # JSON is ASCII
        own = "".join([f"{name}: {value}\r\n" for name, value in {**length, **match}.items()])
        start = f"{PART_START}\r\n{self.method} {url} HTTP/1.1\r\nPrefer: return-no-content\r\n"
        return f"{start}{PART_HEADERS}{own}\r\n{content}"

    def _parts(self, table_url: str) -> tuple[str, dict[str, str], str]:
        row, match = self.row, {"If-Match": self.version} if self.version else {}
        keys = row["PartitionKey"], row["RowKey"]
        url = table_url if self.method == "POST" else row_url(table_url, *keys)
        return url, match, "" if self.method == "DELETE" else json.dumps(_properties(row))


def put_operation(row: Row, version: str | None) -> RowOperation:
    """Replaces the row if it still has this version, or inserts it (None)."""
    return RowOperation("POST" if version is None else "PUT", row, version)


def whole(number: int) -> tuple[str, str]:
    """A whole number with 64 bits; a plain one is written with 32."""
    return str(number), INT64


def row_url(table_url: str, *keys: str) -> str:
    partition, row = (quote(each.replace("'", "''"), safe="") for each in keys)
    return f"{table_url}(PartitionKey='{partition}',RowKey='{row}')"


def transaction(account_url: str, table: str, operations: Sequence[RowOperation]) -> HttpRequest:
    """The request that executes the operations, all of them or none."""
    batch, changes = f"batch_{uuid.uuid4()}", f"changeset_{uuid.uuid4()}"
    lines = [f"--{batch}", f"Content-Type: multipart/mixed; boundary={changes}", ""]
    for each in operations:
        lines += [f"--{changes}", each.part(f"{account_url}/{table}")]
    lines += [f"--{changes}--", f"--{batch}--", ""]
    headers = {**HEADERS, "Content-Type": f"multipart/mixed; boundary={batch}"}
    content = "\r\n".join(lines).encode()
    return HttpRequest("POST", f"{account_url}/$batch", headers=headers, content=content)


def versions(response: Any) -> list[str]:
    """The new version of each row of a transaction; empty for a deleted one."""
    etags = [ETAG.search(headers) for _, headers in PART.findall(response.content)]
    return [etag[1].decode() if etag else "" for etag in etags]


def error_of(response: Any, operations: int = 0) -> HttpResponseError | None:
    """The error of the service, also that of one of so many ``operations`` of a transaction."""
    parts = PART.findall(response.content) if operations else []
    status = max(response.status_code, *[int(status) for status, _ in parts], 0)
    if status < FAILED and len(parts) == operations:
        return None
    found = [form.search(response.content) for form in (CODE, TEXT)]
    code, text = (each[1].decode(errors="replace") if each else "" for each in found)
    code = code or response.headers.get("x-ms-error-code", "")
    error = HttpResponseError(f"{status} {code}: {text}", response=response)
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


def literal(value: str | datetime) -> str:
    """https://learn.microsoft.com/rest/api/storageservices/querying-tables-and-entities"""
    if isinstance(value, datetime):
        return f"datetime'{_property('', value)[0]}'"
    return "'" + value.replace("'", "''") + "'"


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
    if isinstance(value, (str, bool)) or (isinstance(value, int) and -(2**31) <= value < 2**31):
        return value, ""
    if isinstance(value, float) and math.isfinite(value):
        return value, DOUBLE
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"), TIME
    if isinstance(value, bytes):
        return base64.b64encode(value).decode(), BINARY
    raise TypeError(f"{name} cannot be stored: {value!r}")
