"""Encodes messages in AMQP, with the same bytes as the encoder of azure-servicebus, but faster.

The client's ``add_message`` encodes every message twice, and looks up the type of each field. This
encoder encodes a message once and writes sections of a fixed form. If AMQP has several encodings
for a value, it chooses the one that ``shared/messaging/wire_size.py`` counts.
"""

from __future__ import annotations

import calendar
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from struct import Struct
from typing import Any

from shared.messaging.model import EncodedMessage, UnsendableMessage
from shared.values.messages import NAMED_MAX, Body, Message, Rows, Scalar
from shared.values.text import quoted

NULL = b"\x40"
HEADER, ANNOTATIONS, PROPERTIES = b"\x00\x53\x70", b"\x00\x53\x72", b"\x00\x53\x73"
APPLICATION_PROPERTIES, DATA, SEQUENCE = b"\x00\x53\x74", b"\x00\x53\x75", b"\x00\x53\x76"
SCHEDULED_KEY = b"\xa3\x1cx-opt-scheduled-enqueue-time"
PARTITION_KEY = b"\xa3\x13x-opt-partition-key"
RESERVED_ANNOTATIONS = frozenset(
    {
        "x-opt-scheduled-enqueue-time",
        "x-opt-partition-key",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
    }
)
"""Annotations that only the fields of a message or the broker may set."""

ID_LENGTH_MAX = 128
EXPIRY_MAX_MS = 253_402_243_199_000
"""A time in the year 9999, the latest expiry that the client writes."""

TTL_SECONDS_MAX = (2**32 - 1) // 1000
LIST_8, LIST_32, EMPTY_LIST = b"\xc0", b"\xd0", b"\x45"
MAP_8, MAP_32 = b"\xc1", b"\xd1"

_uint32 = Struct(">I").pack
_int32 = Struct(">Bi").pack
_int64 = Struct(">Bq").pack
_double = Struct(">Bd").pack
_size_and_count = Struct(">II").pack


def _prefixes(start: bytes) -> tuple[bytes, ...]:
    """The prefixes of values of 0 to 255 octets. A lookup costs a quarter of packing a prefix."""
    return tuple(start + bytes((octets,)) for octets in range(256))


STRING_8, SYMBOL_8 = _prefixes(b"\xa1"), _prefixes(b"\xa3")
BINARY_8, DATA_8 = _prefixes(b"\xa0"), _prefixes(DATA + b"\xa0")
SMALL_INT = tuple(b"\x54" + bytes((number & 0xFF,)) for number in range(-128, 128))
PROPERTIES_8 = tuple(PROPERTIES + LIST_8 + bytes((size + 1, 13)) for size in range(255))


UNSENDABLE = (UnsendableMessage, UnicodeEncodeError, OverflowError, AttributeError, TypeError)
"""Errors of a message that cannot be encoded. AttributeError and TypeError occur if a field has a
wrong type, in programs that are not type-checked.
"""


def encode_all(messages: Sequence[Message], created_ms: int) -> list[EncodedMessage]:
    """All messages, encoded. Raises UnsendableMessage, which names the messages that AMQP cannot
    carry."""
    try:
        return [_encoded(message, created_ms) for message in messages]
    except UNSENDABLE as error:
        raise UnsendableMessage(_problems(messages, created_ms)) from error


def _encoded(message: Message, created_ms: int) -> EncodedMessage:
    head, tail = encode(message, created_ms)
    return EncodedMessage(message, len(head) + len(tail), head, tail)


def _problems(messages: Sequence[Message], created_ms: int) -> str:
    problems: list[str] = []
    for place, message in enumerate(messages):
        try:
            encode(message, created_ms)
        except UNSENDABLE as error:
            problems.append(f"#{place} ({message.message_id}): {error}")
    more = f"; and {len(problems) - NAMED_MAX} more" if len(problems) > NAMED_MAX else ""
    return "; ".join(problems[:NAMED_MAX]) + more


