"""Computes the bytes that a batch takes on the wire beside its messages. Where AMQP 1.0 (OASIS,
parts 1 and 3) leaves a choice, it makes that of azure-servicebus, which writes all 13 properties.
"""

from __future__ import annotations

from shared.values.messages import Message

DESCRIPTOR_BYTES = 3
"""The bytes 0x00 and the section's code as a small ulong."""

NULL_BYTES = 1
PARTITION_KEY_BYTES = 2 + len("x-opt-partition-key")


def section_bytes(encoded_bytes: int) -> int:
    """The bytes that an encoded message takes inside a batch, as one data section."""
    return DESCRIPTOR_BYTES + _variable(encoded_bytes)


def envelope_bytes(first: Message) -> int:
    """The bytes of a batch besides its sections: the ids and keys of the first message."""
    size = 0
    if first.message_id or first.session_id:
        nulls = 11 * NULL_BYTES
        ids = _text_or_null(first.message_id) + _text_or_null(first.session_id)
        size += DESCRIPTOR_BYTES + _compound(nulls + ids, 13)
    if first.partition_key:
        pair = PARTITION_KEY_BYTES + _text(first.partition_key)
        size += DESCRIPTOR_BYTES + _compound(pair, 2)
    return size


def _text_or_null(text: str | None) -> int:
    return NULL_BYTES if text is None else _text(text)


def _text(text: str) -> int:
    return _variable(len(text) if text.isascii() else len(text.encode()))


def _variable(octets: int) -> int:
    """The bytes of a string, symbol or binary, whose length takes one byte or four."""
    return octets + (2 if octets <= 255 else 5)


def _compound(content_bytes: int, count: int) -> int:
    """The bytes of a list or map, whose size and count take one byte each or four each."""
    return content_bytes + (3 if count <= 255 and content_bytes < 255 else 9)
