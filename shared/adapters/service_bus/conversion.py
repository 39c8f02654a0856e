"""Messages as azure-servicebus knows them, by what it documents and nothing else."""

from __future__ import annotations

from typing import Any

from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

from shared.messaging.model import Message, Rows, Scalar

SCHEDULED_KEY, PARTITION_KEY = b"x-opt-scheduled-enqueue-time", b"x-opt-partition-key"


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
