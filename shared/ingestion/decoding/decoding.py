"""From an event's bytes to readings. Whatever nobody can make sense of raises BadEvent.

Understood are our own metric JSON, one or a list of them, and what diagnostic settings of Azure
Monitor stream; either may be compressed by gzip.
"""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    to_effect,
)
from shared.ingestion.errors import BadEvent
from shared.ingestion.model import Effect, Event, Stream
from shared.values.text import shown

BYTES_MAX = 1024 * 1024
"""Of a body once it is unpacked: JSON takes up to 30 times as much memory as it has bytes."""

ELEMENTS_MAX = 20_000
"""Readings or records of one event; the largest event that a hub takes has about half as many."""

MEMBERS_MAX = 1000
"""Of gzip: each one costs a copy of all that comes after it."""

GZIP = b"\x1f\x8b"

QUICK_BYTES_MAX = 16_384


def decode(body: bytes, interests: MetricSubscriptions, bytes_max: int = BYTES_MAX) -> Decoded:
    """What an event holds. Raises BadEvent where all of it that somebody asked for is unusable."""
    document = _document(_unpacked(body, bytes_max))
    if isinstance(document, dict) and "records" in document:
        records = _elements(document["records"])
        decoded = azure_monitor.read_records(records, interests.monitored)
    elif azure_monitor.is_metric(document):
        decoded = azure_monitor.read_records([document], interests.monitored)
    else:
        metrics = _elements(document) if isinstance(document, list) else [document]
        decoded = _read_own(metrics, interests)
    if decoded.rejected and not decoded.readings:
        raise BadEvent(decoded.summary)
    return decoded


def is_large(body: bytes) -> bool:
    """Whether reading the body may take longer than a few milliseconds."""
    return len(body) > QUICK_BYTES_MAX or body.startswith(GZIP)


def _elements(found: object) -> list[Any]:
    if not isinstance(found, list):
        raise BadEvent(f"records is {shown(found)}, a list is needed")
    if len(found) > ELEMENTS_MAX:
        raise BadEvent(f"the event has {len(found)} elements, at most {ELEMENTS_MAX} are read")
    return found


def _unpacked(body: bytes, bytes_max: int) -> bytes:
    """The body, or what gzip made it of; several members one after the other are one text."""
    if len(body) > bytes_max:
        raise _too_large(f"the body has {len(body)} bytes, which is more", bytes_max)
    if not body.startswith(GZIP):
        return body
    parts, left = list[bytes](), bytes_max
    while body:
        member = zlib.decompressobj(wbits=31)
        try:
            parts.append(member.decompress(body, left + 1))
        except zlib.error as error:
            raise BadEvent(f"the body begins like gzip and is not: {error}") from error
        left -= len(parts[-1])
        if left < 0:
            raise _too_large("the body unpacks to more bytes", bytes_max)
        if not member.eof:
            raise BadEvent("the compressed body ends too early")
        body = member.unused_data
        if len(parts) == MEMBERS_MAX and body:
            raise BadEvent(f"the body has more than {MEMBERS_MAX} gzip members")
    return b"".join(parts)


def _too_large(found: str, bytes_max: int) -> BadEvent:
    return BadEvent(
        f"{found} than EventBytesMaximum allows, which is {bytes_max}; send smaller events"
    )


def _document(body: bytes) -> Any:
    if not body:
        raise BadEvent("the body is empty")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadEvent(f"the body is not JSON: {error}") from error


def _read_own(metrics: Sequence[object], interests: MetricSubscriptions) -> Decoded:
    readings, rejections = list[Reading](), Rejections()
    for index, fields in enumerate(metrics):
        try:
            readings.append(_own(fields, interests))
        except BadEvent as error:
            rejections.add(f"[{index}]: {error}" if len(metrics) > 1 else str(error))
    return rejections.decoded(readings)


def _own(fields: object, interests: MetricSubscriptions) -> Reading:
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


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MetricHandler:
    """Handles the events of one stream. Raises BadEvent.

    What is wrong with records beside good ones is told, and kept in the event's effect.
    """

    stream: Stream
    interests: MetricSubscriptions
    bytes_max: int = BYTES_MAX
    """Of a body once it is unpacked."""

    async def __call__(self, event: Event) -> Effect:
        if is_large(event.body):
            await asyncio.sleep(0)  # a batch of large events must not stop everything else
        decoded = decode(event.body, self.interests, self.bytes_max)
        if decoded.rejected:
            where = f"{self.stream.hub}/{self.stream.partition_id} {event.sequence}"
            summary = f"{decoded.rejected_count} rejected: {decoded.summary}"
            log.warning("[records_rejected] %s: %s", where, summary[:1000])
        return to_effect(self.stream, event.sequence, decoded)
