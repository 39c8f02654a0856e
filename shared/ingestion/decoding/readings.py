"""Readings of metrics: what events bring, who asked for them, and how they are handed on.

They are handed on as the JSON that the queue ``metrics`` carries; that text is all that ingestion
and autoscaling share.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from shared.autoscaling.measurements import MEASURE_MAX
from shared.autoscaling.messages import METRICS_OF_A_MESSAGE_MAX, measure
from shared.ingestion.errors import BadEvent
from shared.ingestion.model import Effect, OutboxMessage, Stream, message_id
from shared.values.text import shown

SCHEMA_VERSION = 1

MANY_SAMPLES_VERSION = 2

BODY_CHARACTERS_MAX = 45_000
"""Of one message. A storage queue takes 64 KiB, which is 48 KiB where somebody sends base64."""

READINGS_OF_A_METRIC_MAX = 3_000
"""Of one event, the newest: scaling keeps no more samples of a metric."""

SAMPLES_CHARACTERS_MAX = BODY_CHARACTERS_MAX - 2_000
"""Of the samples in a message, besides its id and its resource."""


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
class SubscribedMetric:
    """The metric that an aggregate of a platform metric becomes. Grains are ISO 8601 durations."""

    resource_name: str
    name: str
    aggregation: str = "average"
    time_grain: str = "PT1M"


@dataclass(frozen=True, slots=True)
class MetricSubscriptions:
    """Which metrics somebody asked for.

    ``pushed`` are pairs of resource and name whose readings come as our own JSON; ``monitored``
    are metrics of Azure Monitor by resource ID and metric, as ``azure_monitor.key`` spells them.
    """

    pushed: Set[tuple[str, str]] = frozenset()
    monitored: Mapping[tuple[str, str], tuple[SubscribedMetric, ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )


@dataclass(frozen=True, slots=True)
class Decoded:
    """What an event held: readings, how many things nobody asked for, and what is wrong with
    those that somebody asked for."""

    readings: tuple[Reading, ...] = ()
    ignored: int = 0
    rejected: tuple[str, ...] = ()
    """The first few."""
    rejected_count: int = 0
    """All of them."""

    @property
    def summary(self) -> str:
        more = self.rejected_count - len(self.rejected)
        return "; ".join(self.rejected) + (f"; and {more} more" if more > 0 else "")


@dataclass(slots=True)
class Rejections:
    """What is wrong with the elements of one event: the first few, and how many."""

    kept: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, reason: str) -> None:
        self.count += 1
        if len(self.kept) < REJECTIONS_KEPT:
            self.kept.append(reason[:REJECTION_CHARACTERS_MAX])

    def decoded(self, readings: Sequence[Reading], ignored: int = 0) -> Decoded:
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
    """Messages for the readings, and a row for what was refused beside them."""
    kept = _newest(decoded.readings)
    refused = {"rejected": decoded.rejected, "rejected_count": decoded.rejected_count}
    return Effect(
        sequence,
        value=json.dumps(refused, ensure_ascii=False) if decoded.rejected else None,
        messages=tuple(_messages(stream, sequence, kept)),
        ignored=decoded.ignored + len(decoded.readings) - len(kept),
    )


def _newest(readings: Sequence[Reading]) -> Sequence[Reading]:
    """Of each metric no more than are kept, in the order of the event."""
    if len(readings) <= READINGS_OF_A_METRIC_MAX:
        return readings
    counts: Counter[tuple[str, str]] = Counter()
    kept = set[int]()
    newest_first = sorted(enumerate(readings), key=lambda each: each[1].time, reverse=True)
    for index, reading in newest_first:
        counts[reading.resource_name, reading.name] += 1
        if counts[reading.resource_name, reading.name] <= READINGS_OF_A_METRIC_MAX:
            kept.add(index)
    return [reading for index, reading in enumerate(readings) if index in kept]


def _messages(
    stream: Stream, sequence: int, readings: Sequence[Reading]
) -> Iterator[OutboxMessage]:
    """As few as hold all readings: a message of several is a JSON array, which is sent one by one.

    A message is a row, and a transaction takes only so many: an event can bring thousands.
    """
    groups = list(_groups(readings))
    part: list[str] = []
    size, first_id = 0, ""
    for index, group in enumerate(groups):
        identity = message_id(stream, sequence, index if len(groups) > 1 else None)
        text = _encode(identity, group)
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


def _groups(readings: Sequence[Reading]) -> Iterator[Sequence[Reading]]:
    """What goes into one queue message each: readings of one resource, in their order."""
    by_resource: dict[str, list[Reading]] = {}
    for reading in readings:
        by_resource.setdefault(reading.resource_name, []).append(reading)
    for of_one in by_resource.values():
        start, size, names = 0, 0, set[str]()
        for index, reading in enumerate(of_one):
            cost = len(_time_text(reading)) + len(repr(reading.value)) + len('["",],')
            known = reading.name in names
            if not known:
                cost += len(json.dumps(reading.name)) + len(":[],")
            full = size + cost > SAMPLES_CHARACTERS_MAX
            if full or (not known and len(names) == METRICS_OF_A_MESSAGE_MAX):
                yield of_one[start:index]
                start, size, names = index, 0, set()
            size += cost
            names.add(reading.name)
        yield of_one[start:]


def encode_reading(reading: Reading) -> bytes:
    """An event, as whoever measures sends it."""
    return _encode("", [reading]).encode()


def _encode(identity: str, readings: Sequence[Reading]) -> str:
    """One reading as ever, so that older versions of the app read it; several as pairs."""
    fields: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION if len(readings) == 1 else MANY_SAMPLES_VERSION,
        **({"id": identity} if identity else {}),
        "resource_name": readings[0].resource_name,
    }
    if len(readings) == 1:
        (reading,) = readings
        value = {"time": _time_text(reading), "value": reading.value}
        fields |= {"name": reading.name, "value": value}
    else:
        fields["samples"] = samples = dict[str, list[tuple[str, float]]]()
        for reading in readings:
            samples.setdefault(reading.name, []).append((_time_text(reading), reading.value))
    return json.dumps(fields, separators=(",", ":"))


def _time_text(reading: Reading) -> str:
    return reading.time.astimezone(UTC).isoformat().replace("+00:00", "Z")
