"""Fills the batches of azure-servicebus: directly in tested versions, else by ``add_message``.

Direct filling puts encoded messages where ``add_message`` would put them, and is at least a dozen
times as fast (``python -m bench messaging``). It uses internals of the client, so it is limited to
versions of the client that it was tested with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError

from shared.messaging.model import Batch
from shared.messaging.send_state import SizeExceeded
from shared.messaging.wire_size import section_bytes
from shared.values.messages import Message, Rows, Scalar

TESTED_FROM, TESTED_BEFORE = (7, 15), (7, 16)
"""Range of versions of azure-servicebus whose batches are filled directly."""

BODY = 5
"""Index of the data sections among the sections of a message."""

SCHEDULED_KEY, PARTITION_KEY = b"x-opt-scheduled-enqueue-time", b"x-opt-partition-key"

Filling = Callable[[ServiceBusMessageBatch, Batch], SizeExceeded | None]
"""Puts messages into an empty batch of the client. Returns why they do not fit, or None."""


def filling_for(version: str) -> Filling:
    """The function that fills batches of this version of the client."""
    numbers = tuple(int(part) for part in version.split(".")[:2])
    return fill_directly if TESTED_FROM <= numbers < TESTED_BEFORE else fill_by_add_message


def fill_directly(filled: ServiceBusMessageBatch, batch: Batch) -> SizeExceeded | None:
    """Puts the encoded messages into the batch, using internals of the client."""
    envelope = filled._message
    envelope[BODY] = [head + tail for _, _, head, tail in batch.encoded]
    first = batch.encoded[0].message
    filled._amqp_transport.set_batch_envelope_properties(
        envelope, first.message_id, first.session_id, first.partition_key
    )
    filled._count = len(batch.encoded)
    filled._size = batch.wire_bytes
    return None


def fill_by_add_message(filled: ServiceBusMessageBatch, batch: Batch) -> SizeExceeded | None:
    """Adds messages by the public method, which encodes them again.

    An untested version may encode them in more bytes. If they then do not fit, the result says how
    many more bytes each message takes, rounded up.
    """
    empty_bytes, expected_bytes = filled.size_in_bytes, 0
    for item in batch.encoded:
        try:
            filled.add_message(client_message(item.message))
        except MessageSizeExceededError:
            surplus = filled.size_in_bytes - empty_bytes - expected_bytes
            return SizeExceeded(-(-surplus // max(1, len(filled))))
        expected_bytes += section_bytes(item.size_bytes)
    return None


def client_message(message: Message) -> AmqpAnnotatedMessage:
    """The same message for ``ServiceBusMessageBatch.add_message``."""
    annotations = {key: _typed(value) for key, value in (message.annotations or {}).items()}
    values = {key: _typed(value) for key, value in (message.application_properties or {}).items()}
    converted = AmqpAnnotatedMessage(
        application_properties=values or None,
        annotations={**_own_annotations(message), **annotations} or None,
        **_body(message),
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


def _own_annotations(message: Message) -> dict[Any, Any]:
    own = {SCHEDULED_KEY: message.scheduled_at, PARTITION_KEY: message.partition_key}
    return {key: value for key, value in own.items() if value is not None}


def _body(message: Message) -> dict[str, Any]:
    body = message.body
    if isinstance(body, Rows):
        return {"sequence_body": list(body.rows)}
    if body is None:
        return {"value_body": None}
    return {"data_body": list(body) if isinstance(body, tuple) else body}


def _typed(value: Scalar) -> Any:
    """The value, with its type if it needs 64 bits. By default, the client sends whole numbers with
    32 bits."""
    if type(value) is int and not -(2**31) <= value < 2**31:
        return {"TYPE": "LONG", "VALUE": value}
    return value
