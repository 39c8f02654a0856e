"""Reads records of the classic continuous export of Application Insights.

The payload is a list with one item; all other fields are in ``context``. Durations are in tenths of
a microsecond, properties and measurements are lists of objects, and ``context.data.samplingRate``
is in percent. Source: the Application Insights export data model.
"""

from __future__ import annotations

from typing import Any

from shared.sampling import fields as f
from shared.sampling.model import BadField, Ignored, Record, RecordKind, Sender
from shared.sampling.natural_key import natural_key
from shared.sampling.weights import weight_of

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
    data, custom = f.mapping(context, "data"), _object(context, "custom")
    measurements, unreadable = _measurements(item, custom)
    return Record(
        kind=KINDS[payload],
        time=f.utc_time(data, "eventTime"),
        name=f.text(item, "raw" if payload == "message" else "name"),
        weight=weight_of(item, "count", f.rate_percent(data, "samplingRate"), None),
        key=_key(line, payload, item, context),
        operation_id=f.operation_id(_object(context, "operation"), "id"),
        measurements=measurements,
        properties=f.texts(f.or_else({}, _joined, custom, "dimensions")),
        role_name=f.any_text(_object(context, "device"), "roleName"),
        sender=Sender(
            f.any_text(_object(context, "device"), "roleInstance"),
            AppVersion=f.any_text(_object(context, "application"), "version"),
        ),
        item_count=f.or_else(None, f.item_count, item, "count") or 1.0,
        unreadable=unreadable,
    )


def _payload(line: f.Fields) -> str | None:
    return next((name for name in line if name in KINDS or name in OTHER_PAYLOADS), None)


def _key(line: f.Fields, payload: str, item: f.Fields, context: f.Fields) -> str:
    """The ID that the service assigns at ingestion. A record without an ID is itself the key."""
    ingested = f.any_text(_object(_object(line, "internal"), "data"), "id")
    return natural_key([payload, ingested] if ingested else [payload, item, context])


def _object(fields: f.Fields, name: str) -> f.Fields:
    return f.or_else({}, f.mapping, fields, name)


def _measurements(
    item: f.Fields, custom: f.Fields
) -> tuple[dict[str, float], dict[str | None, BadField]]:
    """Custom measurements, which are numbers or objects with a value, and the duration in ms."""
    ticks = _object(item, "durationMetric").get("value"), "durationMetric.value"
    durations, unreadable = f.numbers({"DurationMs": ticks})
    values: dict[str, tuple[object, str]] = {}
    try:
        for name, metric in _joined(custom, "metrics").items():
            value = metric.get("value") if isinstance(metric, dict) else metric
            values[name] = value, f"context.custom.metrics.{name}"
    except BadField as error:
        unreadable[None] = error
    numbers, errors = f.numbers(values)
    in_ms = {name: ticks / TICKS_PER_MS for name, ticks in durations.items()}
    return {**in_ms, **numbers}, {**unreadable, **errors}


def _joined(custom: f.Fields, name: str) -> dict[str, Any]:
    parts = custom.get(name) or []
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise BadField(f"context.custom.{name}", "a list of objects", parts)
    return {key: value for part in parts for key, value in part.items()}
