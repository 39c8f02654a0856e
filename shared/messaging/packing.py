"""Packs messages into batches: by next-fit if the order is kept, which is optimal then, otherwise
by first-fit-decreasing, which needs at most 11/9 of the optimum plus 2/3 of a batch (Dósa 2007)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from shared.messaging.model import Batch, BatchLimits, EncodedMessage
from shared.messaging.wire_size import envelope_bytes, section_bytes
from shared.values.messages import Order

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
