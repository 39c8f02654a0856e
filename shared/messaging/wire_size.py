"""The exact number of bytes that a message takes on the wire, without encoding it.

AMQP 1.0 (OASIS, part 1 types, part 3 messaging) leaves an encoder some choice: leading zeros,
trailing nulls. These are the choices of the ``pyamqp`` encoder inside azure-servicebus: all 13
properties and all 5 header fields are written, null where they are not set; booleans take two
bytes; whole numbers are ``int`` where 32 bits hold them and ``long`` otherwise.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from shared.messaging.errors import UnsendableMessage
from shared.messaging.model import Message, Rows, Scalar

DESCRIPTOR_BYTES = 3
"""0x00 and the section's code as a small ulong."""

NULL_BYTES = 1
FIXED_8_BYTES = 9
"""Constructor and eight bytes: long, double and timestamp."""

TTL_HEADER_BYTES = DESCRIPTOR_BYTES + 3 + 4 * NULL_BYTES + 5
"""Descriptor, list of five, four nulls, and the milliseconds as a uint."""

SCHEDULED_KEY_BYTES = 2 + len("x-opt-scheduled-enqueue-time")
PARTITION_KEY_BYTES = 2 + len("x-opt-partition-key")


def message_bytes(message: Message) -> int:
    """The length of the message once encoded. Raises UnsendableMessage."""
    header = TTL_HEADER_BYTES if message.time_to_live is not None else 0
    return (
        header
        + _annotations_bytes(message)
        + _properties_bytes(message)
        + _map_section_bytes(message.application_properties)
        + _body_bytes(message)
    )


def section_bytes(encoded_bytes: int) -> int:
    """What an encoded message takes inside a batch: it becomes one data section."""
    return DESCRIPTOR_BYTES + _variable(encoded_bytes)


def envelope_bytes(first: Message) -> int:
    """What a batch takes beside its sections: ids and keys of the first message, repeated."""
    size = 0
    if first.message_id or first.session_id:
        nulls = 11 * NULL_BYTES
        ids = _text_or_null(first.message_id) + _text_or_null(first.session_id)
        size += DESCRIPTOR_BYTES + _compound(nulls + ids, 13)
    if first.partition_key:
        pair = PARTITION_KEY_BYTES + _text(first.partition_key)
        size += DESCRIPTOR_BYTES + _compound(pair, 2)
    return size


def _annotations_bytes(message: Message) -> int:
    pairs = _pairs_bytes(message.annotations)
    count = len(message.annotations or ())
    if message.scheduled_at is not None:
        pairs += SCHEDULED_KEY_BYTES + FIXED_8_BYTES
        count += 1
    if message.partition_key is not None:
        pairs += PARTITION_KEY_BYTES + _text(message.partition_key)
        count += 1
    return DESCRIPTOR_BYTES + _compound(pairs, 2 * count) if count else 0


def _properties_bytes(message: Message) -> int:
    texts = (
        message.message_id,
        message.to,
        message.subject,
        message.reply_to,
        message.correlation_id,
        message.content_type,
        message.session_id,
        message.reply_to_session_id,
    )
    lives = message.time_to_live is not None
    if not lives and all(text is None for text in texts):
        return 0
    times = 2 * (FIXED_8_BYTES if lives else NULL_BYTES)
    fields = 3 * NULL_BYTES + times + sum(map(_text_or_null, texts))
    return DESCRIPTOR_BYTES + _compound(fields, 13)


def _map_section_bytes(values: Mapping[str, Scalar] | None) -> int:
    if not values:
        return 0
    return DESCRIPTOR_BYTES + _compound(_pairs_bytes(values), 2 * len(values))


def _pairs_bytes(values: Mapping[str, Scalar] | None) -> int:
    return sum(_text(key) + value_bytes(value) for key, value in (values or {}).items())


def _body_bytes(message: Message) -> int:
    body = message.body
    if body is None:
        return 0
    if isinstance(body, Rows):
        return sum(DESCRIPTOR_BYTES + value_bytes(row) for row in body.rows)
    sections: Iterable[bytes | str] = body if isinstance(body, tuple) else (body,)
    return sum(section_bytes(_octets(section)) for section in sections)


def value_bytes(value: Any) -> int:  # noqa: C901 - one line for each type of AMQP
    """A scalar, or a list or map of them, with its constructor. Raises UnsendableMessage."""
    match value:
        case None:
            return NULL_BYTES
        case bool():
            return 2
        case str() | bytes():
            return _variable(_octets(value))
        case int():
            return _whole(value)
        case float() | datetime():
            return FIXED_8_BYTES
        case uuid.UUID():
            return 17
        case list():
            return _compound(sum(map(value_bytes, value)), len(value)) if value else 1
        case dict():
            pairs = sum(value_bytes(k) + value_bytes(v) for k, v in value.items())
            return _compound(pairs, 2 * len(value))
    raise UnsendableMessage(f"AMQP has no type for {type(value).__name__}")


def _whole(value: int) -> int:
    if -(2**7) <= value < 2**7:
        return 2
    if -(2**31) <= value < 2**31:
        return 5
    if -(2**63) <= value < 2**63:
        return FIXED_8_BYTES
    raise UnsendableMessage("a whole number of more than 64 bits")


def _text_or_null(text: str | None) -> int:
    return NULL_BYTES if text is None else _text(text)


def _text(text: str) -> int:
    return _variable(_octets(text))


def _octets(text: str | bytes) -> int:
    return len(text) if isinstance(text, bytes) or text.isascii() else len(text.encode())


def _variable(octets: int) -> int:
    """A string, symbol or binary: one byte for its length, or four."""
    return octets + (2 if octets <= 255 else 5)


def _compound(content_bytes: int, count: int) -> int:
    """A list or map: its size and count take a byte each, or four each."""
    return content_bytes + (3 if count <= 255 and content_bytes < 255 else 9)
