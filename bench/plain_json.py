"""The best job on plain Spark that is known, to compare with: its own JSON reader and no Python.

It gives the same figures as the job where telemetry is as well-formed as the bench's: a line that
is no JSON is quarantined and counted, but types, times and weights are taken as they come.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from shared.sampling.diagnostic_export import KEY_COLUMNS, KINDS, SAMPLE_RATE
from spark_jobs.engine import Engine
from spark_jobs.read.blocks import QUARANTINE
from spark_jobs.read.extracted import Extracted, Group, extracted
from spark_jobs.read.files import SourceFile
from spark_jobs.read.reading import Quarantine, bad_lines, counted, set_apart
from spark_jobs.read.sources import Source
from spark_jobs.shape import Shape
from spark_jobs.sums.sums import Totals
from spark_jobs.sums.totals import totals_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TYPES = {
    "ItemCount": "double",
    "Measurements": "map<string, double>",
    "Properties": "map<string, string>",
}
LINE = ", ".join(f"`{name}` {TYPES.get(name, 'string')}" for name in (*KEY_COLUMNS, "bad"))
SERIES = ("event_date", "kind", "name")
UNIT = (*SERIES, "unit")


class PlainJsonEngine(Engine):
    """Reads by ``spark.read.schema(…).json`` and writes rows; groups and windows add them up."""

    name = "plain_json"

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark)
        spark.conf.set("spark.sql.session.timeZone", "UTC")

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
        written = self._spark.read.schema(rows.schema).parquet(folder)
        groups = [Group(**row.asDict()) for row in counted(written).collect()]
        set_apart(bad_lines(written, 1), quarantine)
        return extracted(files, groups)

    def total(
        self, partials: Mapping[str, str], event_dates: Collection[str], records: int
    ) -> Totals:
        del event_dates, records  # each run of the bench reads all that there is
        rows = self._spark.read.parquet(*set(partials.values())).where("reason is null")
        unit = F.when(F.col("op") == "", F.concat(F.lit("#"), "key")).otherwise(F.col("op"))
        once = (
            rows.withColumn("unit", unit)
            .repartition("event_date", "unit")
            .groupBy("hour", *UNIT, "key")
            .agg(
                *[F.max(name).alias(name) for name in ("k", "x")],
                F.min("late").alias("late"),
                (F.count("*") - 1).alias("copies"),
            )
        )
        found = by_hour(once).unionByName(by_day(once), allowMissingColumns=True)
        return totals_of(_row(row.asDict()) for row in found.collect())


def records(spark: SparkSession, paths: list[str], measurement: str) -> DataFrame:
    """One a record, or a line that could not be read."""
    lines = spark.read.schema(LINE).option("columnNameOfCorruptRecord", "bad").json(paths)
    path, moment = F.col("_metadata.file_path"), F.col("time").cast("timestamp")
    rate = F.col("Properties")[SAMPLE_RATE].cast("double")
    kinds = F.create_map(*[F.lit(str(part)) for pair in KINDS.items() for part in pair])
    bad = {
        "file": path,
        "reason": F.lit("not_json"),
        "detail": F.lit("no JSON"),
        "field": F.lit(""),
    }
    found: dict[str, Column] = {
        "blob_date": _blob_date(path),
        "event_date": F.substring("time", 1, 10),
        "hour": F.expr("unix_micros(cast(time as timestamp)) div 3600000000"),
        "kind": F.element_at(kinds, F.col("Type")),
        "name": F.col("Name"),
        "key": F.xxhash64(*[column for name in KEY_COLUMNS for column in _hashable(name)]),
        "op": F.coalesce("OperationId", F.lit("")),
        "k": F.greatest(F.coalesce("ItemCount", F.lit(1.0)), F.coalesce(100 / rate, F.lit(1.0))),
        "late": moment < _hour(path) - F.expr("interval 1 hour"),
        "x": F.col("Measurements")[measurement],
        "text": F.col("bad"),
        "records": F.lit(1),
        **{name: F.when(F.col("bad").isNotNull(), value) for name, value in bad.items()},
    }
    assert set(QUARANTINE) <= set(found)
    return lines.select(*[column.alias(name) for name, column in found.items()])


def by_hour(once: DataFrame) -> DataFrame:
    k, x = F.col("k"), F.coalesce("x", F.lit(0.0))
    return once.groupBy("hour", *SERIES).agg(
        F.count("*").alias("records"),
        F.sum("copies").alias("duplicates"),
        F.count(F.when(F.col("late"), 1)).alias("late"),
        F.count("x").alias("valued"),
        F.sum(x).alias("raw_sum"),
        F.sum(k).alias("weight_sum"),
        F.sum(k * k).alias("weight_square_sum"),
        F.max(k).alias("weight_max"),
        F.sum(k * x).alias("adjusted_sum"),
        F.sum(k * (k - 1)).alias("count_variance"),
        F.sum(k * (k - 1) * x * x).alias("sum_variance"),
    )


def by_day(once: DataFrame) -> DataFrame:
    """Σ and Σ² of what each operation adds to the variances; see ``shared.sampling.estimates``."""
    sums = F.count("*").alias("n"), F.sum(F.coalesce("x", F.lit(0.0))).alias("s")
    levels = once.where("k > 1").groupBy(*UNIT, "k").agg(*sums)
    down = Window.partitionBy(*UNIT).orderBy(F.desc("k"))
    step = 1 / F.coalesce(F.lead("k").over(down), F.lit(1.0)) - 1 / F.col("k")
    count = F.sum(F.col("k") * F.col("n")).over(down)
    total = F.sum(F.col("k") * F.col("s")).over(down)
    steps = levels.select(
        *UNIT, (step * count * count).alias("c"), (step * total * total).alias("t")
    )
    operations = steps.groupBy(*UNIT).agg(F.sum("c").alias("c"), F.sum("t").alias("t"))
    return operations.groupBy(*SERIES).agg(
        F.sum("c").alias("count_shares"),
        F.sum("t").alias("sum_shares"),
        F.sum(F.col("c") * F.col("c")).alias("count_share_squares"),
        F.sum(F.col("t") * F.col("t")).alias("sum_share_squares"),
    )


def _row(found: dict[str, Any]) -> dict[str, Any]:
    """As the job's own, of one hour or of a day."""
    known = found["hour"] is not None
    lists = {"hours": "hour", "hour_records": "records", "hour_weights": "weight_sum"}
    hours = {name: [found[of]] if known else [] for name, of in lists.items()}
    return {**found, **hours, "dims": (), "bucket": found["hour"] or 0}


def _hashable(name: str) -> list[Column]:
    return [F.map_keys(name), F.map_values(name)] if "map" in TYPES.get(name, "") else [F.col(name)]


def _blob_date(path: Column) -> Column:
    tail = F.substring_index(path, "/y=", -1)  # 2017/m=05/d=15/h=09/m=00/PT1H.json
    return F.concat_ws("-", tail.substr(1, 4), tail.substr(8, 2), tail.substr(13, 2))


def _hour(path: Column) -> Column:
    hour = F.substring_index(path, "/h=", -1).substr(1, 2)
    return F.concat(_blob_date(path), F.lit(" "), hour, F.lit(":00:00")).cast("timestamp")
