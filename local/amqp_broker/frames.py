"""AMQP frames as bytes: splits a stream into frames, and does two things that proton does not.

Source: OASIS AMQP 1.0, part 2 (transport), sections 2.3 (framing) and 2.7 (performatives).

1. `padded`: trailing null fields of a performative may be left out (part 1, section 1.4), and
   proton leaves them out. The AMQP library in azure-eventhub up to 5.15 reads fields by position
   and fails on a short list, so this module adds them again.
2. `message_format`: Service Bus and Event Hubs recognize a batch by its message format, which
   proton's Python interface does not expose.
"""

from collections.abc import Iterator

PROTOCOL_HEADER = b"AMQP"
HEADER_BYTES = 8
FRAME_BYTES_MAX = 16 * 1024 * 1024
BATCH_FORMAT = 0x80013700
"""The vendor format of Microsoft's brokers: every data section of the message is a message."""

_OPEN_TO_CLOSE = {
    0x10: 10, 0x11: 8, 0x12: 14, 0x13: 11, 0x14: 11, 0x15: 6, 0x16: 3, 0x17: 1, 0x18: 1,
}  # fmt: skip
"""Number of fields by descriptor: open, begin, attach, flow, transfer, disposition, and so on."""
_TRANSFER = 0x14
_AMQP_FRAME = 0
_SMALL_ULONG = 0x53
_LIST0, _LIST8, _LIST32 = 0x45, 0xC0, 0xD0
_NULL = b"\x40"


class BadFrame(Exception):
    """The bytes are not an AMQP frame."""


class FrameBuffer:
    """Buffers received bytes and yields complete frames and protocol headers."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._bytes += data
        while len(self._bytes) >= HEADER_BYTES:
            size = self._next_size()
            if len(self._bytes) < size:
                return
            frame = bytes(self._bytes[:size])
            del self._bytes[:size]
            yield frame

    def _next_size(self) -> int:
        if self._bytes.startswith(PROTOCOL_HEADER):
            return HEADER_BYTES
        size = int.from_bytes(self._bytes[:4], "big")
        if not HEADER_BYTES <= size <= FRAME_BYTES_MAX:
            raise BadFrame(f"a frame of {size} bytes")
        return size


def padded(frame: bytes) -> bytes:
    """The same frame with every trailing null of its performative written out."""
    start = _performative_at(frame)
    if start is None:
        return frame
    field_count = _OPEN_TO_CLOSE.get(frame[start + 2])
    if field_count is None:
        return frame
    count, begin, end = _list_at(frame, start + 3)
    if count >= field_count:
        return frame
    fields = frame[begin:end] + _NULL * (field_count - count)
    size = (len(fields) + 4).to_bytes(4, "big")
    number = field_count.to_bytes(4, "big")
    descriptor = frame[start : start + 3]
    body = descriptor + bytes([_LIST32]) + size + number + fields + frame[end:]
    return (start + len(body)).to_bytes(4, "big") + frame[4:start] + body


def message_format(frame: bytes) -> int | None:
    """The message format if this frame begins a message, otherwise None."""
    start = _performative_at(frame)
    if start is None or frame[start + 2] != _TRANSFER:
        return None
    count, at, end = _list_at(frame, start + 3)
    if count < 4:
        return None
    for _ in range(3):  # handle, delivery-id, delivery-tag
        at = skip_value(frame, at)
    return _read_uint(frame[at:end])


def skip_value(data: bytes, at: int) -> int:
    """The end of the value that begins at `at`. Source: part 1 (types), section 1.2."""
    code = data[at]
    if code == 0:
        return skip_value(data, skip_value(data, at + 1))
    kind = code >> 4
    if kind in _FIXED_WIDTHS:
        return at + 1 + _FIXED_WIDTHS[kind]
    if kind in (0xA, 0xC, 0xE):
        return at + 2 + data[at + 1]
    if kind in (0xB, 0xD, 0xF):
        return at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
    raise BadFrame(f"type 0x{code:02x}")


_FIXED_WIDTHS = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}


def _performative_at(frame: bytes) -> int | None:
    """The start of the performative; None for headers, SASL frames and empty frames."""
    if frame.startswith(PROTOCOL_HEADER) or frame[5] != _AMQP_FRAME:
        return None
    start = frame[4] * 4
    if start + 4 > len(frame) or frame[start : start + 2] != bytes([0, _SMALL_ULONG]):
        return None
    return start


def _list_at(data: bytes, at: int) -> tuple[int, int, int]:
    """The number of items of the list at `at`, and the start and end of the items."""
    code = data[at]
    if code == _LIST0:
        return 0, at + 1, at + 1
    if code == _LIST8:
        return data[at + 2], at + 3, at + 2 + data[at + 1]
    if code == _LIST32:
        size = int.from_bytes(data[at + 1 : at + 5], "big")
        return int.from_bytes(data[at + 5 : at + 9], "big"), at + 9, at + 5 + size
    raise BadFrame(f"type 0x{code:02x} instead of a list")


def _read_uint(data: bytes) -> int | None:
    if data[:1] == b"\x70":
        return int.from_bytes(data[1:5], "big")
    if data[:1] == b"\x52":
        return data[1]
    return 0 if data[:1] == b"\x43" else None
