"""Reads Azure platform metrics as diagnostic settings stream them to an event hub.

An event is ``{"records": [...]}``, and the record of a metric is ``{time, resourceId, metricName,
timeGrain, count, total, minimum, maximum, average}``. Resource IDs are in upper case, whatever the
spelling of the resource's name. Times have seven fractional digits. Not every metric has every
aggregate. ``time`` is the start of the time grain. If nothing was measured, the count is 0, and the
other aggregates have no meaning. The record of a log has no ``metricName``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from shared.autoscaling.messages import measure
from shared.ingestion.decoding.readings import (
    Findings,
    Reading,
    SubscribedMetric,
    read_number,
    read_time,
)
from shared.ingestion.errors import BadEvent
from shared.values.text import quoted

Record = Mapping[str, Any]
Monitored = Mapping[tuple[str, str], tuple[SubscribedMetric, ...]]


def key(resource_id: str, metric: str) -> tuple[str, str]:
    """The form in which resource IDs and metric names are compared. Azure ignores the case of
    both."""
    return resource_id.rstrip("/").casefold(), metric.casefold()


def is_metric(item: object) -> bool:
    return isinstance(item, dict) and {"resourceId", "metricName"} <= item.keys()


def read_records(
    records: Sequence[tuple[str, Record]], monitored: Monitored, found: Findings
) -> list[Reading]:
    """The readings in the records of subscribed metrics. A bad record does not affect the others.

    Each record comes with its place in the event. Records of the same metric and time are combined
    into one reading.
    """
    groups: dict[tuple[SubscribedMetric, datetime], list[tuple[str, Record]]] = defaultdict(list)
    for place, record in records:
        subscribed = [
            metric for metric in _subscribed(record, monitored) if _is_usable(record, metric, found)
        ]
        found.ignored += not subscribed
        for metric in subscribed:
            try:
                groups[metric, read_time(record.get("time"))].append((place, record))
            except BadEvent as error:
                found.reject(_named(place, record), error)
    readings = list[Reading]()
    for (metric, time), group in groups.items():
        try:
            value = _value(metric.aggregation, [record for _, record in group])
            readings.append(Reading(metric.resource_name, metric.name, time, value))
        except BadEvent as error:
            found.reject(_named(*group[0]), error)
    return readings


def _subscribed(record: Record, monitored: Monitored) -> tuple[SubscribedMetric, ...]:
    resource_id, metric = record.get("resourceId"), record.get("metricName")
    if not isinstance(resource_id, str) or not isinstance(metric, str):
        return ()
    return monitored.get(key(resource_id, metric), ())


def _is_usable(record: Record, metric: SubscribedMetric, found: Findings) -> bool:
    """Whether the record has a value of the declared metric. With count 0 it has none, because
    nothing was measured; only the count itself is then known."""
    grain = record.get("timeGrain")
    if grain not in (None, metric.time_grain):
        found.note(
            f"{metric.name} of {metric.resource_name} is not read from records of "
            f"{record['metricName']} with the time grain {quoted(grain)}, because scaling_rules.py "
            f"declares {metric.time_grain}: set time_grain to the grain that arrives"
        )
        return False
    return metric.aggregation == "count" or measure(record.get("count")) != 0


def _named(place: str, record: Record) -> str:
    return f"{place} ({record['metricName']})".lstrip()


def _value(aggregation: str, records: Sequence[Record]) -> float:
    """The aggregate over all records. Raises BadEvent if a record lacks the aggregate, because a
    missing value does not mean zero.
    """
    if aggregation == "average":
        return read_number(_average(records), "average")
    values = [read_number(record.get(aggregation), aggregation) for record in records]
    if aggregation == "minimum":
        return min(values)
    return max(values) if aggregation == "maximum" else read_number(sum(values), aggregation)


def _average(records: Sequence[Record]) -> float:
    if len(records) == 1 and records[0].get("average") is not None:
        return read_number(records[0]["average"], "average")
    try:
        count = sum([read_number(record.get("count"), "count") for record in records])
        total = sum([read_number(record.get("total"), "total") for record in records])
    except BadEvent as error:
        raise BadEvent(
            f"the record has neither an average nor both total and count: {error}"
        ) from None
    return total / count
