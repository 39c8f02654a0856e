"""Queue messages: one JSON object each, with a schema version, checked field by field.

A message of version 1 brings one sample: ``resource_name``, ``name`` and ``value``, an object with
``time`` and ``value``. One of version 2 brings many samples of one resource: ``resource_name`` and
``samples``, an object that has for each metric a list of pairs ``[time, value]``. Whatever brings
one sample only is of version 1, so that older versions of this app read it too.

Text is JSON, or JSON in base64 as many queue clients send it. The host hands messages over as
they are (``messageEncoding: none``), because with base64 in the host a message that is not base64
would never reach any function, not even the one on the poison queue.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from shared.autoscaling.errors import BadMessage
from shared.autoscaling.measurements import CAPACITY_SANE_MAX, MEASURE_MAX, Metric, MetricValue
from shared.autoscaling.state import EPOCH_MAX, ScaleAction
from shared.values.text import shown

SCHEMA_VERSION = 1
MANY_SAMPLES_VERSION = 2

METRICS_OF_A_MESSAGE_MAX = 8
"""Of one resource. Each is a row of up to 110 kB, and all of a message are one transaction: up to
1 MiB the client sends it without holding up the event loop."""

TIME_CHARACTERS_MAX = 64
REFUSED_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of one resource that a message brings, in its order, and what else is in it."""

    resource_name: str
    metrics: tuple[Metric, ...]
    refused: tuple[BadMessage, ...] = ()
    """What is wrong with the others."""


def encode_metric(metric: Metric) -> str:
    value = {"time": format_time(metric.value.time), "value": metric.value.value}
    return _encode({"resource_name": metric.resource_name, "name": metric.name, "value": value})


def decode_metric(body: str) -> Metric:
    """Raises BadMessage, which names the field, what it holds and what it should hold."""
    return _metric(_decode(body, "metric"))


def _metric(fields: Mapping[str, Any]) -> Metric:
    value = _field(fields, "value", dict, "metric")
    return Metric(
        resource_name=_field(fields, "resource_name", str, "metric"),
        name=_field(fields, "name", str, "metric"),
        value=MetricValue(_time(value, "time", "metric value"), _measure(value)),
    )


def decode_samples(body: str) -> Samples:
    """The samples of a message of either version.

    Raises BadMessage where none of them is of use.
    """
    fields = _decode(body, "metric", (SCHEMA_VERSION, MANY_SAMPLES_VERSION))
    if fields["schema_version"] == SCHEMA_VERSION:
        metric = _metric(fields)
        return Samples(metric.resource_name, (metric,))
    resource_name = _field(fields, "resource_name", str, "samples")
    metrics, refused = list[Metric](), list[BadMessage]()
    samples: dict[str, Any] = _field(fields, "samples", dict, "samples")
    if len(samples) > METRICS_OF_A_MESSAGE_MAX:
        raise BadMessage(
            f"samples: {len(samples)} metrics, at most {METRICS_OF_A_MESSAGE_MAX} are read"
        )
    for name, pairs in samples.items():
        for pair in pairs if isinstance(pairs, list) else [pairs]:
            try:
                metrics.append(Metric(resource_name, name, _pair(name, pair)))
            except BadMessage as error:
                refused.append(error)
    if not metrics:
        raise all_refused(refused or [BadMessage("samples: there are none")])
    return Samples(resource_name, tuple(metrics), tuple(refused))


def all_refused(refused: Sequence[BadMessage]) -> BadMessage:
    """The error of a message of which nothing is of use."""
    return refused[0] if len(refused) == 1 else BadMessage(summary(refused))


def summary(refused: Sequence[BadMessage]) -> str:
    """The first few errors, and how many more there are."""
    more = len(refused) - REFUSED_SHOWN_MAX
    first = "; ".join([str(error) for error in refused[:REFUSED_SHOWN_MAX]])
    return f"{first}; and {more} more" if more > 0 else first


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
        target=_counted(fields, "target", CAPACITY_SANE_MAX),
        epoch=_counted(fields, "epoch", EPOCH_MAX),
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


def measure(value: object) -> float | None:
    """The value as a number from 0 to ``MEASURE_MAX``; None where it is none. Text is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MEASURE_MAX else None  # NaN is in no range


def format_time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _encode(fields: Mapping[str, Any]) -> str:
    return json.dumps({"schema_version": SCHEMA_VERSION, **fields}, separators=(",", ":"))


def _decode(body: str, kind: str, versions: Sequence[int] = (SCHEMA_VERSION,)) -> dict[str, Any]:
    try:
        fields = json.loads(_text(body))
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"{kind}: neither JSON nor JSON in base64 ({error})") from error
    if not isinstance(fields, dict):
        raise BadMessage(f"{kind}: a JSON object is needed, not {shown(fields)}")
    version = fields.get("schema_version")
    if type(version) is not int or version not in versions:
        known = " and ".join([str(each) for each in versions])
        raise BadMessage(
            f"{kind}: schema_version is {shown(version)}, this app reads {known}; "
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
        raise BadMessage(f"{where}: {name} is {shown(value)}, a {kind.__name__} is needed")
    return value


def _counted(fields: Mapping[str, Any], name: str, most: int) -> int:
    value: int = _field(fields, name, int, "action")
    if not 1 <= value <= most:
        raise BadMessage(f"action: {name} is {shown(value)}, a number from 1 to {most} is needed")
    return value


def _pair(name: str, pair: object) -> MetricValue:
    where = f"sample of {shown(name)}"
    if not isinstance(pair, list) or len(pair) != 2:
        raise BadMessage(f"{where}: {shown(pair)} is no pair of time and value")
    fields = {"time": pair[0], "value": pair[1]}
    return MetricValue(_time(fields, "time", where), _measure(fields, where))


def _measure(fields: Mapping[str, Any], where: str = "metric value") -> float:
    value = fields.get("value")
    number = measure(value)
    if number is None:
        raise BadMessage(
            f"{where}: value is {shown(value)}, a number from 0 to {MEASURE_MAX:g} is needed"
        )
    return number


def _time(fields: Mapping[str, Any], name: str, where: str) -> datetime:
    text: str = _field(fields, name, str, where)
    if len(text) > TIME_CHARACTERS_MAX:
        raise BadMessage(f"{where}: {name} is {shown(text)}, an ISO 8601 time is needed")
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is not None:
            return time.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise BadMessage(f"{where}: {name} is {shown(text)}, an ISO 8601 time is needed") from error
    raise BadMessage(f"{where}: {name} is {shown(text)}, a time zone is needed, such as Z")
