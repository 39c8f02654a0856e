"""Completes how azure-eventhub decodes AMQP values, for which it has no public interface: a text
and a time get types of their own, and a section with a value that the client cannot decode is left
undecoded, because one such event would stop its partition. Source: OASIS AMQP 1.0, part 1, 1.2."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import Any

from azure.eventhub._pyamqp import _decode
from azure.eventhub._pyamqp.aio import _receiver_async
from azure.eventhub._pyamqp.message import Message


class AmqpText(bytes):
    """A text, in UTF-8."""


class AmqpTime(int):
    """A time, in milliseconds since 1970."""


class Undecoded(str):
    """An encoded value, in base64."""


TEXTS, TIMES = (0xA1, 0xA3, 0xB1, 0xB3), (0x83,)
"""The type codes of texts, symbols and times."""
FIXED_WIDTHS = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
"""The bytes of a value, by the first digit of its type code. Other values begin with their size."""
BODIES = (0x75, 0x76, 0x77)


def _return_as(kind: Callable[[Any], Any], codes: Iterable[int]) -> None:
    """Let the client return values of these types as ``kind``."""
    decoders = _decode._DECODE_BY_CONSTRUCTOR
    for code in codes:

        def decoded(buffer: memoryview, decode: Any = decoders[code]) -> tuple[memoryview, Any]:
            rest, value = decode(buffer)
            return rest, kind(value)

        decoders[code] = decoded


def decode_message(buffer: memoryview) -> Message:
    """The message. A body that cannot be decoded becomes Undecoded; other parts are left out."""
    try:
        return _decode.decode_payload(buffer)
    except Exception:  # the client's decoders raise whatever their input leads to
        at, good, body = 0, bytearray(), b""
    while at < len(buffer):
        section = buffer[at : _end(buffer, at)]
        at += len(section)
        try:
            _decode.decode_payload(section)
            good += section
        except Exception:
            body = bytes(section) if section[2] in BODIES else body
    message = _decode.decode_payload(memoryview(good))
    return message._replace(value=Undecoded(base64.b64encode(body).decode())) if body else message


def _end(buffer: memoryview, at: int) -> int:
    code = buffer[at]
    if code == 0:  # a descriptor and a value
        return _end(buffer, _end(buffer, at + 1))
    if (width := FIXED_WIDTHS.get(code >> 4)) is not None:
        return at + 1 + width
    if code >> 4 in (0xA, 0xC, 0xE):
        return at + 2 + buffer[at + 1]
    return at + 5 + int.from_bytes(buffer[at + 1 : at + 5], "big")


_return_as(AmqpText, TEXTS)
_return_as(AmqpTime, TIMES)
_receiver_async.decode_payload = decode_message  # type: ignore[attr-defined]
