"""Reads Azure platform metrics as diagnostic settings stream them to an event hub: ``{"records":
[{time, resourceId, metricName, timeGrain, count, total, minimum, maximum, average}]}``. ``time`` is
the start of the grain. With count 0 the other aggregates have no meaning. A record of one value of
a dimension is not read, because its sample would count as the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from shared.ingestion.decoding.readings import Decoded, SubscribedMetric, read_number, read_time
from shared.ingestion.errors import BadEvent
from shared.values.measurements import Metric, MetricValue
from shared.values.samples import measure
from shared.values.text import quoted

PLAIN_FIELDS = frozenset(
    {
        *("time", "timestamp", "timegrain", "resourceid", "metricname", "metricnamespace"),
        *("namespace", "count", "total", "minimum", "maximum", "average", "last", "unit"),
        *("category", "operationname", "level", "location", "tenantid", "properties"),
        "accountresourceid",  # of storage, which repeats the account beside its dimensions
    }
)
"""The fields of a record that are not dimensions, in lower case."""

Record = Mapping[str, Any]
Monitored = Mapping[tuple[str, str], tuple[SubscribedMetric, ...]]


def key(resource_id: str, metric: str) -> tuple[str, str]:
    """The form in which resource IDs and metric names are compared, without case, as in Azure."""
    return resource_id.rstrip("/").casefold(), metric.casefold()


def is_metric(item: object) -> bool:
    return isinstance(item, dict) and {"resourceId", "metricName"} <= item.keys()


def read_records(
    records: Sequence[tuple[str, Record]], monitored: Monitored, found: Decoded
) -> list[Metric]:
    """The readings in the records, each with its place. A bad one does not affect the others."""
    readings: dict[tuple[SubscribedMetric, datetime], Metric] = {}
    unclear = set[tuple[SubscribedMetric, datetime]]()
    for place, record in records:
        subscribed = [
            metric for metric in _subscribed(record, monitored) if _is_usable(record, metric, found)
        ]
        found.ignored += not subscribed
        for metric in subscribed:
            try:
                time = read_time(record.get("time"))
                value = _value(metric.aggregation, record)
            except BadEvent as error:
                found.reject(f"{place} ({record['metricName']})".lstrip(), error)
                continue
            reading = Metric(metric.resource_name, metric.name, MetricValue(time, value))
            if readings.setdefault((metric, time), reading) != reading:
                unclear.add((metric, time))
                found.note(_divided(record, metric, "something that they do not name"))
    return [reading for of, reading in readings.items() if of not in unclear]


def _subscribed(record: Record, monitored: Monitored) -> tuple[SubscribedMetric, ...]:
    resource_id, metric = record.get("resourceId"), record.get("metricName")
    if not isinstance(resource_id, str) or not isinstance(metric, str):
        return ()
    return monitored.get(key(resource_id, metric), ())


def _is_usable(record: Record, metric: SubscribedMetric, found: Decoded) -> bool:
    """Whether the record has the declared metric's value. With count 0, only the count is known."""
    if dimensions := _dimensions(record):
        found.note(_divided(record, metric, ", ".join(dimensions)))
        return False
    grain = record.get("timeGrain")
    if grain not in (None, metric.time_grain):
        found.note(
            f"{metric.name} of {metric.resource_name} is not read from records of "
            f"{record['metricName']} with the time grain {quoted(grain)}, because scaling_rules.py "
            f"declares {metric.time_grain}: set time_grain to the grain that arrives"
        )
        return False
    return metric.aggregation == "count" or measure(record.get("count")) != 0


def _dimensions(record: Record) -> list[str]:
    """The dimensions by which the metric is divided: fields with texts that no plain record has."""
    inner = record.get("dimensions")
    names = [name for name, value in inner.items() if value] if isinstance(inner, dict) else []
    names += [name for name, value in record.items() if isinstance(value, str)]
    return [quoted(name) for name in names if name.lower() not in PLAIN_FIELDS]


def _divided(record: Record, metric: SubscribedMetric, by: str) -> str:
    return (
        f"{metric.name} of {metric.resource_name} is not read, because the records of "
        f"{record['metricName']} are divided by {by}: the parts of one time can arrive in several "
        "events, so none of them is the value. Declare the metric with streamed=False, and with a "
        "filter if you need one part"
    )


def _value(aggregation: str, record: Record) -> float:
    if aggregation != "average" or record.get("average") is not None:
        return read_number(record.get(aggregation), aggregation)
    try:
        total = read_number(record.get("total"), "total")
        count = read_number(record.get("count"), "count")
    except BadEvent as error:
        raise BadEvent(
            f"the record has neither an average nor both total and count: {error}"
        ) from None
    return read_number(total / count, "average")