def encode(message: Message, created_ms: int) -> tuple[bytes, bytes]:
    """The encoded message in two parts, whose concatenation is the message.

    If the body is a single piece of bytes, it is the second part, so that it need not be copied.
    ``created_ms`` is the time of creation in milliseconds since 1970, which a message with a time
    to live carries. Raises UnsendableMessage.
    """
    body, message_id, session_id, partition_key, *texts, ttl, scheduled, values, others = message
    header, times = NO_LIFETIME if ttl is None else _lifetime(message, created_ms)
    annotations = b""
    if partition_key is not None or scheduled is not None or others:
        annotations = _annotations(message)
    properties = _properties(message_id, session_id, texts, times)
    if values:
        properties += APPLICATION_PROPERTIES + _map(values)
    before = header + annotations + properties
    if type(body) is bytes:
        return before + _data_start(len(body)), body
    return before + _body(body), b""


NO_LIFETIME = (b"", NULL + NULL)
NOTHING: list[None] = [None] * 6


def _properties(
    message_id: str | None, session_id: str | None, texts: list[Any], times: bytes
) -> bytes:
    """The properties section, with 13 fields. The user id, the content encoding and the group
    sequence are always null."""
    correlation_id, content_type, subject, to, reply_to, reply_to_session_id = texts
    if message_id is session_id is None and texts == NOTHING and times is NO_LIFETIME[1]:
        return b""
    fields = b"".join(
        (
            NULL if message_id is None else _id(message_id),
            NULL,
            NULL if to is None else _string(to),
            NULL if subject is None else _string(subject),
            NULL if reply_to is None else _string(reply_to),
            NULL if correlation_id is None else _string(correlation_id),
            NULL if content_type is None else _symbol(content_type),
            NULL,
            times,
            NULL if session_id is None else _id(session_id),
            NULL,
            NULL if reply_to_session_id is None else _id(reply_to_session_id),
        )
    )
    size = len(fields)
    if size < 255:
        return PROPERTIES_8[size] + fields
    return PROPERTIES + LIST_32 + _size_and_count(size + 4, 13) + fields


def _lifetime(message: Message, created_ms: int) -> tuple[bytes, bytes]:
    """The header section, and the expiry and creation times as two fields of the properties."""
    assert message.time_to_live is not None
    seconds = int(message.time_to_live.total_seconds())
    if not 1 <= seconds <= TTL_SECONDS_MAX:
        raise UnsendableMessage(f"time_to_live is {seconds} s: must be 1 to {TTL_SECONDS_MAX} s")
    nulls = NULL + NULL
    uint = b"\x70" + _uint32(seconds * 1000)
    header = HEADER + LIST_8 + bytes((10, 5)) + nulls + uint + nulls
    expires_ms = min(EXPIRY_MAX_MS, created_ms + seconds * 1000)
    return header, _int64(0x83, expires_ms) + _int64(0x83, created_ms)


def _annotations(message: Message) -> bytes:
    others = message.annotations or {}
    if reserved := RESERVED_ANNOTATIONS.intersection(others):
        raise UnsendableMessage(f"annotation {min(reserved)} is reserved: remove it")
    pairs = []
    if message.scheduled_at is not None:
        pairs += [SCHEDULED_KEY, _timestamp(message.scheduled_at)]
    if message.partition_key is not None:
        if message.session_id is not None and message.session_id != message.partition_key:
            raise UnsendableMessage("partition_key must be the session_id if both are set")
        pairs += [PARTITION_KEY, _id(message.partition_key)]
    for key, value in others.items():
        pairs += [_symbol(key), _value(value)]
    return ANNOTATIONS + _compound(MAP_8, MAP_32, pairs)


def _data_start(octets: int) -> bytes:
    return DATA_8[octets] if octets < 256 else DATA + b"\xb0" + _uint32(octets)


def _body(body: Body) -> bytes:
    if isinstance(body, str):
        return _body(body.encode())
    if isinstance(body, tuple):
        return b"".join([_body(section) for section in body])
    if isinstance(body, Rows):
        return b"".join([SEQUENCE + _value(row) for row in body.rows])
    return b"" if body is None else _data_start(len(body)) + body


