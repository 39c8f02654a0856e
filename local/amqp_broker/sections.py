"""Splits encoded AMQP messages into sections, so that a sender's bytes are passed on unchanged.

Source: OASIS AMQP 1.0, part 3 (messaging), section 3.2. A broker may change the header, the
delivery annotations and the message annotations, but not the bare message that follows them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from proton import Data, ProtonException, symbol

from local.amqp_broker.frames import BadFrame, skip_value
from local.amqp_broker.model.errors import InvalidArgument

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS = 0x70, 0x71, 0x72
PROPERTIES, APPLICATION_PROPERTIES, DATA = 0x73, 0x74, 0x75
FOOTER = 0x78


@dataclass(frozen=True, slots=True)
class Sections:
    """One message. `by_code` holds the encoded value of each section except the body.

    `body` holds the encoded body sections, `data` the binary content of its data sections.
    """

    by_code: Mapping[int, bytes]
    body: tuple[bytes, ...]
    data: tuple[bytes, ...] = field(default=())

    def value(self, code: int) -> Any:
        """The decoded section; None if the message does not have it."""
        encoded = self.by_code.get(code)
        return None if encoded is None else decode(encoded)


def parse(encoded: bytes) -> Sections:
    """Split a message into sections. Raises InvalidArgument if the bytes are not a message."""
    by_code: dict[int, bytes] = {}
    body: list[bytes] = []
    data: list[bytes] = []
    at = 0
    try:
        while at < len(encoded):
            code, begin = _descriptor(encoded, at)
            end = skip_value(encoded, begin)
            if not HEADER <= code <= FOOTER or end > len(encoded):
                raise InvalidArgument(f"section 0x{code:x} is unknown or incomplete")
            if code in _BODY:
                body.append(encoded[at:end])
            else:
                by_code[code] = encoded[begin:end]
            if code == DATA:
                data.append(_binary(encoded[begin:end]))
            at = end
    except (BadFrame, IndexError) as error:
        raise InvalidArgument(f"not an AMQP message: {error}") from None
    return Sections(by_code, tuple(body), tuple(data))


def assemble(sections: Sections, changed: Mapping[int, bytes]) -> bytes:
    """Encode a message from these sections. `changed` replaces sections by encoded values."""
    by_code = {**sections.by_code, **changed}
    head = [_section(code, by_code[code]) for code in _HEAD if code in by_code]
    foot = [_section(FOOTER, by_code[FOOTER])] if FOOTER in by_code else []
    return b"".join((*head, *sections.body, *foot))


def decode(encoded: bytes) -> Any:
    data = Data()
    try:
        data.decode(encoded)
        data.rewind()
        data.next()
        return data.get_object()
    except (ProtonException, UnicodeDecodeError) as error:
        raise InvalidArgument(f"not an AMQP value: {error}") from None


def encode(value: Any) -> bytes:
    data = Data()
    data.put_object(value)
    return bytes(data.encode())


def encode_symbol_map(values: Mapping[str, Any]) -> bytes:
    return encode({symbol(str(name)): value for name, value in values.items()})


def _section(code: int, value: bytes) -> bytes:
    return bytes((0, 0x53, code)) + value


def _descriptor(data: bytes, at: int) -> tuple[int, int]:
    """The code of the section at `at`, and the start of its value."""
    if data[at] == 0 and data[at + 1] == 0x53:
        return data[at + 2], at + 3
    if data[at] == 0 and data[at + 1] == 0x80:
        return int.from_bytes(data[at + 2 : at + 10], "big"), at + 10
    raise InvalidArgument(f"no section at byte {at} of a message")


def _binary(encoded: bytes) -> bytes:
    if encoded[0] == 0xA0:
        return encoded[2:]
    if encoded[0] == 0xB0:
        return encoded[5:]
    raise InvalidArgument("a data section that does not contain binary")


_BODY = frozenset((0x75, 0x76, 0x77))
_HEAD = (
    HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES,
)  # fmt: skip
