"""Recognizes events of other products on the same hub, which are certainly not metrics. Whatever
has a field of a metric may be a damaged one, so it is not recognized here."""

from __future__ import annotations

import re
from collections.abc import Mapping

OWN = frozenset({"schema_version", "resource_name"})
"""The fields by which this app's own metric JSON is told from the JSON of others."""
SIMILAR = frozenset({"schemaversion", "resourcename", "metricname"})
"""The fields of metrics, without underscores and in lower case."""

KINDS: tuple[tuple[str, frozenset[str]], ...] = (
    ("a CloudEvent", frozenset({"specversion", "type", "source"})),
    ("an event of Event Grid", frozenset({"eventType", "eventTime"})),
    ("a change of Kafka Connect", frozenset({"schema", "payload"})),
    ("a change of Debezium", frozenset({"op", "ts_ms"})),
    ("a log of Azure Monitor", frozenset({"category"})),
    ("a log of Azure Monitor", frozenset({"operationName"})),
    ("a row of Log Analytics or Application Insights", frozenset({"Type", "time"})),
    ("a row of Log Analytics or Application Insights", frozenset({"Type", "TimeGenerated"})),
    ("metrics in columns of Log Analytics", frozenset({"MetricName", "TimeGenerated"})),
    ("a message of a device", frozenset({"deviceId"})),
)
"""What the JSON of other products is, by the fields that it certainly has."""

LOG_FIELD = re.compile(rb'"(category|operationName)"\s*:')
METRIC_FIELD = re.compile(rb'"(metricName|schema_version|resource_name)"\s*:')
AVRO = b"Obj\x01"
LOG_PROPERTIES = re.compile(rb"""("properties"\s*:\s*)\{(?:'(?:[^'\\]|\\.)*+'|[^{}'"])*+\}""")
"""The properties of a log in single quotes, as those of FunctionAppLogs."""


def kind_of(item: object) -> str:
    """What an element of an event is, if it is certainly not a metric; empty if it may be one."""
    if not isinstance(item, dict) or _has_own_fields(item):
        return ""
    for kind, fields in KINDS:
        if fields <= item.keys():
            return kind
    names = {str(name).replace("_", "").lower() for name in item}
    if names & SIMILAR or {"name", "value"} <= names:
        return ""
    return "JSON of another kind"


def kind_of_bytes(body: bytes) -> str:
    """What a body that is not JSON is, if it is certainly not a metric; empty if it may be one."""
    if not body:
        return "an empty event"
    if body.startswith(AVRO):
        return "an Avro file"
    is_log = LOG_FIELD.search(body) and not METRIC_FIELD.search(body)
    return "a log of Azure Monitor that is not valid JSON" if is_log else ""


def without_log_properties(body: bytes) -> bytes:
    """The body without the properties of logs that are not JSON."""
    return LOG_PROPERTIES.sub(rb"\1{}", body)


def _has_own_fields(item: Mapping[str, object]) -> bool:
    inner = [value for value in item.values() if isinstance(value, dict)]
    return not OWN.isdisjoint(item) or any(value.keys() >= OWN for value in inner)
