"""Reads and writes the results folder of a version: its sums, operations and trends.

Lines of JSON are for the next run. The Parquet files are read by pandas, Polars, DuckDB and Spark
without this job.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import date
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from shared.sampling.kept_ids import WeightsSeen
from shared.sampling.operations import DayOperations, decoded, encoded
from shared.sampling.series import Totals, rows_of, totals_of
from shared.sampling.trend_rows import Trend, as_json
from spark_jobs.publish.stores import Store

if TYPE_CHECKING:
    from spark_jobs.publish.publishing import Manifest

SUMS, OPERATIONS, TRENDS = "sums.jsonl", "operations.jsonl", "trends.jsonl"
SUMS_TABLE, TRENDS_TABLE = TABLES = "sums.parquet", "trends.parquet"
TYPES = {
    "str": pa.string(), "bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(),
    "float | None": pa.float64(), "tuple[str, ...]": pa.list_(pa.string()),
    "Mapping[str, str]": pa.string(), "Mapping[str, Any]": pa.string(),
}  # fmt: skip
"""The type of a column by that of its field. Mappings are JSON text, as in the table ``Trends``."""
TRENDS_SCHEMA = pa.schema({each.name: TYPES[str(each.type)] for each in fields(Trend)}).set(
    0, pa.field("date", pa.date32())
)
HOURS = pa.schema(
    {
        "date": pa.date32(), "event": pa.string(), "kind": pa.string(), "dimensions": pa.string(),
        "hour": pa.timestamp("us", tz="UTC"), "age_days": pa.int32(), "records": pa.int64(),
        "adjusted_count": pa.float64(),
    }
)  # fmt: skip
"""A row for each hour of a series with records of the same age; see ``HourSums``."""
HOUR_MICROSECONDS = 3_600_000_000

Operations = Mapping[str, DayOperations]
"""By event date."""


def read(store: Store, results: str) -> tuple[Totals, Operations]:
    """Returns the figures of an earlier version; none if the name is empty."""
    if not results:
        return {}, {}
    totals = totals_of(map(json.loads, store.read(f"results/{results}/{SUMS}").splitlines()))
    try:
        lines = store.read(f"results/{results}/{OPERATIONS}").splitlines()
    except FileNotFoundError:  # an earlier version did not look at operations
        lines = []
    return totals, dict(map(_operations, map(json.loads, lines)))


def _operations(row: Mapping[str, Any]) -> tuple[str, DayOperations]:
    weights = msgspec.convert(row["weights"], list[tuple[str, WeightsSeen]])
    return row["date"], DayOperations(decoded(row["counts"]), dict(weights))


def merged(old: Totals, new: Totals, changed: Collection[str]) -> Totals:
    """Returns the new totals for the changed event dates, and the old totals for all others."""
    kept = {key: day for key, day in old.items() if key[0] not in changed}
    replaced = {key: day for key, day in new.items() if key[0] in changed}
    return dict(sorted({**kept, **replaced}.items(), key=itemgetter(0)))


def files_of(
    totals: Totals, operations: Operations, trends: Sequence[Trend], manifest: Manifest
) -> dict[str, bytes]:
    """Returns the contents of the files by name. Both tables name the results in their metadata, so
    a reader can see that they belong together.
    """
    by_date = [
        {
            "date": day,
            "counts": encoded(each.counts),
            "weights": [(sdk, asdict(seen)) for sdk, seen in each.weights.items()],
        }
        for day, each in operations.items()
    ]
    lines = list(map(as_json, trends))
    rows = [_trend(json.loads(line)) for line in lines]
    hours = _hours(totals, manifest.shape.dimensions)
    return {
        SUMS: _lines(map(json.dumps, rows_of(totals))),
        OPERATIONS: _lines(map(json.dumps, by_date)),
        TRENDS: _lines(lines),
        SUMS_TABLE: _encoded(hours, manifest.results),
        TRENDS_TABLE: _encoded(pa.Table.from_pylist(rows, TRENDS_SCHEMA), manifest.results),
    }


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _encoded(table: pa.Table, results: str) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({"results": results}), sink)
    return bytes(sink.getvalue().to_pybytes())


def _trend(row: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: _text(v) if isinstance(v, dict) else v for name, v in row.items()}
    return {**values, "date": date.fromisoformat(row["date"])}


def _hours(totals: Totals, dimensions: Sequence[str]) -> pa.Table:
    rows = []
    for (day, series), sums in totals.items():
        named = _text(dict(zip(dimensions, series.dims, strict=True)))
        key = date.fromisoformat(day), series.event, series.kind, named
        for hour, records, weight_sum, age in sums.hours:
            rows.append((*key, hour * HOUR_MICROSECONDS, age, records, weight_sum))
    columns = zip(*rows, strict=True) if rows else [()] * len(HOURS)
    return pa.table([list(column) for column in columns], schema=HOURS)


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)
