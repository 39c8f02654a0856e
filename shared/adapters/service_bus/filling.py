"""Fills the client's batches: directly where its inside is known, by ``add_message`` elsewhere.

The direct way puts encoded messages where ``add_message`` would have put them, a dozen times as
fast or more (``python -m bench messaging``). That place is no part of what the client documents, so
it is used for the versions that it was tested with only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError

from shared.messaging.model import Batch, Message, Rows, Scalar
from shared.messaging.sending import SizeExceeded
from shared.messaging.wire_size import section_bytes

TESTED_FROM, TESTED_BEFORE = (7, 15), (7, 16)
"""Versions of azure-servicebus whose batches are filled directly."""

BODY = 5
"""Place of the data sections among the sections of a message."""

SCHEDULED_KEY, PARTITION_KEY = b"x-opt-scheduled-enqueue-time", b"x-opt-partition-key"

Filling = Callable[[ServiceBusMessageBatch, Batch], SizeExceeded | None]
"""Puts messages into an empty batch of the client; answers why they do not fit."""


def filling_for(version: str) -> Filling:
    """The fast one for tested versions of the client, the public one for all others."""
    numbers = tuple(int(part) for part in version.split(".")[:2])
    return fill_directly if TESTED_FROM <= numbers < TESTED_BEFORE else fill_by_add_message


def fill_directly(filled: ServiceBusMessageBatch, batch: Batch) -> SizeExceeded | None:
    envelope = filled._message
    envelope[BODY] = [head + tail for _, _, head, tail in batch.parcels]
    first = batch.parcels[0].message
    filled._amqp_transport.set_batch_envelope_properties(
        envelope, first.message_id, first.session_id, first.partition_key
    )
    filled._count = len(batch.parcels)
    filled._size = batch.wire_bytes
    return None


def fill_by_add_message(filled: ServiceBusMessageBatch, batch: Batch) -> SizeExceeded | None:
    """The client encodes once more; an untested version may do it in more bytes."""
    empty_bytes, foretold = filled.size_in_bytes, 0
    for parcel in batch.parcels:
        try:
            filled.add_message(client_message(parcel.message))
        except MessageSizeExceededError:
            surplus = filled.size_in_bytes - empty_bytes - foretold
            return SizeExceeded(-(-surplus // max(1, len(filled))))
        foretold += section_bytes(parcel.size_bytes)
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
    """The client sends every whole number as 32 bits, unless it is told otherwise."""
    if type(value) is int and not -(2**31) <= value < 2**31:
        return {"TYPE": "LONG", "VALUE": value}
    return value
