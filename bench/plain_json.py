"""The best job on plain Spark that is known, to compare with: its own JSON reader and no Python.

It gives the same figures as the engines where telemetry is as well-formed as the bench's: a line
that is no JSON is quarantined and counted, but types, times and weights are taken as they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shared.sampling.diagnostic_export import KEY_COLUMNS, KINDS, SAMPLE_RATE
from spark_jobs.engine import Extracted, Quarantine
from spark_jobs.engine_spark import SparkEngine
from spark_jobs.read.extraction import bad_lines, set_apart
from spark_jobs.read.files import SourceFile
from spark_jobs.read.rows import COLUMNS, SCHEMA
from spark_jobs.read.sources import Source
from spark_jobs.read.tally import Count, Counts, Group, blob_dates_of, complaints_of
from spark_jobs.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TYPES = {
    "ItemCount": "double",
    "Measurements": "map<string, double>",
    "Properties": "map<string, string>",
}
LINE = ", ".join(f"`{name}` {TYPES.get(name, 'string')}" for name in (*KEY_COLUMNS, "bad"))


class PlainJsonEngine(SparkEngine):
    """Reads by ``spark.read.schema(…).json``; sums up as the reference does."""

    name = "plain_json"
    schema = SCHEMA.replace("key string", "key long")

    def extract(
        self,
        source: Source,
        files: Sequence[SourceFile],
        shape: Shape,
        folder: str,
        quarantine: Quarantine,
    ) -> Extracted:
        del source  # Spark's own reader opens the files
        rows = records(self._spark, [file.path for file in files], shape.measurement)
        rows.write.option("compression", "zstd").parquet(folder)
        written = self._spark.read.schema(self.schema).parquet(folder)
        counts = counted(written)
        set_apart(bad_lines(written), quarantine)
        return Extracted(blob_dates_of(counts, files), complaints_of(counts))


def records(spark: SparkSession, paths: list[str], measurement: str) -> DataFrame:
    """In the columns of ``rows.SCHEMA``."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    lines = spark.read.schema(LINE).option("columnNameOfCorruptRecord", "bad").json(paths)
    moment = F.col("time").cast("timestamp")
    path = F.col("_metadata.file_path")
    rate = F.col("Properties")[SAMPLE_RATE].cast("double")
    columns: dict[str, Column] = {
        "blob_date": _blob_date(path),
        "event_date": F.substring("time", 1, 10),
        "hour": F.expr("unix_micros(cast(time as timestamp)) div 3600000000"),
        "kind": F.element_at(
            F.create_map(*[F.lit(str(part)) for pair in KINDS.items() for part in pair]),
            F.col("Type"),
        ),
        "name": F.col("Name"),
        "dims": F.array().cast("array<string>"),
        "key": F.xxhash64(*[column for name in KEY_COLUMNS for column in _hashable(name)]),
        "op": F.coalesce("OperationId", F.lit("")),
        "k": F.greatest(F.coalesce("ItemCount", F.lit(1.0)), F.coalesce(100 / rate, F.lit(1.0))),
        "trusted": F.lit(True),
        "late": moment < _hour(path) - F.expr("interval 1 hour"),
        "x": F.col("Measurements")[measurement],
        "file": F.when(F.col("bad").isNotNull(), path),
        "reason": F.when(F.col("bad").isNotNull(), "not_json"),
        "field": F.when(F.col("bad").isNotNull(), ""),
        "detail": F.when(F.col("bad").isNotNull(), "no JSON"),
        "text": F.col("bad"),
    }
    return lines.select(*[columns[name].alias(name) for name in COLUMNS])


def counted(rows: DataFrame) -> Counts:
    """What the engines count while they read."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    example = F.min(F.struct("file", "detail")).alias("example")
    number = F.count("*").alias("number")
    counted = rows.groupBy("blob_date", "event_date", "reason", "field").agg(number, example)
    return {
        Group(row.blob_date, row.event_date, row.reason, row.field): Count(
            row.number, row.example.file or "", row.example.detail or ""
        )
        for row in counted.collect()
    }


def _hashable(name: str) -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return [F.map_keys(name), F.map_values(name)] if "map" in TYPES.get(name, "") else [F.col(name)]


def _blob_date(path: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    tail = F.substring_index(path, "/y=", -1)  # 2017/m=05/d=15/h=09/m=00/PT1H.json
    return F.concat_ws("-", tail.substr(1, 4), tail.substr(8, 2), tail.substr(13, 2))


def _hour(path: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    hour = F.substring_index(path, "/h=", -1).substr(1, 2)
    return F.concat(_blob_date(path), F.lit(" "), hour, F.lit(":00:00")).cast("timestamp")
