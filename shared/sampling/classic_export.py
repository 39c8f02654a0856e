"""Reads records of the classic continuous export of Application Insights.

The payload is a list with one item; all other fields are in ``context``. Durations are in tenths of
a microsecond, properties and measurements are lists of objects, and ``context.data.samplingRate``
is in percent. Source: the Application Insights export data model.
"""

from __future__ import annotations

from typing import Any

from shared.sampling import fields as f
from shared.sampling.model import Ignored, Record, RecordKind
from shared.sampling.natural_key import natural_key
from shared.sampling.weights import weigh

KINDS = {
    "event": RecordKind.EVENT,
    "request": RecordKind.REQUEST,
    "remoteDependency": RecordKind.DEPENDENCY,
    "message": RecordKind.TRACE,
}
OTHER_PAYLOADS = frozenset(
    {"availability", "basicException", "clientPerformance", "metric", "performanceCounter", "view"}
)
TICKS_PER_MS = 10_000


def is_classic(line: f.Fields) -> bool:
    return isinstance(line.get("context"), dict) and _payload(line) is not None


def read_classic(line: f.Fields) -> Record | Ignored:
    """The record of one line. Raises BadField."""
    payload = _payload(line) or ""
    if payload not in KINDS:
        return Ignored(payload)
    item, context = f.only_item(line, payload), f.mapping(line, "context")
    data, custom = f.mapping(context, "data"), f.mapping(context, "custom")
    return Record(
        kind=KINDS[payload],
        time=f.utc_time(data, "eventTime"),
        name=f.text(item, "raw" if payload == "message" else "name"),
        weight=weigh(f.item_count(item, "count"), f.rate_percent(data, "samplingRate"), None),
        key=_key(line, payload, item, context),
        operation_id=f.operation_id(f.mapping(context, "operation"), "id"),
        measurements=_measurements(item, custom),
        properties=f.texts(_joined(custom, "dimensions")),
        role_name=f.text(f.mapping(context, "device"), "roleName"),
    )


def _payload(line: f.Fields) -> str | None:
    return next((name for name in line if name in KINDS or name in OTHER_PAYLOADS), None)


def _key(line: f.Fields, payload: str, item: f.Fields, context: f.Fields) -> str:
    """The ID that the service assigns at ingestion. A record without an ID is itself the key."""
    ingested = f.text(f.mapping(f.mapping(line, "internal"), "data"), "id")
    return natural_key([payload, ingested] if ingested else [payload, item, context])


def _measurements(item: f.Fields, custom: f.Fields) -> dict[str, float]:
    """Custom measurements, which are numbers or objects with a value, and the duration in ms."""
    measurements = {}
    for name, metric in _joined(custom, "metrics").items():
        value = metric.get("value") if isinstance(metric, dict) else metric
        if value is not None:
            measurements[name] = f.as_number(value, f"context.custom.metrics.{name}")
    ticks = f.number(f.mapping(item, "durationMetric"), "value")
    return measurements if ticks is None else {"DurationMs": ticks / TICKS_PER_MS, **measurements}


def _joined(custom: f.Fields, name: str) -> dict[str, Any]:
    parts = custom.get(name) or []
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise f.BadField(f"context.custom.{name}", "a list of objects", parts)
    return {key: value for part in parts for key, value in part.items()}
