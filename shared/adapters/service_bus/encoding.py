"""Messages into parcels: all that cannot be sent is named together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shared.adapters.service_bus.encoder import encode
from shared.messaging.errors import NAMED_MAX, UnsendableMessage
from shared.messaging.model import Message, Parcel
from shared.messaging.wire_size import message_bytes

UNSENDABLE = (UnsendableMessage, UnicodeEncodeError, OverflowError, AttributeError, TypeError)
"""The last ones: fields of types that nobody foresaw, in programs that are not type-checked."""


def parcels(messages: Sequence[Message], created_ms: int) -> list[Parcel]:
    """Each message encoded, once. Raises UnsendableMessage."""

    def parcel(message: Message) -> Parcel:
        head, tail = encode(message, created_ms)
        return Parcel(message, len(head) + len(tail), head, tail)

    return _each(messages, parcel)


def weights(messages: Sequence[Message], created_ms: int) -> list[Parcel]:
    """Each message's size only, for a client that encodes by itself. Raises UnsendableMessage."""

    def parcel(message: Message) -> Parcel:
        encode(message._replace(body=b""), created_ms)  # for its complaints
        return Parcel(message, message_bytes(message))

    return _each(messages, parcel)


def _each(messages: Sequence[Message], parcel: Callable[[Message], Parcel]) -> list[Parcel]:
    try:
        return [parcel(message) for message in messages]
    except UNSENDABLE as error:
        raise UnsendableMessage(_complaints(messages, parcel)) from error


def _complaints(messages: Sequence[Message], parcel: Callable[[Message], Parcel]) -> str:
    found: list[str] = []
    for place, message in enumerate(messages):
        try:
            parcel(message)
        except UNSENDABLE as error:
            found.append(f"#{place} ({message.message_id}): {error}")
    more = f"; and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
    return "; ".join(found[:NAMED_MAX]) + more
