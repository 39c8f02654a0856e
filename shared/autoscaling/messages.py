"""Encodes and decodes queue messages. Each is a JSON object with a schema version.

A metric message of version 1 carries one sample: ``resource_name``, ``name`` and ``value``, an
object with ``time``, ``value`` and, while nothing can be received from a Service Bus entity,
``entity_status``. Version 2 carries many samples of one resource: ``resource_name`` and
``samples``, an object with a list of ``[time, value]`` or ``[time, value, entity_status]`` for each
metric. A message with a single sample is always written as version 1. The app's own messages may
have a field ``plan``, see PlanFacts, and all a field ``traceparent``, see Tracer. Version 3 carries
``messages``, a list of such messages. The app writes it only if ``ResourcesPerMessage`` says so.

The text is JSON, or JSON in base64, which many queue clients send. The host does not decode it
(``messageEncoding: none``): if it did, a message that is not base64 would reach no function, not
even the one on the poison queue.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shared.autoscaling.errors import BadMessage
from shared.autoscaling.state import EPOCH_MAX, ScaleAction
from shared.values.bounds import Bounds
from shared.values.measurements import CAPACITY_SANE_MAX, DISABLED, MEASURE_MAX, Metric, MetricValue
from shared.values.row_values import properties
from shared.values.samples import (
    MANY_RESOURCES_VERSION,
    MANY_SAMPLES_VERSION,
    METRICS_OF_A_MESSAGE_MAX,
    RESOURCES_OF_A_MESSAGE_MAX,
    SAMPLE_FIELDS,
    SCHEMA_VERSION,
    encode,
    format_time,
    measure,
    version_of,
)
from shared.values.text import listed, of_queue, quoted, zoned_time

REFUSED_SHOWN_MAX = 20
PLAN_FIELD = "plan"
TRACEPARENT = re.compile(r'"traceparent"\s*:\s*"([0-9a-f-]{55})"')
TRACES_MAX = 32


@dataclass(frozen=True, slots=True)
class Samples:
    """The valid samples of one message, in its order, and the errors of the invalid ones."""

    resource_name: str
    metrics: tuple[Metric, ...]
    refused: tuple[BadMessage, ...] = ()
    plan: object = None
    """What the message says about the plan. It is not checked yet, see ``plan_facts.of_fields``."""


def split(body: str) -> list[str] | None:
    """The messages in a message for many resources; None if it is a message of another version.
    Raises BadMessage if they are no list, or too many. Each of them may be bad on its own."""
    document = _document(body, "metric") if '"messages"' in of_queue(body) else None
    fields: dict[str, Any] = document if isinstance(document, dict) else {}
    version, messages = fields.get("schema_version"), fields.get("messages")
    if type(version) is not int or version != MANY_RESOURCES_VERSION:
        return None
    if not isinstance(messages, list) or not 1 <= len(messages) <= RESOURCES_OF_A_MESSAGE_MAX:
        must = f"must be a list of 1 to {RESOURCES_OF_A_MESSAGE_MAX} messages"
        raise BadMessage(f"metric: messages is {quoted(messages)}, {must}")
    return [json.dumps(each, separators=(",", ":")) for each in messages]


def traceparents(body: str) -> list[str]:
    """The traces that a message of any kind and version continues."""
    return list(dict.fromkeys(TRACEPARENT.findall(of_queue(body))))[:TRACES_MAX]


def decode_samples(body: str, resource_name: str = "") -> Samples:
    """The samples of a message of version 1 or 2, or of a list of such messages of one resource:
    ``resource_name``, by default that of the first. Raises BadMessage if no sample is valid."""
    document = _document(body, "metric")
    is_list = isinstance(document, list)
    metrics, refused, plan = list[Metric](), list[BadMessage](), None
    for place, fields in enumerate(document if is_list else [document]):
        try:
            one = _samples(fields)
            resource_name = resource_name or one.resource_name
            if one.resource_name != resource_name:
                wrong = f"resource_name is {quoted(one.resource_name)}"
                raise BadMessage(
                    f"{wrong}, must be {quoted(resource_name)} as in the address or "
                    "in the first message"
                )
            metrics += one.metrics
            refused += one.refused
            plan = one.plan or plan
        except BadMessage as error:
            refused.append(BadMessage(f"[{place}] {error}") if is_list else error)
    if not metrics:
        raise all_refused(refused or [BadMessage("samples: must hold at least one sample")])
    if (count := len({metric.name for metric in metrics})) > METRICS_OF_A_MESSAGE_MAX:
        raise BadMessage(
            f"samples: {count} metrics; a message may have at most {METRICS_OF_A_MESSAGE_MAX}"
        )
    return Samples(resource_name, tuple(metrics), tuple(refused), plan)


def _samples(document: object) -> Samples:
    fields = _versioned(document, "metric", (SCHEMA_VERSION, MANY_SAMPLES_VERSION))
    metrics, refused, plan = list[Metric](), list[BadMessage](), fields.get(PLAN_FIELD)
    if fields["schema_version"] == SCHEMA_VERSION:
        given = _field(fields, "value", dict, "metric")
        resource_name = _field(fields, "resource_name", str, "metric")
        name = _field(fields, "name", str, "metric")
        metric = Metric(resource_name, name, _value(given, "metric value"))
        return Samples(resource_name, (metric,), plan=plan)
    resource_name = _field(fields, "resource_name", str, "samples")
    samples: dict[str, Any] = _field(fields, "samples", dict, "samples")
    for name, pairs in samples.items():
        for pair in pairs if isinstance(pairs, list) else [pairs]:
            try:
                metrics.append(Metric(resource_name, name, _pair(name, pair)))
            except BadMessage as error:
                refused.append(error)
    return Samples(resource_name, tuple(metrics), tuple(refused), plan)


def all_refused(refused: Sequence[BadMessage]) -> BadMessage:
    return refused[0] if len(refused) == 1 else BadMessage(summary(refused))


def summary(refused: Sequence[object]) -> str:
    """The first few errors, and the number of the others."""
    return listed(refused, REFUSED_SHOWN_MAX, "; ")


def encode_action(action: ScaleAction) -> str:
    return encode({**properties(action), "requested_at": format_time(action.requested_at)})


def decode_action(body: str) -> ScaleAction:
    """Raises BadMessage, which names the field, its value and what the value must be."""
    fields = _versioned(_document(body, "action"), "action", (SCHEMA_VERSION,))
    return ScaleAction(
        resource_name=_field(fields, "resource_name", str, "action"),
        target=_counted(fields, "target", CAPACITY_SANE_MAX),
        epoch=_counted(fields, "epoch", EPOCH_MAX),
        reason=_field(fields, "reason", str, "action"),
        requested_at=_time(fields, "requested_at", "action"),
    )


def named_resource(body: str) -> str | None:
    """The resource that a message names, even if the rest of the message is invalid."""
    try:
        document = json.loads(of_queue(body))
    except (ValueError, RecursionError):
        return None
    fields = document[0] if document and isinstance(document, list) else document
    name = fields.get("resource_name") if isinstance(fields, dict) else None
    return name if isinstance(name, str) else None


def _document(body: str, kind: str) -> Any:
    try:
        return json.loads(of_queue(body))
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"{kind}: neither JSON nor JSON in base64 ({error})") from error


def _versioned(fields: object, kind: str, versions: Sequence[int]) -> dict[str, Any]:
    if not isinstance(fields, dict):
        raise BadMessage(f"{kind}: must be a JSON object, is {quoted(fields)}")
    version = fields.get("schema_version")
    if (read := version_of(fields, versions)) is None:
        readable = " and ".join([str(each) for each in versions])
        advice = "deploy the same version of the sender and the app"
        if version == MANY_RESOURCES_VERSION:
            advice = f"only the app itself sends {version}, to the queue metrics"
        raise BadMessage(
            f"{kind}: schema_version is {quoted(version)}, but this app reads {readable}; {advice}"
        )
    return {**fields, "schema_version": read}


def _field(fields: Mapping[str, Any], name: str, kind: type[Any], where: str) -> Any:
    value = fields.get(name)
    if type(value) is not kind or (kind is str and not value and name != "reason"):
        raise BadMessage(f"{where}: {name} is {quoted(value)}, must be {KINDS[kind]}")
    return value


KINDS: Mapping[type, str] = {str: "text", dict: "a JSON object"}


def _counted(fields: Mapping[str, Any], name: str, most: int) -> int:
    value: Any = fields.get(name)
    if must := Bounds(1, most).problem(value, int):
        raise BadMessage(f"action: {name} is {quoted(value)}, {must}")
    return int(value)


def _pair(name: str, pair: object) -> MetricValue:
    where = f"sample of {quoted(name)}"
    if not isinstance(pair, list) or len(pair) not in (2, 3):
        raise BadMessage(f"{where}: {quoted(pair)} must be a pair [time, value]")
    return _value(dict(zip(SAMPLE_FIELDS, pair, strict=False)), where)


def _value(fields: Mapping[str, Any], where: str) -> MetricValue:
    status = fields.get("entity_status", "")
    if status not in ("", *DISABLED):
        must = f"must be one of {', '.join(DISABLED)}"
        raise BadMessage(f"{where}: entity_status is {quoted(status)}, {must}")
    time, value = _time(fields, "time", where), measure(fields.get("value"))
    if value is None:
        given = quoted(fields.get("value"))
        raise BadMessage(f"{where}: value is {given}, must be a number from 0 to {MEASURE_MAX:g}")
    return MetricValue(time, value, status)


def _time(fields: Mapping[str, Any], name: str, where: str) -> datetime:
    time = zoned_time(fields.get(name))
    if time is None:
        must = "must be an ISO 8601 time with a time zone, such as Z"
        raise BadMessage(f"{where}: {name} is {quoted(fields.get(name))}, {must}")
    return time
