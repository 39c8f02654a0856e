"""Packs messages into batches: by next-fit if the order is kept, which is optimal then, otherwise
by first-fit-decreasing, which needs at most 11/9 of the optimum plus 2/3 of a batch (Dósa 2007).

Sizes are those on the wire. Where AMQP 1.0 (OASIS, parts 1 and 3) leaves a choice, they follow
azure-servicebus, which writes all 13 properties.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from shared.messaging.model import Batch, BatchLimits, EncodedMessage
from shared.values.messages import Message, Order

Encoded = Sequence[EncodedMessage]


def pack(messages: Encoded, limits: BatchLimits, order: Order) -> list[Batch]:
    """Divide the messages into batches within the limits, each of one session or partition key. One
    that exceeds the limits is sent alone."""
    if order is Order.KEPT:
        return _next_fit(messages, limits)
    method = _next_fit if order is Order.KEPT_PER_KEY else _first_fit_decreasing
    groups: dict[str | None, list[EncodedMessage]] = {}
    for each in messages:
        groups.setdefault(each.message.batch_key, []).append(each)
    return [batch for group in groups.values() for batch in method(group, limits)]


def _next_fit(messages: Encoded, limits: BatchLimits) -> list[Batch]:
    batches: list[Batch] = []
    start, end, room, key = 0, 0, -1, None
    for at, each in enumerate(messages):
        message, size = each.message, section_bytes(each.size_bytes)
        if size > room or at == end or message.batch_key != key:
            if at:
                batches.append(_batch(messages[start:at]))
            start, end, key = at, at + limits.batch_messages, message.batch_key
            room = limits.batch_bytes - envelope_bytes(message)
        room -= size
    if messages:
        batches.append(_batch(messages[start:]))
    return batches


def _first_fit_decreasing(messages: Encoded, limits: BatchLimits) -> list[Batch]:
    """Fill batch after batch with the largest message that still fits: the same result."""
    by_size: dict[int, list[EncodedMessage]] = {}
    for each in reversed(messages):
        by_size.setdefault(section_bytes(each.size_bytes), []).append(each)
    sizes = sorted(by_size)
    room = limits.batch_bytes - max(envelope_bytes(each.message) for each in messages)
    batches = []
    while sizes:
        chosen = _fill(room, limits.batch_messages, sizes, by_size)
        batches.append(_batch(sorted(chosen)))  # by their places
    return batches


def _fill(
    room: int, count_max: int, sizes: list[int], by_size: dict[int, list[EncodedMessage]]
) -> list[EncodedMessage]:
    """Take the messages of one batch out of ``sizes`` and ``by_size``; at least one message."""
    chosen: list[EncodedMessage] = []
    while sizes and len(chosen) < count_max:
        index = bisect_right(sizes, room) - 1
        if index < 0 and chosen:
            break
        # If no message fits in addition to the group's largest envelope, the largest message is
        # sent alone, with its own envelope.
        size = sizes[index]
        waiting = by_size[size]
        count = max(1, min(room // size, len(waiting), count_max - len(chosen)))
        chosen += waiting[-count:]
        del waiting[-count:]
        room -= count * size
        if not waiting:
            del sizes[index]
    return chosen


def halves(batch: Batch) -> tuple[Batch, Batch]:
    middle = len(batch.encoded) // 2
    return _batch(batch.encoded[:middle]), _batch(batch.encoded[middle:])


def _batch(messages: Encoded) -> Batch:
    first = messages[0]
    if len(messages) == 1:
        return Batch(messages, first.size_bytes)
    sections = sum([section_bytes(each.size_bytes) for each in messages])
    return Batch(messages, sections + envelope_bytes(first.message))


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
