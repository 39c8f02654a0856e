"""Parses what the Event Hub trigger delivers: bodies, and metadata with ``PartitionContext``,
``SystemPropertiesArray`` and ``PropertiesArray``, which have one object for each event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.ingestion.errors import BadDelivery
from shared.ingestion.model import Event
from shared.values.row_values import utc
from shared.values.text import quoted, whole

SEQUENCE_MAX = 2**63 - 1
DETAIL_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class TriggerBatch:
    """A batch of one partition."""

    partition_id: str
    events: tuple[Event, ...]


def parse_batch(bodies: Sequence[bytes], metadata: Mapping[str, Any] | None) -> TriggerBatch:
    """Parse a batch. Raises BadDelivery, because no event is at fault."""
    fields = metadata or {}
    system = _list(fields, "SystemPropertiesArray", len(bodies))
    properties = (
        _list(fields, "PropertiesArray", len(bodies)) if "PropertiesArray" in fields else None
    )
    events = tuple(
        _event(body, system[index], properties[index] if properties else {})
        for index, body in enumerate(bodies)
    )
    return TriggerBatch(_partition_id(fields), events)


def _partition_id(metadata: Mapping[str, Any]) -> str:
    context = metadata.get("PartitionContext")
    fields = context.items() if isinstance(context, dict) else ()
    for name, value in fields:
        if name.lower() == "partitionid" and str(value):
            return str(value)
    raise BadDelivery(f"PartitionContext holds no partition ID; {_names(metadata)}")


def _list(metadata: Mapping[str, Any], name: str, count: int) -> Sequence[Any]:
    values = metadata.get(name)
    if not isinstance(values, list) or len(values) != count:
        size = len(values) if isinstance(values, list) else type(values).__name__
        raise BadDelivery(
            f"{name} must hold an object for each of {count} events, but holds {size}; "
            f"{_names(metadata)}"
        )
    return values


def _event(body: bytes, system: Any, properties: Any) -> Event:
    try:
        key = system.get("PartitionKey")
        return Event(
            sequence=_sequence(system["SequenceNumber"]),
            offset=str(system["Offset"]),
            enqueued_at=utc(system["EnqueuedTimeUtc"]),
            body=body,
            partition_key=None if key is None else str(key),
            properties=properties if isinstance(properties, dict) else {},
        )
    except (AttributeError, KeyError, TypeError) as error:
        names = ", ".join(system) if isinstance(system, dict) else type(system).__name__
        raise BadDelivery(f"an event's system properties ({names}) lack {error}") from error
    except (ValueError, OverflowError) as error:
        detail = str(error)[:DETAIL_CHARACTERS_MAX]
        raise BadDelivery(f"an event has an invalid system property: {detail}") from error


def _sequence(value: Any) -> int:
    """Stores keep a sequence number in 64 bits."""
    number = whole(value) if isinstance(value, str) else int(value)
    if not 0 <= number <= SEQUENCE_MAX:
        raise ValueError(f"SequenceNumber {quoted(value)} is not from 0 to {SEQUENCE_MAX}")
    return number


def _names(metadata: Iterable[str]) -> str:
    return f"the trigger's metadata holds {', '.join(sorted(metadata)) or 'nothing'}"
