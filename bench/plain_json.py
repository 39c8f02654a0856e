"""The best job on plain Spark that is known, to compare with: its own JSON reader and no Python.

It does less than the job does: lines that cannot be read are dropped, not kept and counted, weights
are not checked, and a column of another type is null.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = (
    "time string, Name string, OperationId string, UserId string, ItemCount int,"
    " Properties struct<`microsoft.sample_rate`: string>, Measurements struct<Amount: double>"
)
DAY_OF_BLOB = r"y=(\d{4}/m=\d{2}/d=\d{2})"


def run(spark: SparkSession, data: Path, output: Path) -> tuple[int, float]:
    """Deduplicated records, and their adjusted sum; both variances and partials as the job has."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    read = spark.read.option("recursiveFileLookup", "true").option("pathGlobFilter", "*.json")
    blob_date = F.regexp_replace(
        F.regexp_extract(F.input_file_name(), DAY_OF_BLOB, 1), "/[md]=", "-"
    )
    rate = F.expr("try_cast(Properties.`microsoft.sample_rate` as double)")
    records = (
        read.schema(SCHEMA)
        .json(str(data))
        .where("time is not null")
        .select("time", "Name", "OperationId", "UserId", "ItemCount",
                F.col("Measurements.Amount").alias("x"), rate.alias("rate"),
                blob_date.alias("blob_date"))
        .dropDuplicates(["time", "Name", "OperationId", "UserId", "ItemCount", "x", "rate"])
    )  # fmt: skip
    k = F.greatest(F.coalesce("ItemCount", F.lit(1)), F.coalesce(100 / F.col("rate"), F.lit(1.0)))
    operations = (
        records.withColumn("k", k.cast("double"))
        .groupBy("blob_date", F.substring("time", 1, 10).alias("date"), "Name", "OperationId")
        .agg(F.count("*").alias("n"), F.sum("k").alias("k"), F.expr("sum(k*k)").alias("k2"),
             F.max("k").alias("k_max"), F.expr("sum(k*x)").alias("s"),
             F.expr("sum(k*(k-1)*x*x)").alias("by_record"))
    )  # fmt: skip
    partials = operations.groupBy("blob_date", "date", "Name").agg(
        *[F.sum(name).alias(name) for name in ("n", "k", "k2", "s", "by_record")],
        F.max("k_max").alias("k_max"),
        F.expr("sum(case when k_max > 1 then (1 - 1/k_max)*s*s else 0 end)").alias("by_operation"),
    )
    partials.write.mode("overwrite").partitionBy("blob_date").parquet(str(output))
    sums = [F.sum(name).alias(name) for name in ("n", "k", "k2", "s", "by_record", "by_operation")]
    found = spark.read.parquet(str(output)).groupBy("date", "Name").agg(*sums).collect()
    return sum(row.n for row in found), sum(row.s for row in found)
