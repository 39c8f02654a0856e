"""From an event's bytes to readings. Whatever nobody can make sense of raises BadEvent.

Understood are our own metric JSON, one or a list of them, and what diagnostic settings of Azure
Monitor stream; either may be compressed by gzip.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from shared.ingestion import azure_monitor
from shared.ingestion.errors import BadEvent
from shared.ingestion.readings import (
    SCHEMA_VERSION,
    Decoded,
    Interests,
    Reading,
    read_number,
    read_time,
    shown,
)

UNPACKED_BYTES_MAX = 16 * 1024 * 1024
"""A small body can unpack to any size."""

GZIP = b"\x1f\x8b"


def decode(body: bytes, interests: Interests) -> Decoded:
    """What an event holds. Raises BadEvent where all of it that somebody asked for is unusable."""
    document = _document(_unpacked(body))
    if isinstance(document, dict) and "records" in document:
        if not isinstance(document["records"], list):
            raise BadEvent(f"records is {shown(document['records'])}, a list is needed")
        decoded = azure_monitor.read_records(document["records"], interests.monitored)
    elif azure_monitor.is_metric(document):
        decoded = azure_monitor.read_records([document], interests.monitored)
    else:
        metrics = document if isinstance(document, list) else [document]
        decoded = _read_own(metrics, interests)
    if decoded.rejected and not decoded.readings:
        raise BadEvent("; ".join(decoded.rejected))
    return decoded


def _unpacked(body: bytes) -> bytes:
    """The body, or what gzip made it of; several members one after the other are one text."""
    if not body.startswith(GZIP):
        return body
    parts, left = list[bytes](), UNPACKED_BYTES_MAX
    while body:
        member = zlib.decompressobj(wbits=31)
        try:
            parts.append(member.decompress(body, left + 1))
        except zlib.error as error:
            raise BadEvent(f"the body begins like gzip and is not: {error}") from error
        left -= len(parts[-1])
        if left < 0:
            raise BadEvent(f"the body unpacks to more than {UNPACKED_BYTES_MAX} bytes")
        if not member.eof:
            raise BadEvent("the compressed body ends too early")
        body = member.unused_data
    return b"".join(parts)


def _document(body: bytes) -> Any:
    if not body:
        raise BadEvent("the body is empty")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadEvent(f"the body is not JSON: {error}") from error


def _read_own(metrics: Sequence[object], interests: Interests) -> Decoded:
    readings, rejected = list[Reading](), list[str]()
    for index, fields in enumerate(metrics):
        try:
            readings.append(_own(fields, interests))
        except BadEvent as error:
            rejected.append(f"[{index}]: {error}" if len(metrics) > 1 else str(error))
    return Decoded(tuple(readings), 0, tuple(rejected))


def _own(fields: object, interests: Interests) -> Reading:
    if not isinstance(fields, dict) or "schema_version" not in fields:
        raise BadEvent(
            "neither metric JSON (an object with schema_version) nor records of Azure Monitor: "
            f"{shown(fields)}"
        )
    version = fields["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        raise BadEvent(f"schema_version is {shown(version)}, this app reads {SCHEMA_VERSION}")
    resource_name, name = _text(fields, "resource_name"), _text(fields, "name")
    if (resource_name, name) not in interests.pushed:
        raise BadEvent(
            f"scaling_rules.py declares no metric {shown(name)} of {shown(resource_name)} as "
            "HubMetric()"
        )
    value = fields.get("value")
    if not isinstance(value, dict):
        raise BadEvent(f"value is {shown(value)}, an object with time and value is needed")
    time = read_time(value.get("time"))
    return Reading(resource_name, name, time, read_number(value.get("value"), "value"))


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise BadEvent(f"{name} is {shown(value)}, a text is needed")
    return value
