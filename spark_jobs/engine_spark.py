"""The reference engine: Spark alone, each line read by ``shared.sampling``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spark_jobs.cluster_files import ClusterFiles, plain_path
from spark_jobs.engine import BlobDate, Complaint, Extracted, Totals
from spark_jobs.files import Chunk, SourceFile, spread
from spark_jobs.rows import COLUMNS, SCHEMA, Place, Reader, Row, columns
from spark_jobs.shape import Shape
from spark_jobs.sources import Source, blocks_of
from spark_jobs.sums import NAMES, HourSums, Series, Sums, sums_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 10_000
QUARANTINE = ("file", "reason", "field", "detail", "text")
COMPLAINTS_MAX = 100
SERIES = ("event_date", "kind", "name", "dims")


class SparkEngine:
    """``spark.range(tasks).mapInArrow`` reads; DataFrames do all else."""

    name = "spark"

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def extract(
        self,
        source: Source,
        files: Sequence[SourceFile],
        shape: Shape,
        folder: str,
        quarantine: str,
    ) -> Extracted:
        if isinstance(source, ClusterFiles):
            rows = source.lines(files).mapInArrow(reading_lines(shape), SCHEMA)
        else:
            tasks = spread(files, self._spark.sparkContext.defaultParallelism)
            work = self._spark.range(0, len(tasks), 1, len(tasks))
            rows = work.mapInArrow(reading(source, tasks, shape), SCHEMA)
        rows.write.partitionBy("blob_date").parquet(folder)
        written = self._spark.read.schema(SCHEMA).parquet(folder)
        found = described(written, "if(reason is null, 1, 0)", files)
        write_quarantine(written, found, quarantine)
        return found

    def total(self, partials: Mapping[str, str], event_dates: Collection[str]) -> Totals:
        if not partials or not event_dates:
            return Totals()
        folders = [f"{folder}/blob_date={day}" for day, folder in sorted(partials.items())]
        rows = self._spark.read.schema(SCHEMA).parquet(*folders)
        wanted = rows.where(rows.reason.isNull() & rows.event_date.isin(sorted(event_dates)))
        records = without_copies(wanted).cache()
        try:
            found = [*sums_by_day(records).collect(), *sums_by_hour(records).collect()]
        finally:
            records.unpersist()
        return totals_of([row.asDict() for row in found])


def reading(
    source: Source, tasks: Sequence[Sequence[Chunk]], shape: Shape
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a task does: its number → rows of all its chunks."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = Reader(shape)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _arrow(_rows(reader, source, tasks[number]))

    return read


def reading_lines(
    shape: Shape,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a task does with lines that Spark has read: path and line → rows."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = Reader(shape)
        places: dict[str, Place] = {}

        def place(path: str) -> Place:
            if path not in places:
                places[path] = Place.of(SourceFile(plain_path(path), 0))
            return places[path]

        for batch in batches:
            lines = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
            yield from _arrow(row for path, line in lines for row in reader.rows(line, place(path)))

    return read


def _rows(reader: Reader, source: Source, chunks: Sequence[Chunk]) -> Iterator[Row]:
    for chunk in chunks:
        place = Place.of(chunk.file)
        for block in blocks_of(source, chunk):
            for line in block.split(b"\n"):
                yield from reader.rows(line, place)


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


def described(rows: DataFrame, records: str, files: Sequence[SourceFile]) -> Extracted:
    """What was read, in one pass: by blob date, also of dates whose files held no line.

    ``records`` is how many a row holds, as SQL.
    """
    from pyspark.sql import functions as F

    counted = rows.groupBy("blob_date", "event_date", "reason", "field").agg(
        F.expr(f"sum({records})").alias("records"),
        F.count("reason").alias("quarantined"),
        F.min(F.struct("file", "detail")).alias("example"),
    )
    found = counted.collect()
    return Extracted(
        {day: _blob_date(day, files, found) for day in {file.blob_date for file in files}},
        _complaints([row for row in found if row.reason is not None]),
    )


def _complaints(rows: Sequence[Any]) -> list[Complaint]:
    by_cause: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        by_cause.setdefault((row.reason, row.field), []).append(row)
    complaints = []
    for (reason, field), same in by_cause.items():
        file, detail = min((row.example.file, row.example.detail) for row in same)
        count = sum(row.quarantined for row in same)
        complaints.append(Complaint(reason, field, count, file, detail))
    return sorted(complaints, key=lambda complaint: -complaint.count)[:COMPLAINTS_MAX]


def write_quarantine(rows: DataFrame, found: Extracted, folder: str) -> None:
    if found.complaints:
        named = rows.where("reason is not null").select("blob_date", *QUARANTINE)
        named.coalesce(1).write.partitionBy("blob_date").json(folder)


def _blob_date(day: str, files: Sequence[SourceFile], rows: Sequence[Any]) -> BlobDate:
    own = [file for file in files if file.blob_date == day]
    found = [row for row in rows if row.blob_date == day]
    return BlobDate(
        files=len(own),
        size_bytes=sum(file.size_bytes for file in own),
        records=sum(row.records or 0 for row in found),
        quarantined=sum(row.quarantined for row in found),
        event_dates=tuple(sorted({row.event_date for row in found if row.event_date is not None})),
    )


def without_copies(rows: DataFrame) -> DataFrame:
    """One row a record; where copies differ, in the weight at most, their order is no matter."""
    from pyspark.sql import functions as F

    same = ["hour", *SERIES, "op", "key"]
    return rows.groupBy(*same).agg(
        F.max("k").alias("k"),
        F.min("trusted").alias("trusted"),
        F.min("late").alias("late"),
        F.max("x").alias("x"),
        (F.count("*") - 1).alias("copies"),
    )


def sums_by_day(records: DataFrame) -> DataFrame:
    """By event date and series: the columns of ``Sums``."""
    from pyspark.sql import functions as F

    k, x = F.col("k"), F.coalesce("x", F.lit(0.0))
    plain = records.groupBy(*SERIES).agg(
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
    shares = shares_of(records)
    return plain.join(shares, list(SERIES), "left").select(*SERIES, *NAMES)


def shares_of(records: DataFrame) -> DataFrame:
    """Σ and Σ² of what each operation adds to the variances; see ``shared.sampling.operations``.

    A record without operation is one by itself.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    lone = F.when(F.col("op") == "", F.concat("hour", "key")).alias("lone")
    operation = [*SERIES, "op", "lone"]
    levels = (
        records.where("k > 1")
        .select(*SERIES, "op", lone, "k", "x")
        .groupBy(*operation, "k")
        .agg(F.count("*").alias("n"), F.sum(F.coalesce("x", F.lit(0.0))).alias("s"))
    )
    up = Window.partitionBy(*operation).orderBy("k")
    down = Window.partitionBy(*operation).orderBy(F.desc("k"))
    step = 1 / F.coalesce(F.lag("k").over(up), F.lit(1.0)) - 1 / F.col("k")
    count = F.sum(F.col("k") * F.col("n")).over(down)
    total = F.sum(F.col("k") * F.col("s")).over(down)
    steps = levels.select(
        *operation, (step * count * count).alias("c"), (step * total * total).alias("t")
    )
    operations = steps.groupBy(*operation).agg(F.sum("c").alias("c"), F.sum("t").alias("t"))
    return operations.groupBy(*SERIES).agg(
        F.sum("c").alias("count_shares"),
        F.sum("t").alias("sum_shares"),
        F.sum(F.col("c") * F.col("c")).alias("count_share_squares"),
        F.sum(F.col("t") * F.col("t")).alias("sum_share_squares"),
    )


def sums_by_hour(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    by_hour = records.groupBy("hour", *SERIES)
    return by_hour.agg(F.count("*").alias("records"), F.sum("k").alias("weight_sum"))


def totals_of(rows: Sequence[Mapping[str, Any]]) -> Totals:
    """Sums of days and, where a row has one, of hours. Those of the same day or hour are added."""
    days: dict[tuple[str, Series], Sums] = {}
    hours: dict[tuple[str, Series], dict[int, HourSums]] = {}
    for row in rows:
        key, hour = _key(row), row.get("hour")
        if hour is None:
            days[key] = days.get(key, Sums()).merge(sums_of(row))
        else:
            found = hours.setdefault(key, {})
            added = HourSums(hour, row["records"], row["weight_sum"])
            found[hour] = found[hour].merge(added) if hour in found else added
    return Totals(days, {key: [found[h] for h in sorted(found)] for key, found in hours.items()})


def _key(row: Mapping[str, Any]) -> tuple[str, Series]:
    return row["event_date"], Series(row["kind"], row["name"], tuple(row["dims"]))
