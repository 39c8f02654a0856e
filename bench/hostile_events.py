"""Bodies of events that are meant to do harm, or do as much harm by mistake."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from shared.ingestion.decoding.azure_monitor import key
from shared.ingestion.decoding.readings import MetricSubscriptions, SubscribedMetric

RESOURCE = "plan-0"
METRIC = "backlog"
BUS = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ServiceBus/namespaces/bus"
INTERESTS = MetricSubscriptions(
    frozenset({(RESOURCE, METRIC)}),
    {key(BUS, "ActiveMessages"): (SubscribedMetric(RESOURCE, METRIC, "total"),)},
)
MIB = 1024 * 1024
SECOND = timedelta(seconds=1)


def reading(value: object = 1, time: str = "2026-03-01T12:00:00Z", **changes: object) -> str:
    """A reading in metric JSON, as compact as senders write it."""
    fields = {
        "schema_version": 1,
        "resource_name": RESOURCE,
        "name": METRIC,
        "value": {"time": time, "value": value},
        **changes,
    }
    return json.dumps(fields, separators=(",", ":"))


def many_readings(count: int, newest: datetime, step: timedelta = SECOND) -> bytes:
    """One event with the given number of readings of one metric."""
    times = (newest - step * (count - 1 - n) for n in range(count))
    texts = [reading(time=time.isoformat()) for time in times]
    return f"[{','.join(texts)}]".encode()


def filled(element: str, size: int = MIB) -> bytes:
    """A JSON array with as many copies of the element as fit."""
    count = (size - 2) // (len(element.encode()) + 1)
    return f"[{','.join([element] * count)}]".encode()


def _record(**changes: object) -> str:
    fields = {"resourceId": BUS, "metricName": "ActiveMessages", "timeGrain": "PT1M"}
    at = {"time": "2026-03-01T12:00:00.0000000Z", "total": 1}
    return json.dumps({**fields, **at, **changes}, separators=(",", ":"))


def _records(element: str) -> bytes:
    return b'{"records":' + filled(element, MIB - 12) + b"}"


HOSTILE: Mapping[str, Callable[[], bytes]] = {
    "gzip_bomb": lambda: gzip.compress(filled("[]", 16 * MIB)),
    "gzip_bomb_of_a_gigabyte": lambda: gzip.compress(b"[" + b" " * (1024 * MIB), 1),
    "gzip_in_gzip": lambda: gzip.compress(gzip.compress(filled("[]", 16 * MIB))),
    "gzip_of_empty_members": lambda: gzip.compress(b"") * (MIB // 20),
    "gzip_with_a_tail": lambda: gzip.compress(reading().encode()) + b"tail",
    "gzip_cut_short": lambda: gzip.compress(filled("{}"))[:-9],
    "plain_16_mib": lambda: filled("[]", 16 * MIB),
    "empty_objects": lambda: filled("{}"),
    "numbers": lambda: filled("0"),
    "small_objects": lambda: filled('{"":0}'),
    "bad_readings": lambda: filled(reading(value="x" * 100)),
    "readings_of_no_version": lambda: filled('{"schema_version":[]}'),
    "bad_records": lambda: _records(_record(total="x" * 100)),
    "records_without_time": lambda: _records(_record(time="")),
    "sum_of_records": lambda: _records(_record(total=1e308)),
    "open_brackets": lambda: b"[" * MIB,
    "open_braces": lambda: b'{"":' * (MIB // 4),
    "closed_brackets": lambda: b"[" * 900 + b"]" * 900,
    "closed_brackets_in_a_reading": lambda: (
        reading(value="DEEP").replace('"DEEP"', "[" * 900 + "]" * 900).encode()
    ),
    "integer_of_a_mib": lambda: reading(value="LONG").replace('"LONG"', "9" * (MIB - 300)).encode(),
    "integers_of_4300_digits": lambda: filled("9" * 4300),
    "number_of_a_mib": lambda: (
        reading(value="LONG").replace('"LONG"', "-0." + "9" * (MIB - 300)).encode()
    ),
    "exponent_of_a_mib": lambda: (
        reading(value="LONG").replace('"LONG"', "1e" + "9" * (MIB - 300)).encode()
    ),
    "infinity": lambda: reading(value="LONG").replace('"LONG"', "Infinity").encode(),
    "nan": lambda: reading(value="LONG").replace('"LONG"', "NaN").encode(),
    "value_of_1e200": lambda: reading(value=1e200).encode(),
    "names_of_200_kb": lambda: reading(name="x" * 200_000, resource_name="y" * 200_000).encode(),
    "time_of_200_kb": lambda: reading(time="2" * 200_000).encode(),
    "version_of_200_kb": lambda: reading(schema_version="1" * 200_000).encode(),
    "half_a_surrogate_pair": lambda: reading(name="\ud800" * 1000).encode(),
    "nul": lambda: reading(name="\0" * 1000).encode(),
    "same_key_again": lambda: b"{" + b'"a":1,' * (MIB // 7) + b'"a":1}',
    "key_of_a_mib": lambda: b'{"' + b"k" * (MIB - 20) + b'":1}',
    "utf_32": lambda: filled("{}", MIB // 4).decode().encode("utf-32"),
    "nothing": lambda: b"",
    "zeros": lambda: bytes(MIB),
}
"""Each of them must lead to one dead letter."""
