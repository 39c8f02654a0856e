"""The reference engine: Spark alone, each line read by ``shared.sampling``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_jobs.engine import Extracted, Quarantine, Totals
from spark_jobs.read import extraction
from spark_jobs.read.cluster_files import plain_path
from spark_jobs.read.files import Chunk, SourceFile
from spark_jobs.read.rows import COLUMNS, SCHEMA, Place, Reader, Row, columns
from spark_jobs.read.sources import Source, blocks_of
from spark_jobs.shape import Shape
from spark_jobs.sums.sums import HourSums, Series, Sums, sums_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 10_000
SERIES = ("event_date", "kind", "name", "dims")


class SparkEngine:
    """``spark.range(tasks).mapInArrow`` reads; DataFrames do all else."""

    name = "spark-3"
    """Of another number where partials of before cannot be read."""
    schema = SCHEMA

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def extract(
        self,
        source: Source,
        files: Sequence[SourceFile],
        shape: Shape,
        folder: str,
        quarantine: Quarantine,
    ) -> Extracted:
        rows = self.rows(source, files, shape)
        return extraction.write(rows, files, folder, quarantine)

    def rows(self, source: Source, files: Sequence[SourceFile], shape: Shape) -> extraction.Rows:
        """In the columns of ``schema``, one a record or line that could not be read."""
        chunks, lines = partial(read_chunks, shape=shape), partial(read_lines, shape=shape)
        return extraction.read(self._spark, source, files, chunks, lines, self.schema)

    def total(self, partials: Mapping[str, str], event_dates: Collection[str]) -> Totals:
        if not partials or not event_dates:
            return Totals()
        rows = extraction.partials_of(self._spark, self.schema, partials, event_dates)
        records = without_copies(by_unit(rows))
        found = sums_by_hour(records).unionByName(shares_by_day(records), allowMissingColumns=True)
        return totals_of([row.asDict() for row in found.collect()])


def read_chunks(source: Source, chunks: Sequence[Chunk], shape: Shape) -> Iterator[pa.RecordBatch]:
    """What a task does: a row a record of its chunks."""
    reader = Reader(shape)
    return _arrow(
        row
        for chunk in chunks
        for block in blocks_of(source, chunk)
        for line in bytes(block).split(b"\n")
        for row in reader.rows(line, Place.of(chunk.file))
    )


def read_lines(batches: Iterable[pa.RecordBatch], shape: Shape) -> Iterator[pa.RecordBatch]:
    """What a task does with lines that Spark has read."""
    reader = Reader(shape)
    places: dict[str, Place] = {}

    def place(path: str) -> Place:
        if path not in places:
            places[path] = Place.of(SourceFile(plain_path(path), 0))
        return places[path]

    for batch in batches:
        lines = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
        yield from _arrow(row for path, line in lines for row in reader.rows(line, place(path)))


def _arrow(rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) == BATCH_ROWS:
            yield record_batch(batch)
            batch = []
    if batch:
        yield record_batch(batch)


def record_batch(rows: list[Row]) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = {"long": pa.int64(), "double": pa.float64(), "boolean": pa.bool_()}
    types = [part.split()[1] for part in SCHEMA.split(",")]
    arrow = [pa.list_(pa.string()) if t.startswith("array") else kinds.get(t) for t in types]
    found = columns(rows)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(found[name], type=kind or pa.string())
            for name, kind in zip(COLUMNS, arrow, strict=True)
        ],
        names=list(COLUMNS),
    )


def by_unit(rows: DataFrame) -> DataFrame:
    """A record's unit is its operation, or itself where it has none. All of one come together."""
    from pyspark.sql import functions as F

    unit = F.when(F.col("op") == "", F.concat(F.lit("#"), "key")).otherwise(F.col("op"))
    return rows.withColumn("unit", unit).repartition("event_date", "unit")


def without_copies(rows: DataFrame) -> DataFrame:
    """One row a record; where copies differ, in the weight at most, their order is no matter."""
    from pyspark.sql import functions as F

    return rows.groupBy("hour", *SERIES, "unit", "key").agg(
        F.max("k").alias("k"),
        F.min("trusted").alias("trusted"),
        F.min("late").alias("late"),
        F.max("x").alias("x"),
        (F.count("*") - 1).alias("copies"),
    )


def sums_by_hour(records: DataFrame) -> DataFrame:
    """By event date, series and hour: the columns of ``Sums`` but shares."""
    from pyspark.sql import functions as F

    k, x = F.col("k"), F.coalesce("x", F.lit(0.0))
    return records.groupBy("hour", *SERIES).agg(
        F.count("*").alias("records"),
        F.sum("copies").alias("duplicates"),
        F.count(F.when(F.col("late"), 1)).alias("late"),
        F.count(F.when(~F.col("trusted"), 1)).alias("doubtful"),
        F.count("x").alias("valued"),
        F.sum(x).alias("raw_sum"),
        F.sum(k).alias("weight_sum"),
        F.sum(k * k).alias("weight_square_sum"),
        F.max(k).alias("weight_max"),
        F.sum(k * x).alias("adjusted_sum"),
        F.sum(k * (k - 1)).alias("count_variance"),
        F.sum(k * (k - 1) * x * x).alias("sum_variance"),
    )


def shares_by_day(records: DataFrame) -> DataFrame:
    """Σ and Σ² of what each operation adds to the variances; see ``shared.sampling.estimates``."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    unit = [*SERIES, "unit"]
    levels = (
        records.where("k > 1")
        .groupBy(*unit, "k")
        .agg(F.count("*").alias("n"), F.sum(F.coalesce("x", F.lit(0.0))).alias("s"))
    )
    down = Window.partitionBy(*unit).orderBy(F.desc("k"))
    step = 1 / F.coalesce(F.lead("k").over(down), F.lit(1.0)) - 1 / F.col("k")
    count = F.sum(F.col("k") * F.col("n")).over(down)
    total = F.sum(F.col("k") * F.col("s")).over(down)
    steps = levels.select(
        *unit, (step * count * count).alias("c"), (step * total * total).alias("t")
    )
    operations = steps.groupBy(*unit).agg(F.sum("c").alias("c"), F.sum("t").alias("t"))
    return operations.groupBy(*SERIES).agg(
        F.sum("c").alias("count_shares"),
        F.sum("t").alias("sum_shares"),
        F.sum(F.col("c") * F.col("c")).alias("count_share_squares"),
        F.sum(F.col("t") * F.col("t")).alias("sum_share_squares"),
    )


def totals_of(rows: Sequence[Mapping[str, Any]]) -> Totals:
    """From sums by hour and, where a row has no hour, shares by day. Rows are added up."""
    days: dict[tuple[str, Series], Sums] = {}
    hours: dict[tuple[str, Series], dict[int, HourSums]] = {}
    for row in rows:
        key, hour, sums = _key(row), row["hour"], sums_of(row)
        days[key] = days.get(key, Sums()).merge(sums)
        if hour is not None:
            found = hours.setdefault(key, {})
            added = HourSums(hour, sums.records, sums.weight_sum)
            found[hour] = found[hour].merge(added) if hour in found else added
    return Totals(days, {key: [found[h] for h in sorted(found)] for key, found in hours.items()})


def _key(row: Mapping[str, Any]) -> tuple[str, Series]:
    return row["event_date"], Series(row["kind"], row["name"], tuple(row["dims"]))
