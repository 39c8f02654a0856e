"""Encodes messages with the encoder of azure-servicebus, each once, so that their size on the wire
is known, and fills its batches with them. It uses internals of the client, whose version
requirements/app.in bounds."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import datetime
from typing import Any, get_args

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

from shared.messaging.model import Batch, EncodedMessage, UnsendableMessage
from shared.values.messages import NAMED_MAX, Message, Scalar
from shared.values.text import listed, quoted

ID_LENGTH_MAX = 128
EXPIRY_MAX_MS = 253_402_243_199_000
"""A time in the year 9999, the latest expiry that the client writes."""
TTL_SECONDS_MAX = (2**32 - 1) // 1000
BODY = 5
"""Index of the data sections among the sections of a message."""
SCHEDULED_KEY, PARTITION_KEY = b"x-opt-scheduled-enqueue-time", b"x-opt-partition-key"
UNSENDABLE = (
    UnsendableMessage,
    UnicodeEncodeError,
    OverflowError,
    AttributeError,
    TypeError,
    struct.error,
)
"""Errors of a message that cannot be encoded, also because a field has a wrong type."""


def encode_all(messages: Sequence[Message], created_ms: int) -> list[EncodedMessage]:
    """All messages, encoded. Raises UnsendableMessage, which names those that AMQP cannot carry."""
    encoded: list[EncodedMessage] = []
    problems: list[str] = []
    for place, message in enumerate(messages):
        try:
            data = encode(message, created_ms)
        except UNSENDABLE as error:
            problems.append(f"#{place} ({message.message_id}): {error}")
        else:
            encoded.append(EncodedMessage(place, message, len(data), data))
    if problems:
        raise UnsendableMessage(listed(problems, NAMED_MAX, "; "))
    return encoded


def encode(message: Message, created_ms: int) -> bytes:
    """The encoded message. ``created_ms`` is since 1970; a message with a time to live carries it.
    Raises one of UNSENDABLE."""
    _check(message)
    outgoing = PyamqpTransport.to_outgoing_amqp_message(client_message(message))
    if message.time_to_live is not None:  # the client's own times depend on the time zone
        assert outgoing.properties is not None
        expires_ms = created_ms + int(message.time_to_live.total_seconds()) * 1000
        properties = outgoing.properties._replace(
            creation_time=created_ms, absolute_expiry_time=min(EXPIRY_MAX_MS, expires_ms)
        )
        outgoing = outgoing._replace(properties=properties)
    return bytes(encode_payload(bytearray(), outgoing))


def fill(filled: ServiceBusMessageBatch, batch: Batch) -> None:
    """Put the encoded messages into an empty batch of the client."""
    envelope = filled._message
    envelope[BODY] = [each.data for each in batch.encoded]
    first = batch.encoded[0].message
    filled._amqp_transport.set_batch_envelope_properties(
        envelope, first.message_id, first.session_id, first.partition_key
    )
    filled._count = len(batch.encoded)
    filled._size = batch.wire_bytes


def client_message(message: Message) -> AmqpAnnotatedMessage:
    """The same message for the client."""
    body: Any = {"value_body" if message.body is None else "data_body": message.body}
    annotations: dict[Any, Any] = {
        SCHEDULED_KEY: message.scheduled_at,
        PARTITION_KEY: message.partition_key,
    }
    values = {key: _typed(value) for key, value in (message.application_properties or {}).items()}
    converted = AmqpAnnotatedMessage(
        application_properties=values or None,
        annotations={k: each for k, each in annotations.items() if each is not None} or None,
        **body,
    )
    if message.time_to_live is not None:
        milliseconds = int(message.time_to_live.total_seconds()) * 1000
        converted.header = AmqpMessageHeader(time_to_live=milliseconds)
    converted.properties = AmqpMessageProperties(
        message_id=message.message_id,
        to=message.to,
        subject=message.subject,
        reply_to=message.reply_to,
        correlation_id=message.correlation_id,
        content_type=message.content_type,
        group_id=message.session_id,
        reply_to_group_id=message.reply_to_session_id,
    )
    return converted


def _typed(value: Scalar) -> Any:
    """The value, with its type if it needs 64 bits."""
    if type(value) is int and not -(2**31) <= value < 2**31:
        return {"TYPE": "LONG", "VALUE": value}
    return value


def _check(message: Message) -> None:
    """Raises UnsendableMessage for what the client does not refuse, or not in words."""
    session_id, partition_key = message.session_id, message.partition_key
    for text in (message.message_id, session_id, partition_key, message.reply_to_session_id):
        if len(text or "") > ID_LENGTH_MAX:
            raise UnsendableMessage(
                f"an id has {len(text or '')} characters: must be at most {ID_LENGTH_MAX}"
            )
    if partition_key is not None and session_id not in (None, partition_key):
        raise UnsendableMessage("partition_key must be the session_id if both are set")
    if not (message.content_type or "").isascii():  # a symbol (AMQP 1.0, types, 1.6.20)
        raise UnsendableMessage(f"{quoted(message.content_type)} must be ASCII, as a content type")
    if message.time_to_live is not None:
        seconds = int(message.time_to_live.total_seconds())
        if not 1 <= seconds <= TTL_SECONDS_MAX:
            raise UnsendableMessage(
                f"time_to_live is {seconds} s: must be 1 to {TTL_SECONDS_MAX} s"
            )
    for value in (message.scheduled_at, *(message.application_properties or {}).values()):
        _check_value(value)


def _check_value(value: object) -> None:
    if not isinstance(value, get_args(Scalar)):
        raise UnsendableMessage(f"AMQP has no type for {type(value).__name__}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UnsendableMessage("a whole number has more than 64 bits")
    if isinstance(value, datetime) and value.tzinfo is None:
        raise UnsendableMessage(f"{value.isoformat()} has no time zone")
    if isinstance(value, bytes):  # sent as a string
        try:
            value.decode()
        except UnicodeDecodeError as error:
            raise UnsendableMessage("bytes in a property must be UTF-8") from error
