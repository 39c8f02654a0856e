"""What all engines do with files: spread them over tasks, write partials, count, quarantine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from spark_jobs.cluster_files import ClusterFiles
from spark_jobs.engine import BlobDate, Complaint, Extracted
from spark_jobs.files import Chunk, SourceFile, spread
from spark_jobs.sources import Source

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

QUARANTINE = ("file", "reason", "field", "detail", "text")
COMPLAINTS_MAX = 100

Batches = Iterable["pa.RecordBatch"]
ReadChunks = Callable[[Source, Sequence[Chunk]], Batches]
ReadLines = Callable[[Batches], Batches]
"""Columns path and line."""


def read(
    spark: SparkSession,
    source: Source,
    files: Sequence[SourceFile],
    read_chunks: ReadChunks,
    read_lines: ReadLines,
    schema: str,
) -> DataFrame:
    """Each task reads about as many bytes as the others; Spark spreads what it reads itself."""
    if isinstance(source, ClusterFiles):
        return source.lines(files).mapInArrow(lambda batches: iter(read_lines(batches)), schema)
    tasks = spread(files, spark.sparkContext.defaultParallelism)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_chunks(source, tasks[number])

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(work, schema)


def write(
    rows: DataFrame,
    records: str,
    files: Sequence[SourceFile],
    folder: str,
    quarantine: str,
    compression: str = "zstd",
) -> Extracted:
    """Partials by blob date, and apart from them what could not be read.

    Rows have the columns blob_date, event_date and, of a line that could not be read, those of
    ``QUARANTINE``. ``records`` is how many records a row holds, as SQL.
    """
    rows.write.partitionBy("blob_date").option("compression", compression).parquet(folder)
    written = rows.sparkSession.read.schema(rows.schema).parquet(folder)
    found = _described(written, records, files)
    if found.complaints:
        named = written.where("reason is not null").select("blob_date", *QUARANTINE)
        named.coalesce(1).write.partitionBy("blob_date").json(quarantine)
    return found


def _described(rows: DataFrame, records: str, files: Sequence[SourceFile]) -> Extracted:
    """What was read, in one pass: by blob date, also of dates whose files held no line."""
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
