"""Converts an event of azure-eventhub to one of this app, which reads bytes, and text as UTF-8."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpMessageBodyType

from shared.ingestion.hub.amqp_values import AmqpText, AmqpTime, Undecoded
from shared.ingestion.model import Event
from shared.values.row_values import UNIX_START

READABLE_BYTES_MAX = 16_000
"""The most bytes of the readable form of a body that is not bytes."""


def to_event(data: EventData) -> Event:
    assert data.sequence_number is not None
    enqueued_at = data.enqueued_time
    assert enqueued_at is not None
    body, unreadable = _body(data)
    key = data.partition_key
    return Event(
        sequence=data.sequence_number,
        offset=str(data.offset),
        enqueued_at=aware(enqueued_at),
        body=body,
        partition_key=None if key is None else str(plain(key)),
        properties=plain(data.properties or {}),
        unreadable=unreadable,
    )


def _body(data: EventData) -> tuple[bytes, str]:
    """The bytes of the body. If it is not bytes: a readable form, and what it is instead."""
    body: Any = data.body
    if data.body_type is AmqpMessageBodyType.DATA:
        return b"".join(body), ""
    if isinstance(body, bytes | bytearray):
        return bytes(body), ""
    if data.body_type is AmqpMessageBodyType.SEQUENCE:
        body, form = list(body), "sequence"
    else:
        form = _form(body)
    return _readable(body), (
        f"the body is an AMQP {form}, not bytes, so no handler can read it; send the event with a "
        "binary body (an AMQP data section)"
    )


def _form(value: object) -> str:
    names = {type(None): "null", bool: "boolean", int: "number", float: "number", dict: "map"}
    names |= {AmqpTime: "timestamp", Undecoded: "value that the client cannot decode"}
    return names.get(type(value), type(value).__name__.lower())


def _readable(value: object) -> bytes:
    """The value as JSON, cut at a character boundary if it is long."""
    try:
        text = json.dumps(plain(value), ensure_ascii=False).encode()
    except RecursionError:
        return b"(nested too deeply to be shown)"
    if len(text) <= READABLE_BYTES_MAX:
        return text
    return f"{text[:READABLE_BYTES_MAX].decode(errors='ignore')}…".encode()


def plain(value: Any) -> Any:
    """The value in the types of JSON, as the Functions host does: base64, and ISO 8601."""
    if isinstance(value, AmqpText):
        return value.decode(errors="replace")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {_name(name): plain(each) for name, each in value.items()}
    if isinstance(value, str) or not isinstance(value, Iterable):
        return _scalar(value)
    return [plain(each) for each in value]


def _name(value: Any) -> str:
    name = value.decode(errors="replace") if isinstance(value, bytes) else plain(value)
    return name if isinstance(name, str) else json.dumps(name)


def _scalar(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, AmqpTime):
        try:
            value = UNIX_START + timedelta(milliseconds=value)
        except OverflowError:
            return int(value)
    if isinstance(value, datetime):
        text = aware(value).isoformat().removesuffix("+00:00")
        return f"{text.rstrip('0') if '.' in text else text}Z"
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def aware(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
