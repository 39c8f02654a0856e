"""Packs messages into batches: by next-fit if the order is kept, which is optimal then, otherwise
by first-fit-decreasing, which needs at most 11/9 of the optimum plus 2/3 of a batch (Dósa 2007)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from shared.messaging.model import BatchLimits, Chunk, EncodedMessage
from shared.messaging.wire_size import envelope_bytes, section_bytes
from shared.values.messages import Order

Encoded = Sequence[EncodedMessage]
"""All messages of one call. Those of a batch are named by their positions."""


def too_large(positions: Iterable[int], encoded: Encoded, limits: BatchLimits) -> list[int]:
    """The messages that the link does not accept even alone."""
    return [p for p in positions if encoded[p].size_bytes > limits.single_bytes]


def pack(
    positions: Sequence[int], encoded: Encoded, limits: BatchLimits, order: Order
) -> list[Chunk]:
    """Divide the messages at these positions into batches within the limits, each of one session or
    partition key. One that exceeds the limits is sent alone."""
    if order is Order.KEPT:
        return _next_fit(positions, encoded, limits)
    method = _next_fit if order is Order.KEPT_PER_KEY else _first_fit_decreasing
    groups: dict[str | None, list[int]] = {}
    for position in positions:
        groups.setdefault(encoded[position].message.batch_key, []).append(position)
    return [chunk for group in groups.values() for chunk in method(group, encoded, limits)]


def _next_fit(positions: Sequence[int], encoded: Encoded, limits: BatchLimits) -> list[Chunk]:
    chunks: list[Chunk] = []
    start, end, room, key = 0, 0, -1, None
    for at, position in enumerate(positions):
        message, size = encoded[position].message, _section(position, encoded)
        if size > room or at == end or message.batch_key != key:
            if at:
                chunks.append(_chunk(positions[start:at], encoded))
            start, end, key = at, at + limits.batch_messages, message.batch_key
            room = limits.batch_bytes - envelope_bytes(message)
        room -= size
    if positions:
        chunks.append(_chunk(positions[start:], encoded))
    return chunks


def _first_fit_decreasing(
    positions: Sequence[int], encoded: Encoded, limits: BatchLimits
) -> list[Chunk]:
    """Fill batch after batch with the largest message that still fits: the same result."""
    by_size: dict[int, list[int]] = {}
    for position in reversed(positions):
        by_size.setdefault(_section(position, encoded), []).append(position)
    sizes = sorted(by_size)
    envelope = max(envelope_bytes(encoded[position].message) for position in positions)
    room = limits.batch_bytes - envelope
    chunks = []
    while sizes:
        chosen = _fill(room, limits.batch_messages, sizes, by_size)
        chunks.append(_chunk(sorted(chosen), encoded))
    return chunks


def _fill(room: int, count_max: int, sizes: list[int], by_size: dict[int, list[int]]) -> list[int]:
    """Take the messages of one batch out of ``sizes`` and ``by_size``; at least one message."""
    chosen: list[int] = []
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


def halves(chunk: Chunk, encoded: Encoded) -> tuple[Chunk, Chunk]:
    middle = len(chunk.positions) // 2
    parts = chunk.positions[:middle], chunk.positions[middle:]
    return _chunk(parts[0], encoded), _chunk(parts[1], encoded)


def _chunk(positions: Sequence[int], encoded: Encoded) -> Chunk:
    first = encoded[positions[0]]
    if len(positions) == 1:
        return Chunk(positions, first.size_bytes)
    sections = sum([_section(position, encoded) for position in positions])
    return Chunk(positions, sections + envelope_bytes(first.message))


def _section(position: int, encoded: Encoded) -> int:
    return section_bytes(encoded[position].size_bytes)
