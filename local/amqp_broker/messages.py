"""Converts between encoded AMQP messages and the broker's messages and events.

Names of annotations: learn.microsoft.com/azure/service-bus-messaging, page
service-bus-amqp-protocol-guide, section "Messages"; for Event Hubs, the constants of
azure-eventhub.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from proton import UNDESCRIBED, Array, ProtonException, timestamp, ubyte, uint

from local.amqp_broker import sections
from local.amqp_broker.frames import BATCH_FORMAT
from local.amqp_broker.model.errors import InvalidArgument
from local.amqp_broker.model.hub import Event, EventContent
from local.amqp_broker.model.message import Content, Message

ENQUEUED_TIME = "x-opt-enqueued-time"
SEQUENCE_NUMBER = "x-opt-sequence-number"
ENQUEUED_SEQUENCE_NUMBER = "x-opt-enqueue-sequence-number"
LOCKED_UNTIL = "x-opt-locked-until"
SCHEDULED_FOR = "x-opt-scheduled-enqueue-time"
PARTITION_KEY = "x-opt-partition-key"
DEAD_LETTER_SOURCE = "x-opt-deadletter-source"
OFFSET = "x-opt-offset"

MESSAGE_ID_FIELD, GROUP_ID_FIELD = 0, 10
TTL_FIELD = 2


def unpack(encoded: bytes, message_format: int) -> list[bytes]:
    """The messages of one transfer: those in a batch, or the single message."""
    if message_format != BATCH_FORMAT:
        return [encoded]
    packed = sections.parse(encoded).data
    if not packed:
        raise InvalidArgument("a batch without messages")
    return list(packed)


def content_of(encoded: bytes) -> Content:
    """The parts of a sent message that the broker interprets. Raises InvalidArgument."""
    parsed = sections.parse(encoded)
    header = _list(parsed, sections.HEADER)
    properties = _list(parsed, sections.PROPERTIES)
    annotations = _annotations(parsed)
    ttl = _item(header, TTL_FIELD)
    _check_deliverable(parsed)
    return Content(
        payload=encoded,
        message_id=_text(_item(properties, MESSAGE_ID_FIELD)),
        session_id=_text(_item(properties, GROUP_ID_FIELD)),
        time_to_live=timedelta(milliseconds=ttl) if isinstance(ttl, int) else None,
        scheduled_for=_time(annotations.get(SCHEDULED_FOR)),
    )


def event_contents(encoded: bytes, message_format: int) -> list[EventContent]:
    """The events of one transfer. Their partition key is on the envelope or on each event."""
    envelope_key = _partition_key(sections.parse(encoded)) if message_format else None
    events = []
    for each in unpack(encoded, message_format):
        key = _partition_key(sections.parse(each))
        events.append(EventContent(each, key if key is not None else envelope_key))
    return events


def delivered(message: Message) -> bytes:
    """Encode a message for a receiver."""
    parsed = sections.parse(message.content.payload)
    annotations: dict[str, Any] = {
        SEQUENCE_NUMBER: message.sequence_number,
        ENQUEUED_SEQUENCE_NUMBER: message.enqueued_sequence_number,
        ENQUEUED_TIME: to_timestamp(message.enqueued_at),
    }
    if message.locked_until is not None:
        annotations[LOCKED_UNTIL] = to_timestamp(message.locked_until)
    if message.dead_letter is not None:
        annotations[DEAD_LETTER_SOURCE] = message.dead_letter.source
    changed = {
        sections.HEADER: _header(parsed, message.delivery_count),
        sections.MESSAGE_ANNOTATIONS: sections.encode_symbol_map(
            _annotations(parsed) | annotations
        ),
    }
    if message.dead_letter is not None:
        reasons = {
            "DeadLetterReason": message.dead_letter.reason,
            "DeadLetterErrorDescription": message.dead_letter.description,
        }
        filled = {name: text for name, text in reasons.items() if text is not None}
        own = parsed.value(sections.APPLICATION_PROPERTIES) or {}
        changed[sections.APPLICATION_PROPERTIES] = sections.encode({**own, **filled})
    return sections.assemble(parsed, changed)


def delivered_event(event: Event) -> bytes:
    """Encode an event for a receiver."""
    parsed = sections.parse(event.content.payload)
    annotations: dict[str, Any] = {
        SEQUENCE_NUMBER: event.sequence_number,
        OFFSET: str(event.offset),
        ENQUEUED_TIME: to_timestamp(event.enqueued_at),
    }
    if event.content.partition_key is not None:
        annotations[PARTITION_KEY] = event.content.partition_key
    encoded = sections.encode_symbol_map(_annotations(parsed) | annotations)
    return sections.assemble(parsed, {sections.MESSAGE_ANNOTATIONS: encoded})


def to_timestamp(moment: datetime) -> timestamp:
    """AMQP timestamps are milliseconds since 1970."""
    return timestamp(round(moment.timestamp() * 1000))


def from_milliseconds(value: int) -> datetime:
    try:
        return datetime.fromtimestamp(value / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        raise InvalidArgument(f"{value} is not a valid time in milliseconds") from None


def text_keys(values: object) -> dict[str, Any]:
    """A map with symbols or strings as keys, as plain strings. Empty if `values` is not a map."""
    return {str(key): value for key, value in values.items()} if isinstance(values, dict) else {}


def array(kind: int, values: Iterable[Any]) -> Array:
    """An AMQP array of one type, given as one of proton's `Data` constants."""
    undescribed: Any = UNDESCRIBED
    return Array(undescribed, kind, *values)


def _annotations(parsed: sections.Sections) -> dict[str, Any]:
    return text_keys(parsed.value(sections.MESSAGE_ANNOTATIONS))


def _partition_key(parsed: sections.Sections) -> str | None:
    return _text(_annotations(parsed).get(PARTITION_KEY))


def _list(parsed: sections.Sections, code: int) -> list[Any]:
    value = parsed.value(code)
    if value is not None and not isinstance(value, list):
        raise InvalidArgument(f"section 0x{code:x} is not a list")
    return value or []


def _check_deliverable(parsed: sections.Sections) -> None:
    """Refuse a message that could not be encoded again when it is delivered."""
    if not isinstance(parsed.value(sections.APPLICATION_PROPERTIES) or {}, dict):
        raise InvalidArgument("application properties are not a map")
    if sections.HEADER in parsed.by_code:
        try:
            _header(parsed, 0)
        except (TypeError, ValueError, OverflowError, ProtonException) as error:
            raise InvalidArgument(f"header: {error}") from None


def _header(parsed: sections.Sections, delivery_count: int) -> bytes:
    header = _list(parsed, sections.HEADER)
    durable, priority, ttl, first = (_item(header, place) for place in range(4))
    typed = [
        durable,
        None if priority is None else ubyte(priority),
        None if ttl is None else uint(ttl),
        first,
        uint(delivery_count),
    ]
    return sections.encode(typed)


def _item(items: Iterable[Any], place: int) -> Any:
    values = list(items)
    return values[place] if place < len(values) else None


def _text(value: object) -> str | None:
    """Ids may be strings, numbers, UUIDs or binary. The broker compares them as text."""
    if value is None:
        return None
    return bytes(value).hex() if isinstance(value, bytes | memoryview) else str(value)


def _time(value: object) -> datetime | None:
    return from_milliseconds(value) if isinstance(value, int) else None
