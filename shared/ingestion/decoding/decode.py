"""Decodes the body of an event into readings: this app's own metric JSON, or records of Azure
Monitor. An event has one object, a list, or one object a line, each of which may be a batch of
records, and may be compressed with gzip. What is certainly not a metric is set aside (see
``foreign``)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from shared.ingestion.decoding import azure_monitor, foreign
from shared.ingestion.decoding.readings import Decoded, MetricSubscriptions, read_number, read_time
from shared.ingestion.errors import BadEvent
from shared.values.measurements import Metric, MetricValue
from shared.values.samples import SCHEMA_VERSION, version_of
from shared.values.text import quoted

Item = tuple[str, Any]
"""An object of an event, and its place for error messages, if it is not the whole event."""

BYTES_MAX = 1024 * 1024
"""The largest uncompressed body. Parsed JSON takes up to 30 times as much memory as its text."""

ELEMENTS_MAX = 20_000
"""The most readings or records in one event, twice as many as the largest event holds."""

MEMBERS_MAX = 1000
"""The most gzip members in one body. Each of them costs a copy of all bytes after it."""

GZIP = b"\x1f\x8b"

QUICK_BYTES_MAX = 16_384
"""Bodies up to this size are read within a few milliseconds."""


def decode(body: bytes, subscriptions: MetricSubscriptions, bytes_max: int = BYTES_MAX) -> Decoded:
    """The content of an event. Raises BadEvent if all items of subscribed metrics are unusable."""
    unpacked, found = _unpacked(body, bytes_max), Decoded()
    try:
        documents = _documents(unpacked, found)
    except BadEvent:
        kind = foreign.kind_of_bytes(unpacked)
        if not kind:
            raise
        return Decoded(set_aside=kind)
    _decode(_items(documents), subscriptions, found)
    if found.rejected and not found.readings:
        raise BadEvent(found.summary)
    return found


def _decode(items: Sequence[Item], subscriptions: MetricSubscriptions, found: Decoded) -> None:
    records = [(place, item) for place, item in items if azure_monitor.is_metric(item)]
    others = [(place, item) for place, item in items if not azure_monitor.is_metric(item)]
    readings = azure_monitor.read_records(records, subscriptions.monitored, found)
    kind = ""
    for place, item in others:
        if kind_of_item := foreign.kind_of(item):
            kind = kind or kind_of_item
            found.ignored += 1
            continue
        if place.endswith("]") and not isinstance(item, dict):
            found.reject("", BadEvent(f"{place} is {quoted(item)}; it must be an object"))
            continue
        try:
            readings.append(_own(item, subscriptions))
        except BadEvent as error:
            found.reject(place, error)
    if not readings and not found.rejected_count:
        found.set_aside = next(iter(found.notes), "" if records else kind)
    found.readings = tuple(readings)


def is_large(body: bytes) -> bool:
    """Whether reading the body may take longer than a few milliseconds."""
    return len(body) > QUICK_BYTES_MAX or body.startswith(GZIP)


def _items(documents: Sequence[Item]) -> list[Item]:
    items = list[Item]()
    for place, document in documents:
        if isinstance(document, dict) and "records" in document:
            name, elements = "records", document["records"]
        elif isinstance(document, list):
            name, elements = "", document
        else:
            items.append((place, document))
            continue
        if not isinstance(elements, list):
            raise BadEvent(f"records is {quoted(elements)}; it must be a list")
        _check_number(len(items) + len(elements))
        many = name or len(elements) > 1
        for index, element in enumerate(elements):
            item = (f"{place} {name}[{index}]".lstrip() if many else place, element)
            is_batch = not name and isinstance(element, dict) and "records" in element
            items += _items([item]) if is_batch else [item]
            _check_number(len(items))
    return items


def _check_number(count: int) -> None:
    if count > ELEMENTS_MAX:
        raise BadEvent(f"the event has {count} elements; send at most {ELEMENTS_MAX} in one event")


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


def _documents(body: bytes, found: Decoded) -> list[Item]:
    """The JSON document of the body, or one for each line if the first line is an object."""
    if not body:
        raise BadEvent("the body is empty")
    try:
        return [("", json.loads(body))]
    except (ValueError, RecursionError) as error:
        problem = error
    repaired = foreign.without_log_properties(body)
    if repaired != body:
        return _documents(repaired, found)
    documents = list[Item]()
    for number, line in enumerate(_lines(body), 1):
        try:
            documents.append((f"line {number}", json.loads(line)))
        except (ValueError, RecursionError) as error:
            if not documents:
                break
            found.reject(f"line {number}", BadEvent(f"it is not JSON: {error}"))
    if not documents or not isinstance(documents[0][1], dict):
        raise BadEvent(f"the body is not JSON: {problem}") from problem
    return documents


def _lines(body: bytes) -> list[str]:
    """The lines that are not blank. Empty if the body is not text."""
    try:
        text = body.decode(json.detect_encoding(body))
    except UnicodeDecodeError:
        return []
    lines = [line for line in text.split("\n", ELEMENTS_MAX + 1) if line.strip()]
    _check_number(len(lines))
    return lines


def _own(fields: object, subscriptions: MetricSubscriptions) -> Metric:
    if not isinstance(fields, dict) or "schema_version" not in fields:
        raise BadEvent(
            "the event is neither metric JSON (an object with schema_version) nor records of Azure "
            f"Monitor: {quoted(fields)}"
        )
    if version_of(fields, (SCHEMA_VERSION,)) is None:
        version = quoted(fields["schema_version"])
        raise BadEvent(f"schema_version is {version}; this app reads {SCHEMA_VERSION}")
    resource_name, name = _text(fields, "resource_name"), _text(fields, "name")
    if (resource_name, name) not in subscriptions.pushed:
        raise BadEvent(
            f"scaling_rules.py does not declare the metric {quoted(name)} of "
            f"{quoted(resource_name)} as HubMetric(); send a QueueMetric() to the queue samples"
        )
    value = fields.get("value")
    if not isinstance(value, dict):
        raise BadEvent(f"value is {quoted(value)}; it must be an object with time and value")
    time, number = read_time(value.get("time")), read_number(value.get("value"), "value")
    return Metric(resource_name, name, MetricValue(time, number))


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise BadEvent(f"{name} is {quoted(value)}; it must be a text")
    return value
