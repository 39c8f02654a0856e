"""Packs messages into batches: by next-fit if the order is kept, which is optimal then, otherwise
by first-fit-decreasing, which needs at most 11/9 of the optimum plus 2/3 of a batch (Dósa 2007)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from shared.messaging.model import BatchLimits, Chunk, EncodedMessage, SendRequest
from shared.messaging.wire_size import envelope_bytes, section_bytes
from shared.values.messages import Order


def build_request(encoded: Sequence[EncodedMessage]) -> SendRequest:
    sections = [section_bytes(item.size_bytes) for item in encoded]
    keys = [item.message.batch_key for item in encoded]
    return SendRequest(encoded, sections, keys)


def too_large(positions: Iterable[int], request: SendRequest, limits: BatchLimits) -> list[int]:
    """The messages that the link does not accept even alone."""
    encoded, most = request.encoded, limits.single_bytes
    return [position for position in positions if encoded[position].size_bytes > most]


def pack(
    positions: Sequence[int], request: SendRequest, limits: BatchLimits, order: Order
) -> list[Chunk]:
    """Divide the messages at these positions into batches within the limits, each of one session or
    partition key. One that exceeds the limits is sent alone."""
    if order is Order.KEPT:
        return _next_fit(positions, request, limits)
    method = _next_fit if order is Order.KEPT_PER_KEY else _first_fit_decreasing
    groups: dict[str | None, list[int]] = {}
    for position in positions:
        groups.setdefault(request.keys[position], []).append(position)
    return [chunk for group in groups.values() for chunk in method(group, request, limits)]


def _next_fit(positions: Sequence[int], request: SendRequest, limits: BatchLimits) -> list[Chunk]:
    sections, keys = request.sections, request.keys
    chunks: list[Chunk] = []
    start, end, room, key = 0, 0, -1, None
    for at, position in enumerate(positions):
        size = sections[position]
        if size > room or at == end or keys[position] != key:
            if at:
                chunks.append(_chunk(positions[start:at], request))
            start, end, key = at, at + limits.batch_messages, keys[position]
            room = limits.batch_bytes - _envelope(position, request)
        room -= size
    if positions:
        chunks.append(_chunk(positions[start:], request))
    return chunks


def _first_fit_decreasing(
    positions: Sequence[int], request: SendRequest, limits: BatchLimits
) -> list[Chunk]:
    """Fill batch after batch with the largest message that still fits: the same result."""
    by_size: dict[int, list[int]] = {}
    for position in reversed(positions):
        by_size.setdefault(request.sections[position], []).append(position)
    sizes = sorted(by_size)
    room = limits.batch_bytes - max((_envelope(p, request) for p in positions), default=0)
    chunks = []
    while sizes:
        chosen = _fill(room, limits.batch_messages, sizes, by_size)
        chunks.append(_chunk(sorted(chosen), request))
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


def halves(chunk: Chunk, request: SendRequest) -> tuple[Chunk, Chunk]:
    middle = len(chunk.positions) // 2
    parts = chunk.positions[:middle], chunk.positions[middle:]
    return _chunk(parts[0], request), _chunk(parts[1], request)


def _chunk(positions: Sequence[int], request: SendRequest) -> Chunk:
    if len(positions) == 1:
        return Chunk(positions, request.encoded[positions[0]].size_bytes)
    sections = sum([request.sections[position] for position in positions])
    return Chunk(positions, sections + _envelope(positions[0], request))


def _envelope(position: int, request: SendRequest) -> int:
    return envelope_bytes(request.encoded[position].message)
