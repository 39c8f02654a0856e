"""The results as Parquet files, which pandas, Polars, DuckDB and Spark read without this job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shared.sampling.series import Totals
from shared.sampling.trend_rows import Trend
from spark_jobs.publish.publishing import Manifest

SUMS_FILE, TRENDS_FILE = "sums.parquet", "trends.parquet"
FILES = (SUMS_FILE, TRENDS_FILE)
TYPES = {
    "str": pa.string(), "bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(),
    "float | None": pa.float64(), "tuple[str, ...]": pa.list_(pa.string()),
    "Mapping[str, str]": pa.string(), "Mapping[str, Any]": pa.string(),
}  # fmt: skip
"""The type of a column by that of its field. Mappings are JSON text, as in the table ``Trends``."""
TRENDS = pa.schema({each.name: TYPES[str(each.type)] for each in fields(Trend)}).set(
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


def files_of(totals: Totals, trends: bytes, manifest: Manifest) -> dict[str, bytes]:
    """Returns the contents of the files by name. ``trends`` are lines of JSON. Both files name the
    results in their metadata, so a reader can see that they belong together.
    """
    rows = [_trend(json.loads(line)) for line in trends.splitlines()]
    hours = _hours(totals, manifest.shape.dimensions)
    tables = {TRENDS_FILE: pa.Table.from_pylist(rows, schema=TRENDS), SUMS_FILE: hours}
    return {name: _encoded(table, manifest.results) for name, table in tables.items()}


def _encoded(table: pa.Table, results: str) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({"results": results}), sink)
    return bytes(sink.getvalue().to_pybytes())


def _trend(row: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: _text(v) if isinstance(v, dict) else _clean(v) for name, v in row.items()}
    return {**values, "date": date.fromisoformat(row["date"])}


def _hours(totals: Totals, dimensions: Sequence[str]) -> pa.Table:
    rows = []
    for (day, series), sums in totals.items():
        named = _text(dict(zip(dimensions, series.dims, strict=True)))
        key = date.fromisoformat(day), _clean(series.event), series.kind, named
        for hour, records, weight_sum, age in sums.hours:
            rows.append((*key, hour * HOUR_MICROSECONDS, age, records, weight_sum))
    columns = zip(*rows, strict=True) if rows else [()] * len(HOURS)
    return pa.table([list(column) for column in columns], schema=HOURS)


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(_clean(value), ensure_ascii=False)


def _clean(value: Any) -> Any:
    """Half a surrogate pair, which some senders write, cannot be UTF-8. It becomes its escape."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_clean(name): _clean(item) for name, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value
