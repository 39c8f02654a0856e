"""Decodes the body of an event into readings. Raises BadEvent for a body that cannot be understood.

Two formats are understood: this app's own metric JSON, as one object or a list of objects, and the
records that Azure Monitor's diagnostic settings stream. Both may be compressed with gzip.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from shared.ingestion.decoding import azure_monitor
from shared.ingestion.decoding.readings import (
    SCHEMA_VERSION,
    Decoded,
    MetricSubscriptions,
    Reading,
    Rejections,
    read_number,
    read_time,
)
from shared.ingestion.errors import BadEvent
from shared.values.text import quoted

BYTES_MAX = 1024 * 1024
"""The largest uncompressed body. Parsed JSON takes up to 30 times as much memory as its text."""

ELEMENTS_MAX = 20_000
"""The most readings or records in one event. The largest event that a hub accepts holds about half
as many.
"""

MEMBERS_MAX = 1000
"""The most gzip members in one body. Each of them costs a copy of all bytes after it."""

GZIP = b"\x1f\x8b"

QUICK_BYTES_MAX = 16_384
"""Bodies up to this size are read within a few milliseconds."""


def decode(body: bytes, subscriptions: MetricSubscriptions, bytes_max: int = BYTES_MAX) -> Decoded:
    """The content of an event. Raises BadEvent if all items of subscribed metrics are unusable."""
    document = _document(_unpacked(body, bytes_max))
    if isinstance(document, dict) and "records" in document:
        records = _elements(document["records"])
        decoded = azure_monitor.read_records(records, subscriptions.monitored)
    elif azure_monitor.is_metric(document):
        decoded = azure_monitor.read_records([document], subscriptions.monitored)
    else:
        metrics = _elements(document) if isinstance(document, list) else [document]
        decoded = _read_own(metrics, subscriptions)
    if decoded.rejected and not decoded.readings:
        raise BadEvent(decoded.summary)
    return decoded


def is_large(body: bytes) -> bool:
    """Whether reading the body may take longer than a few milliseconds."""
    return len(body) > QUICK_BYTES_MAX or body.startswith(GZIP)


def _elements(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise BadEvent(f"records is {quoted(value)}; it must be a list")
    if len(value) > ELEMENTS_MAX:
        raise BadEvent(
            f"the event has {len(value)} elements; send at most {ELEMENTS_MAX} in one event"
        )
    return value


def _unpacked(body: bytes, bytes_max: int) -> bytes:
    """The body, uncompressed if it is gzip. Several gzip members are concatenated."""
    if len(body) > bytes_max:
        raise _too_large(f"the body has {len(body)} bytes", bytes_max)
    if not body.startswith(GZIP):
        return body
    parts, left = list[bytes](), bytes_max
    while body:
        member = zlib.decompressobj(wbits=31)
        try:
            parts.append(member.decompress(body, left + 1))
        except zlib.error as error:
            raise BadEvent(f"the body begins like gzip, but cannot be unpacked: {error}") from error
        left -= len(parts[-1])
        if left < 0:
            raise _too_large("the body unpacks to more", bytes_max)
        if not member.eof:
            raise BadEvent("the compressed body is truncated")
        body = member.unused_data
        if len(parts) == MEMBERS_MAX and body:
            raise BadEvent(f"the body has more than {MEMBERS_MAX} gzip members")
    return b"".join(parts)


def _too_large(problem: str, bytes_max: int) -> BadEvent:
    return BadEvent(
        f"{problem}, but EventBytesMaximum allows at most {bytes_max} bytes; send smaller events"
    )


def _document(body: bytes) -> Any:
    if not body:
        raise BadEvent("the body is empty")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadEvent(f"the body is not JSON: {error}") from error


def _read_own(metrics: Sequence[object], subscriptions: MetricSubscriptions) -> Decoded:
    readings, rejections = list[Reading](), Rejections()
    for index, fields in enumerate(metrics):
        try:
            readings.append(_own(fields, subscriptions))
        except BadEvent as error:
            rejections.add(f"[{index}]: {error}" if len(metrics) > 1 else str(error))
    return rejections.decoded(readings)


def _own(fields: object, subscriptions: MetricSubscriptions) -> Reading:
    if not isinstance(fields, dict) or "schema_version" not in fields:
        raise BadEvent(
            "the event is neither metric JSON (an object with schema_version) nor records of Azure "
            f"Monitor: {quoted(fields)}"
        )
    version = fields["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        raise BadEvent(f"schema_version is {quoted(version)}; this app reads {SCHEMA_VERSION}")
    resource_name, name = _text(fields, "resource_name"), _text(fields, "name")
    if (resource_name, name) not in subscriptions.pushed:
        raise BadEvent(
            f"scaling_rules.py does not declare the metric {quoted(name)} of "
            f"{quoted(resource_name)} as HubMetric()"
        )
    value = fields.get("value")
    if not isinstance(value, dict):
        raise BadEvent(f"value is {quoted(value)}; it must be an object with time and value")
    time = read_time(value.get("time"))
    return Reading(resource_name, name, time, read_number(value.get("value"), "value"))


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise BadEvent(f"{name} is {quoted(value)}; it must be a text")
    return value
