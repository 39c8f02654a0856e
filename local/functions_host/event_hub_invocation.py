"""Converts events of a partition to what the worker expects.

Sources of the names: `EventHubTriggerBindingStrategy` of the Event Hubs extension, and
`EventHubTriggerConverter` of azure-functions. The extension writes times without a zone; they are
UTC.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpMessageBodyType

from local.functions_host.functions import Binding
from local.functions_host.worker import (
    Invocation,
    bytes_datum,
    many_datum,
    text_datum,
    value_datum,
)
from shared.ingestion.hub.received import plain

DEFAULT_GROUP = "$Default"


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """A partition and the consumer group that reads it."""

    namespace: str
    hub: str
    consumer_group: str
    partition_id: str

    def as_metadata(self) -> Mapping[str, str]:
        return {
            "FullyQualifiedNamespace": self.namespace,
            "EventHubName": self.hub,
            "ConsumerGroup": self.consumer_group,
            "PartitionId": self.partition_id,
        }


def batch_invocation(
    trigger: Binding, place: PartitionPlace, events: Sequence[EventData]
) -> Invocation:
    """The invocation with all of these events.

    As in the real host, empty strings are lost on the way to the worker, which then refuses the
    batch. Empty byte strings are not lost.
    """
    bodies = [_body(event) for event in events]
    texts = [body.decode("utf-8", "replace") for body in bodies if body]
    value = many_datum(bodies if trigger.takes_bytes or not texts else texts)
    each = [_properties(event) for event in events]
    arrays = {f"{name}Array": [one[name] for one in each] for name in each[0]}
    return Invocation(trigger.name, value, _metadata(place, arrays))


def event_invocation(trigger: Binding, place: PartitionPlace, event: EventData) -> Invocation:
    """The invocation with one event."""
    body = _body(event)
    text = None if trigger.takes_bytes else body.decode("utf-8", "replace")
    value = bytes_datum(body) if text is None else text_datum(text)
    return Invocation(trigger.name, value, _metadata(place, _properties(event)))


def event_hub_by_hand(trigger: Binding, text: str) -> Invocation:
    """The invocation with an event that was not sent and has only a body."""
    place = PartitionPlace("", trigger.text("eventHubName"), DEFAULT_GROUP, "0")
    event = EventData(text)
    if trigger.takes_many:
        return batch_invocation(trigger, place, [event])
    return event_invocation(trigger, place, event)


def _metadata(place: PartitionPlace, values: Mapping[str, object]) -> Mapping[str, Any]:
    """The metadata. As in the real host, fields without a value are left out."""
    fields = {"PartitionContext": place.as_metadata(), **values}
    return {name: value_datum(value) for name, value in fields.items() if value is not None}


def _properties(event: EventData) -> dict[str, object]:
    fields = {
        "PartitionKey": plain(event.partition_key),
        "Offset": event.offset,
        "SequenceNumber": event.sequence_number,
        "EnqueuedTimeUtc": _time(event.enqueued_time),
    }
    return {
        **fields,
        "Properties": plain(event.properties or {}),
        "SystemProperties": {**plain(event.system_properties or {}), **fields},
    }


def _body(event: EventData) -> bytes:
    """The body as one byte string. Like the real host, this refuses a batch in which the body of an
    event is an AMQP value or sequence."""
    if event.body_type is not AmqpMessageBodyType.DATA:
        raise ValueError(
            f"the event body cannot be retrieved: event {event.sequence_number} has a body of the "
            f"AMQP type {event.body_type.name}"
        )
    return b"".join(event.body)  # type: ignore[arg-type]


def _time(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).replace(tzinfo=None).isoformat()