def _map(values: Mapping[str, Scalar]) -> bytes:
    pairs: list[bytes] = []
    for key, value in values.items():
        pairs.append(_key(key))
        encoder = SCALARS.get(type(value))
        pairs.append(encoder(value) if encoder else _scalar(value))
    return _compound(MAP_8, MAP_32, pairs)


def _compound(small: bytes, large: bytes, items: list[bytes]) -> bytes:
    content = b"".join(items)
    size, count = len(content), len(items)
    if size < 255 and count <= 255:
        return small + bytes((size + 1, count)) + content
    return large + _size_and_count(size + 4, count) + content


def _id(text: str) -> bytes:
    if len(text) > ID_LENGTH_MAX:
        raise UnsendableMessage(
            f"an id has {len(text)} characters: must be at most {ID_LENGTH_MAX}"
        )
    return _string(text)


def _string(text: str) -> bytes:
    octets = text.encode()
    size = len(octets)
    return STRING_8[size] + octets if size < 256 else b"\xb1" + _uint32(size) + octets


@lru_cache(1024)
def _key(text: str) -> bytes:
    """An encoded property name, cached because most messages use the same few names."""
    return _string(text)


@lru_cache(1024)
def _symbol(text: str) -> bytes:
    """A content type or the name of an annotation. AMQP 1.0 symbols are ASCII (types, 1.6.20)."""
    if not text.isascii():
        raise UnsendableMessage(
            f"{quoted(text)} must be ASCII, as a content type or the name of an annotation"
        )
    octets = text.encode()
    size = len(octets)
    return SYMBOL_8[size] + octets if size < 256 else b"\xb3" + _uint32(size) + octets


def _bytes_as_string(octets: bytes) -> bytes:
    """Bytes as a string, as the client encodes them. The client also rejects invalid UTF-8."""
    try:
        return _string(octets.decode())
    except UnicodeDecodeError as error:
        raise UnsendableMessage("bytes in a property must be UTF-8") from error


def _binary(octets: bytes) -> bytes:
    size = len(octets)
    return BINARY_8[size] + octets if size < 256 else b"\xb0" + _uint32(size) + octets


def _whole(number: int) -> bytes:
    if -128 <= number < 128:
        return SMALL_INT[number + 128]
    if -(2**31) <= number < 2**31:
        return _int32(0x71, number)
    if -(2**63) <= number < 2**63:
        return _int64(0x81, number)
    raise UnsendableMessage("a whole number has more than 64 bits")


def _timestamp(time: datetime) -> bytes:
    if time.tzinfo is None:
        raise UnsendableMessage(f"{time.isoformat()} has no time zone")
    seconds = calendar.timegm(time.utctimetuple())
    return _int64(0x83, int(seconds * 1000 + time.microsecond / 1000))


SCALARS: dict[type, Callable[[Any], bytes]] = {
    str: _string,
    bytes: _bytes_as_string,
    bool: (b"\x56\x00", b"\x56\x01").__getitem__,
    int: _whole,
    float: lambda number: _double(0x82, number),
    uuid.UUID: lambda value: b"\x98" + value.bytes,
    datetime: _timestamp,
    type(None): lambda _none: NULL,
}


def _scalar(value: object) -> bytes:
    """A single value. Raises UnsendableMessage for a type that AMQP does not have."""
    for kind in (type(value), *type(value).__mro__):
        if kind in SCALARS:
            return SCALARS[kind](value)
    raise UnsendableMessage(f"AMQP has no type for {type(value).__name__}")


def _value(value: object) -> bytes:
    """A scalar, or a list or map of values. Unlike in properties, bytes stay bytes."""
    if isinstance(value, bytes):
        return _binary(value)
    if isinstance(value, list):
        return _compound(LIST_8, LIST_32, [_value(v) for v in value]) if value else EMPTY_LIST
    if isinstance(value, dict):
        pairs = [_value(part) for pair in value.items() for part in pair]
        return _compound(MAP_8, MAP_32, pairs)
    return _scalar(value)
