"""What the Event Hub trigger hands over: bodies, and metadata of the batch beside them.

The metadata has ``PartitionContext`` with the partition's ID, and ``SystemPropertiesArray`` and
``PropertiesArray`` with an object for each event, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from shared.ingestion.errors import BadDelivery
from shared.ingestion.model import Event
from shared.values.text import shown

SEQUENCE_MAX = 2**63 - 1
DETAIL_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class TriggerBatch:
    """A batch of one partition."""

    partition_id: str
    events: tuple[Event, ...]


def parse_batch(bodies: Sequence[bytes], metadata: Mapping[str, Any] | None) -> TriggerBatch:
    """The batch. Raises BadDelivery, which holds the partition: no event is to blame."""
    found = metadata or {}
    system = _list(found, "SystemPropertiesArray", len(bodies))
    given = _list(found, "PropertiesArray", len(bodies)) if "PropertiesArray" in found else None
    events = tuple(
        _event(body, system[index], given[index] if given else {})
        for index, body in enumerate(bodies)
    )
    return TriggerBatch(_partition_id(found), events)


def _partition_id(metadata: Mapping[str, Any]) -> str:
    context = metadata.get("PartitionContext")
    fields = context.items() if isinstance(context, dict) else ()
    for name, value in fields:
        if name.lower() == "partitionid" and str(value):
            return str(value)
    raise BadDelivery(f"PartitionContext names no partition: {_names(metadata)}")


def _list(metadata: Mapping[str, Any], name: str, count: int) -> Sequence[Any]:
    found = metadata.get(name)
    if not isinstance(found, list) or len(found) != count:
        size = len(found) if isinstance(found, list) else type(found).__name__
        raise BadDelivery(f"{name} holds {size} for {count} events: {_names(metadata)}")
    return found


def _event(body: bytes, system: Any, properties: Any) -> Event:
    try:
        key = system.get("PartitionKey")
        return Event(
            sequence=_sequence(system["SequenceNumber"]),
            offset=str(system["Offset"]),
            enqueued_at=_time(system["EnqueuedTimeUtc"]),
            body=body,
            partition_key=None if key is None else str(key),
            properties=properties if isinstance(properties, dict) else {},
        )
    except (AttributeError, KeyError, TypeError) as error:
        named = ", ".join(system) if isinstance(system, dict) else type(system).__name__
        raise BadDelivery(f"an event without {error} among its properties ({named})") from error
    except (ValueError, OverflowError) as error:
        detail = str(error)[:DETAIL_CHARACTERS_MAX]
        raise BadDelivery(f"an event with a property that cannot be: {detail}") from error


def _sequence(found: Any) -> int:
    """Stores keep it in 64 bits."""
    number = int(found)
    if not 0 <= number <= SEQUENCE_MAX:
        raise ValueError(f"SequenceNumber {shown(found)} is not from 0 to {SEQUENCE_MAX}")
    return number


def _time(text: str) -> datetime:
    """The host writes UTC, with a zone or without."""
    time = datetime.fromisoformat(text)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _names(metadata: Iterable[str]) -> str:
    return f"the trigger gave {', '.join(sorted(metadata)) or 'no metadata'}"
