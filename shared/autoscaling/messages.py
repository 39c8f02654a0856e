"""Queue messages: one JSON object each, with a schema version, checked field by field.

Text is JSON, or JSON in base64 as many queue clients send it. The host hands messages over as
they are (``messageEncoding: none``), because with base64 in the host a message that is not base64
would never reach any function, not even the one on the poison queue.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from shared.autoscaling.errors import BadMessage
from shared.autoscaling.model import Metric, MetricValue, ScaleAction

SCHEMA_VERSION = 1


def encode_metric(metric: Metric) -> str:
    value = {"time": format_time(metric.value.time), "value": metric.value.value}
    return _encode({"resource_name": metric.resource_name, "name": metric.name, "value": value})


def decode_metric(body: str) -> Metric:
    """Raises BadMessage, which names the field, what it holds and what it should hold."""
    fields = _decode(body, "metric")
    value = _field(fields, "value", dict, "metric")
    return Metric(
        resource_name=_field(fields, "resource_name", str, "metric"),
        name=_field(fields, "name", str, "metric"),
        value=MetricValue(_time(value, "time", "metric value"), _measure(value)),
    )


def encode_action(action: ScaleAction) -> str:
    return _encode(
        {
            "resource_name": action.resource_name,
            "target": action.target,
            "epoch": action.epoch,
            "reason": action.reason,
            "requested_at": format_time(action.requested_at),
        }
    )


def decode_action(body: str) -> ScaleAction:
    """Raises BadMessage, which names the field, what it holds and what it should hold."""
    fields = _decode(body, "action")
    return ScaleAction(
        resource_name=_field(fields, "resource_name", str, "action"),
        target=_positive(fields, "target"),
        epoch=_positive(fields, "epoch"),
        reason=_field(fields, "reason", str, "action"),
        requested_at=_time(fields, "requested_at", "action"),
    )


def named_resource(body: str) -> str | None:
    """The resource that a message names, however bad the rest of it is."""
    try:
        fields = json.loads(_text(body))
    except (ValueError, RecursionError):
        return None
    name = fields.get("resource_name") if isinstance(fields, dict) else None
    return name if isinstance(name, str) else None


def format_time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _encode(fields: Mapping[str, Any]) -> str:
    return json.dumps({"schema_version": SCHEMA_VERSION, **fields}, separators=(",", ":"))


def _decode(body: str, kind: str) -> dict[str, Any]:
    try:
        fields = json.loads(_text(body))
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"{kind}: neither JSON nor JSON in base64 ({error})") from error
    if not isinstance(fields, dict):
        raise BadMessage(f"{kind}: a JSON object is needed, not {_shown(fields)}")
    version = fields.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise BadMessage(
            f"{kind}: schema_version is {_shown(version)}, this app reads {SCHEMA_VERSION}; "
            "deploy sender and app of the same version"
        )
    return fields


def _text(body: str) -> str:
    stripped = body.strip()
    if stripped.startswith("{"):
        return stripped
    try:
        return base64.b64decode(stripped, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return stripped


def _field(fields: Mapping[str, Any], name: str, kind: type[Any], where: str) -> Any:
    value = fields.get(name)
    if type(value) is not kind or (kind is str and not value and name != "reason"):
        raise BadMessage(f"{where}: {name} is {_shown(value)}, a {kind.__name__} is needed")
    return value


def _positive(fields: Mapping[str, Any], name: str) -> int:
    value: int = _field(fields, name, int, "action")
    if value < 1:
        raise BadMessage(f"action: {name} is {value}, at least 1 is needed")
    return value


def _measure(value: Mapping[str, Any]) -> float:
    number: Any = value.get("value")
    try:
        measure = float(number) if type(number) in (int, float) else math.nan
    except OverflowError:  # JSON knows integers that no float can hold
        measure = math.inf
    if not math.isfinite(measure) or measure < 0:
        raise BadMessage(f"metric value: value is {_shown(number)}, a finite number ≥ 0 is needed")
    return measure


def _time(fields: Mapping[str, Any], name: str, where: str) -> datetime:
    text: str = _field(fields, name, str, where)
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is not None:
            return time.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise BadMessage(
            f"{where}: {name} is {_shown(text)}, an ISO 8601 time is needed"
        ) from error
    raise BadMessage(f"{where}: {name} is {_shown(text)}, a time zone is needed, such as Z")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
