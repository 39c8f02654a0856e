"""Readings of metrics: what events bring, who asked for them, and how they are handed on.

They are handed on as the JSON that the queue ``metrics`` carries; that text is all that ingestion
and autoscaling share.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from shared.ingestion.errors import BadEvent
from shared.ingestion.model import Effect, OutboxMessage, Stream, message_id
from shared.outside import MEASURE_MAX, measure, shown

SCHEMA_VERSION = 1

BODY_CHARACTERS_MAX = 30_000
"""Of one message of the outbox. A table keeps up to 32,768 characters in a property."""


REJECTIONS_KEPT = 20
REJECTION_CHARACTERS_MAX = 300

TIME_CHARACTERS_MAX = 64


@dataclass(frozen=True, slots=True)
class Reading:
    """One value of one metric of one resource, at the time of its source."""

    resource_name: str
    name: str
    time: datetime
    value: float


@dataclass(frozen=True, slots=True)
class Wanted:
    """The metric that an aggregate of a platform metric becomes. Grains are ISO 8601 durations."""

    resource_name: str
    name: str
    aggregation: str = "average"
    time_grain: str = "PT1M"


@dataclass(frozen=True, slots=True)
class Interests:
    """Which metrics somebody asked for.

    ``pushed`` are pairs of resource and name whose readings come as our own JSON; ``monitored``
    are metrics of Azure Monitor by resource ID and metric, as ``azure_monitor.key`` spells them.
    """

    pushed: Set[tuple[str, str]] = frozenset()
    monitored: Mapping[tuple[str, str], tuple[Wanted, ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )


@dataclass(frozen=True, slots=True)
class Decoded:
    """What an event held: readings, how many things nobody asked for, and what is wrong with
    those that somebody asked for."""

    readings: tuple[Reading, ...] = ()
    ignored: int = 0
    rejected: tuple[str, ...] = ()
    """The first ``REJECTIONS_KEPT``."""
    rejected_count: int = 0
    """All of them."""

    @property
    def told(self) -> str:
        more = self.rejected_count - len(self.rejected)
        return "; ".join(self.rejected) + (f"; and {more} more" if more > 0 else "")


@dataclass(slots=True)
class Rejections:
    """What is wrong with the elements of one event: the first few, and how many."""

    kept: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, told: str) -> None:
        self.count += 1
        if len(self.kept) < REJECTIONS_KEPT:
            self.kept.append(told[:REJECTION_CHARACTERS_MAX])

    def beside(self, readings: Sequence[Reading], ignored: int = 0) -> Decoded:
        return Decoded(tuple(readings), ignored, tuple(self.kept), self.count)


def read_time(text: object) -> datetime:
    """An ISO 8601 time with a zone, cut to microseconds. Raises BadEvent."""
    if isinstance(text, str) and len(text) <= TIME_CHARACTERS_MAX:
        try:
            time = datetime.fromisoformat(text)
            if time.tzinfo is not None:
                return time.astimezone(UTC)
        except (ValueError, OverflowError):
            pass
    raise BadEvent(f"time is {shown(text)}, an ISO 8601 time with a zone is needed")


def read_number(value: object, name: str) -> float:
    """A number from 0 to ``MEASURE_MAX``. Raises BadEvent."""
    number = measure(value)
    if number is None:
        raise BadEvent(f"{name} is {shown(value)}, a number from 0 to {MEASURE_MAX:g} is needed")
    return number


# --- handing on -------------------------------------------------------------------------------


def to_effect(stream: Stream, sequence: int, decoded: Decoded) -> Effect:
    """A message for the readings, and a row for what was refused beside them."""
    refused = {"rejected": decoded.rejected, "rejected_count": decoded.rejected_count}
    return Effect(
        sequence,
        value=json.dumps(refused, ensure_ascii=False) if decoded.rejected else None,
        messages=tuple(_messages(stream, sequence, decoded.readings)),
        ignored=decoded.ignored,
    )


def _messages(
    stream: Stream, sequence: int, readings: Sequence[Reading]
) -> Iterator[OutboxMessage]:
    """As few as hold all readings: a message of several is a JSON array, which is sent one by one.

    A message is a row, and a transaction takes only so many: an event can bring thousands.
    """
    part: list[str] = []
    size, first_id = 0, ""
    for index, reading in enumerate(readings):
        number = index if len(readings) > 1 else None
        text = _encode(message_id(stream, sequence, number), reading)
        if part and size + len(text) > BODY_CHARACTERS_MAX:
            yield _message(first_id, part)
            part, size = [], 0
        if not part:
            first_id = message_id(stream, sequence, number)
        part.append(text)
        size += len(text) + 2
    if part:
        yield _message(first_id, part)


def _message(first_id: str, texts: Sequence[str]) -> OutboxMessage:
    return OutboxMessage(first_id, texts[0] if len(texts) == 1 else f"[{','.join(texts)}]")


def encode_reading(reading: Reading) -> bytes:
    """An event, as whoever measures sends it."""
    return _encode("", reading).encode()


def _encode(identity: str, reading: Reading) -> str:
    time = reading.time.astimezone(UTC).isoformat().replace("+00:00", "Z")
    fields: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        **({"id": identity} if identity else {}),
        "resource_name": reading.resource_name,
        "name": reading.name,
        "value": {"time": time, "value": reading.value},
    }
    return json.dumps(fields, separators=(",", ":"))
