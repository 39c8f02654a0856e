"""Samples as JSON in queue messages: how they are written, and which values they may have.

``autoscaling/messages.py`` describes the versions, and reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from numbers import Real
from typing import Any

from shared.values.measurements import MEASURE_MAX, NOTHING, Metric

SCHEMA_VERSION = 1

MANY_SAMPLES_VERSION = 2

MANY_RESOURCES_VERSION = 3

RESOURCES_OF_A_MESSAGE_MAX = 500
"""The most messages of one resource each that travel in one message."""

MESSAGE_BYTES_MAX = 64_000
"""The most bytes of a message for many resources. A storage queue accepts 64 KiB of plain text."""

SAMPLE_FIELDS = ("time", "value", "entity_status")
"""The last one is left out unless the sample has a status."""

METRICS_OF_A_MESSAGE_MAX = 8
"""The most metrics in one message. Each is a row of up to 110 kB, all are written in one
transaction, and the client sends up to 1 MiB without blocking the event loop."""

SAMPLES_CHARACTERS_MAX = 43_000
"""The most characters of the samples in one message: 48 KiB of base64 that a queue accepts, less
the names and the id."""


def encode_metrics(
    metrics: Iterable[Metric], further: Mapping[str, Mapping[str, Any]] = NOTHING
) -> list[str]:
    """One message for each resource, or a few if its samples do not fit into one, with the
    ``further`` fields of the resource."""
    return [
        encode_samples(each, **further.get(each[0].resource_name, {})) for each in grouped(metrics)
    ]


def together(texts: Iterable[str], resources_max: int) -> list[str]:
    """The messages of one resource each, up to ``resources_max`` of them in one message."""
    start = json.dumps({"schema_version": MANY_RESOURCES_VERSION, "messages": []})[:-2]
    groups, size = list[list[str]](), 0
    for text in texts:
        size += len(text) + 1
        if not groups or len(groups[-1]) == resources_max or size > MESSAGE_BYTES_MAX:
            groups.append([])
            size = len(start) + len(text) + 2
        groups[-1].append(text)
    return [f"{start}{','.join(each)}]}}" if len(each) > 1 else each[0] for each in groups]


def grouped(metrics: Iterable[Metric]) -> Iterator[Sequence[Metric]]:
    """The samples of one message each: of one resource, in their order."""
    by_resource: dict[str, list[Metric]] = {}
    for metric in metrics:
        by_resource.setdefault(metric.resource_name, []).append(metric)
    for of_one in by_resource.values():
        start, size, names = 0, 0, set[str]()
        for index, metric in enumerate(of_one):
            pair = _time_and_value(metric)
            cost = sum(len(repr(each)) + 1 for each in pair) + len("[],")
            is_listed = metric.name in names
            if not is_listed:
                cost += len(json.dumps(metric.name)) + len(":[],")
            full = size + cost > SAMPLES_CHARACTERS_MAX
            if full or (not is_listed and len(names) == METRICS_OF_A_MESSAGE_MAX):
                yield of_one[start:index]
                start, size, names = index, 0, set()
            size += cost
            names.add(metric.name)
        yield of_one[start:]


def encode_samples(metrics: Sequence[Metric], identity: str = "", **further: Any) -> str:
    first = metrics[0]
    fields = {
        **({"id": identity} if identity else {}),
        "resource_name": first.resource_name,
        **further,
    }
    if len(metrics) == 1:
        value = dict(zip(SAMPLE_FIELDS, _time_and_value(first), strict=False))
        return encode({**fields, "name": first.name, "value": value})
    samples: dict[str, list[tuple[str | float, ...]]] = {}
    for metric in metrics:
        samples.setdefault(metric.name, []).append(_time_and_value(metric))
    return encode({**fields, "samples": samples}, MANY_SAMPLES_VERSION)


def _time_and_value(metric: Metric) -> tuple[str | float, ...]:
    value = metric.value
    return format_time(value.time), value.value, *((value.status,) if value.status else ())


def measure(value: object) -> float | None:
    """The value if it is a number from 0 to ``MEASURE_MAX``, else None. Text is not a number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return float(value) if 0 <= value <= MEASURE_MAX else None  # type: ignore[operator]  # false for NaN


def format_time(time: datetime) -> str:
    """The time as ISO 8601 text in UTC, ending in Z."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def version_of(fields: Mapping[str, Any], versions: Sequence[int]) -> int | None:
    """The one of these versions that a message has. Some tools write it as 1.0, or as text."""
    forms = {form: each for each in versions for form in (str(each), f"{each}.0")}
    return forms.get(str(fields.get("schema_version")))


def encode(fields: Mapping[str, Any], version: int = SCHEMA_VERSION) -> str:
    return json.dumps({"schema_version": version, **fields}, separators=(",", ":"))
