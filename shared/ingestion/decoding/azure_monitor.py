"""Reads Azure platform metrics as diagnostic settings stream them to an event hub.

An event is ``{"records": [...]}``, and the record of a metric is ``{time, resourceId, metricName,
timeGrain, count, total, minimum, maximum, average}``. Resource IDs are in upper case, whatever the
spelling of the resource's name. Times have seven fractional digits. Not every metric has every
aggregate. ``time`` is the start of the time grain. If nothing was measured, the count is 0, and the
other aggregates have no meaning. The record of a log has no ``metricName``.

Some metrics, such as those of storage accounts, have a record for each value of a dimension. The
records of one time may be divided among several events. A sample is identified by its time, so the
first record would count as the whole. Such records are therefore not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from shared.ingestion.decoding.readings import (
    Decoded,
    DecodedReading,
    SubscribedMetric,
    read_number,
    read_time,
)
from shared.ingestion.errors import BadEvent
from shared.values.samples import measure
from shared.values.text import quoted

PLAIN_FIELDS = frozenset(
    {
        *("time", "timestamp", "timegrain", "resourceid", "metricname", "metricnamespace"),
        *("namespace", "count", "total", "minimum", "maximum", "average", "last", "unit"),
        *("category", "operationname", "level", "location", "tenantid", "properties"),
    }
)
"""The fields of a record that are not dimensions, in lower case."""

Record = Mapping[str, Any]
Monitored = Mapping[tuple[str, str], tuple[SubscribedMetric, ...]]


def key(resource_id: str, metric: str) -> tuple[str, str]:
    """The form in which resource IDs and metric names are compared. Azure ignores the case of
    both."""
    return resource_id.rstrip("/").casefold(), metric.casefold()


def is_metric(item: object) -> bool:
    return isinstance(item, dict) and {"resourceId", "metricName"} <= item.keys()


def read_records(
    records: Sequence[tuple[str, Record]], monitored: Monitored, found: Decoded
) -> list[DecodedReading]:
    """The readings in the records of subscribed metrics. A bad record does not affect the others.

    Each record comes with its place in the event.
    """
    readings: dict[tuple[SubscribedMetric, datetime], DecodedReading] = {}
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
            reading = DecodedReading(metric.resource_name, metric.name, time, value)
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
    """Whether the record has the value of the declared metric. With count 0 it has none, because
    nothing was measured; only the count itself is then known."""
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
    """The aggregate of the record. Raises BadEvent if the record lacks it, because a missing value
    does not mean zero."""
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
