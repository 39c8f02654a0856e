"""The readings in events: which metrics are subscribed to, and how readings are passed to the
autoscaler, as the JSON that the queue ``metrics`` carries."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

from shared.ingestion.errors import BadEvent
from shared.ingestion.model import Effect, OutboxMessage, Stream, message_id
from shared.values.measurements import MEASURE_MAX, Metric
from shared.values.samples import encode_samples, grouped, measure
from shared.values.text import quoted, zoned_time

BODY_CHARACTERS_MAX = 45_000
"""The most characters in one message. A storage queue accepts 64 KiB, or 48 KiB in base64."""

READINGS_OF_A_METRIC_MAX = 3_000
"""The most readings of a metric used from one event, the newest. The scaler keeps no more."""

REJECTIONS_KEPT = 20
NOTES_KEPT = 20
REJECTION_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True)
class SubscribedMetric:
    """The metric to which an aggregate of a platform metric is mapped. Time grains: ISO 8601."""

    resource_name: str
    name: str
    aggregation: str = "average"
    time_grain: str = "PT1M"


@dataclass(frozen=True, slots=True)
class MetricSubscriptions:
    """Which metrics the scaling rules subscribe to: ``pushed`` by resource and name as this app's
    own JSON, ``monitored`` ones of Azure Monitor by ``azure_monitor.key``."""

    pushed: Set[tuple[str, str]] = frozenset()
    monitored: Mapping[tuple[str, str], tuple[SubscribedMetric, ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )


@dataclass(slots=True)
class Decoded:
    """An event's readings, the number of other metrics' items, and subscribed ones' problems."""

    readings: tuple[Metric, ...] = ()
    ignored: int = 0
    rejected: tuple[str, ...] = ()
    rejected_count: int = 0
    set_aside: str = ""
    """What the event is, if nothing in it can be used and nothing is damaged."""
    notes: tuple[str, ...] = ()
    """Why undamaged records of subscribed metrics are not used."""

    @property
    def summary(self) -> str:
        more = self.rejected_count - len(self.rejected)
        return "; ".join(self.rejected) + (f"; and {more} more" if more > 0 else "")

    def note(self, reason: str) -> None:
        reason = reason[:REJECTION_CHARACTERS_MAX]
        if reason not in self.notes and len(self.notes) < NOTES_KEPT:
            self.notes += (reason,)

    def reject(self, place: str, error: BadEvent) -> None:
        self.rejected_count += 1
        if len(self.rejected) < REJECTIONS_KEPT:
            reason = f"{place}: {error}" if place else str(error)
            self.rejected += (reason[:REJECTION_CHARACTERS_MAX],)


def read_time(text: object) -> datetime:
    """Parse an ISO 8601 time with a zone, truncated to microseconds. Raises BadEvent."""
    if (time := zoned_time(text)) is None:
        raise BadEvent(f"time is {quoted(text)}; it must be an ISO 8601 time with a zone")
    return time


def read_number(value: object, name: str) -> float:
    """Parse a number from 0 to ``MEASURE_MAX``. Raises BadEvent."""
    number = measure(value)
    if number is None:
        raise BadEvent(f"{name} is {quoted(value)}; it must be a number from 0 to {MEASURE_MAX:g}")
    return number


# --- passing readings on ----------------------------------------------------------------------


def to_effect(stream: Stream, sequence: int, decoded: Decoded) -> Effect:
    """The messages for the readings, and a value that lists the rejected items."""
    kept = _newest(decoded.readings)
    refused = {"rejected": decoded.rejected, "rejected_count": decoded.rejected_count}
    return Effect(
        sequence,
        value=json.dumps(refused, ensure_ascii=False) if decoded.rejected else None,
        messages=tuple(_messages(stream, sequence, kept)),
        ignored=decoded.ignored + len(decoded.readings) - len(kept),
        set_aside=decoded.set_aside,
    )


def _newest(readings: Sequence[Metric]) -> Sequence[Metric]:
    """The newest readings of each metric, as many as are kept, in the order of the event."""
    if len(readings) <= READINGS_OF_A_METRIC_MAX:
        return readings
    counts: Counter[tuple[str, str]] = Counter()
    kept = set[int]()
    newest_first = sorted(enumerate(readings), key=lambda each: each[1].value.time, reverse=True)
    for index, reading in newest_first:
        counts[reading.resource_name, reading.name] += 1
        if counts[reading.resource_name, reading.name] <= READINGS_OF_A_METRIC_MAX:
            kept.add(index)
    return [reading for index, reading in enumerate(readings) if index in kept]


def _messages(stream: Stream, sequence: int, readings: Sequence[Metric]) -> Iterator[OutboxMessage]:
    """As few messages as can hold all readings, because each is a row of a limited transaction. One
    of several groups is a JSON array, whose elements are sent one by one."""
    groups = list(grouped(readings))
    part: list[str] = []
    size, first_id = 0, ""
    for index, group in enumerate(groups):
        identity = message_id(stream, sequence, index if len(groups) > 1 else None)
        text = encode_samples(group, identity)
        if part and size + len(text) > BODY_CHARACTERS_MAX:
            yield _message(first_id, part)
            part, size = [], 0
        if not part:
            first_id = identity
        part.append(text)
        size += len(text) + 2
    if part:
        yield _message(first_id, part)


def _message(first_id: str, texts: Sequence[str]) -> OutboxMessage:
    return OutboxMessage(first_id, texts[0] if len(texts) == 1 else f"[{','.join(texts)}]")
