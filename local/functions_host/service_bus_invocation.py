"""Converts a Service Bus message to what the worker expects.

Sources of the names: `ServiceBusTriggerBindingStrategy` of the Service Bus extension, and
`ServiceBusMessageInConverter` of azure-functions.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage

from local.functions_host.functions import Binding
from local.functions_host.worker import (
    Invocation,
    bytes_datum,
    json_datum,
    text_datum,
    value_datum,
)

FOR_EVER = datetime.max.replace(tzinfo=UTC)


def service_bus_invocation(trigger: Binding, message: ServiceBusReceivedMessage) -> Invocation:
    """The invocation with one message."""
    body = body_of(message)
    value = (
        bytes_datum(body) if trigger.takes_bytes else text_datum(body.decode("utf-8", "replace"))
    )
    return Invocation(trigger.name, value, _metadata(message))


def service_bus_by_hand(trigger: Binding, text: str) -> Invocation:
    """The invocation with a message that was not sent and has only a body."""
    properties = {name: json_datum("{}") for name in ("UserProperties", "ApplicationProperties")}
    return Invocation(trigger.name, text_datum(text), properties)


def body_of(message: ServiceBusReceivedMessage) -> bytes:
    """The body as one byte string. An AMQP value or sequence has no bytes; its JSON is used."""
    body: Any = message.body
    if isinstance(body, Iterator):  # A data section or a sequence.
        body = list(body)
        if all(isinstance(part, bytes) for part in body):
            return b"".join(body)
    if body is None:
        return b""
    if isinstance(body, bytes):
        return body
    return (body if isinstance(body, str) else json.dumps(_texts(body), default=str)).encode()


def _metadata(message: ServiceBusReceivedMessage) -> Mapping[str, Any]:
    properties = _texts(message.application_properties or {})
    fields: dict[str, object] = {
        "ApplicationProperties": properties,
        "ContentType": message.content_type,
        "CorrelationId": message.correlation_id,
        "DeadLetterErrorDescription": message.dead_letter_error_description,
        "DeadLetterReason": message.dead_letter_reason,
        "DeadLetterSource": message.dead_letter_source,
        "DeliveryCount": (message.delivery_count or 0) + 1,
        "EnqueuedSequenceNumber": message.enqueued_sequence_number,
        "EnqueuedTimeUtc": message.enqueued_time_utc,
        "ExpiresAtUtc": message.expires_at_utc or FOR_EVER,
        "Label": message.subject,
        "LockToken": None if message.lock_token is None else str(message.lock_token),
        "LockedUntil": message.locked_until_utc,
        "MessageId": message.message_id,
        "PartitionKey": message.partition_key,
        "ReplyTo": message.reply_to,
        "ReplyToSessionId": message.reply_to_session_id,
        "ScheduledEnqueueTimeUtc": message.scheduled_enqueue_time_utc,
        "SequenceNumber": message.sequence_number,
        "SessionId": message.session_id,
        "Subject": message.subject,
        "To": message.to,
        "UserProperties": properties,
    }
    return {name: value_datum(value) for name, value in fields.items() if value is not None}


def _texts(value: Any) -> Any:
    """Decode strings, which the client leaves as bytes."""
    if isinstance(value, dict):
        return {_texts(name): _texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_texts(each) for each in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
