"""What all engines do with files: spread them over tasks, write partials, count, quarantine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import TYPE_CHECKING

from spark_jobs import tally
from spark_jobs.cluster_files import ClusterFiles
from spark_jobs.engine import Extracted, Quarantine
from spark_jobs.files import Chunk, SourceFile, spread
from spark_jobs.sources import Source

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

QUARANTINE = ("blob_date", "file", "reason", "field", "detail", "text")
QUARANTINE_LINES = 10_000

Batches = Iterable["pa.RecordBatch"]
ReadChunks = Callable[[Source, Sequence[Chunk]], Batches]
ReadLines = Callable[[Batches], Batches]
"""Columns path and line."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What tasks make of lines. Rows have the columns blob_date, event_date and, of a line that
    could not be read, those of ``QUARANTINE``; ``counts`` is complete once they are written."""

    frame: DataFrame
    counts: Accumulator[tally.Counts]


def read(
    spark: SparkSession,
    source: Source,
    files: Sequence[SourceFile],
    read_chunks: ReadChunks,
    read_lines: ReadLines,
    schema: str,
) -> Rows:
    """Each task reads about as many bytes as the others; Spark spreads what it reads itself."""
    counts = tally.accumulator(spark.sparkContext)
    if isinstance(source, ClusterFiles):
        lines = source.lines(files)
        frame = lines.mapInArrow(lambda batches: tally.counted(read_lines(batches), counts), schema)
        return Rows(frame, counts)
    tasks = spread(files, spark.sparkContext.defaultParallelism)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from tally.counted(read_chunks(source, tasks[number]), counts)

    return Rows(spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(work, schema), counts)


def write(
    rows: Rows,
    files: Sequence[SourceFile],
    folder: str,
    quarantine: Quarantine,
    compression: str = "zstd",
) -> Extracted:
    """Partials, and apart from them what could not be read."""
    rows.frame.write.option("compression", compression).parquet(folder)
    counts = rows.counts.value
    complaints = tally.complaints_of(counts)
    if complaints:
        written = rows.frame.sparkSession.read.schema(rows.frame.schema).parquet(folder)
        set_apart(written, tally.quarantined(counts), quarantine)
    return Extracted(tally.blob_dates_of(counts, files), complaints)


def set_apart(rows: DataFrame, count: int, quarantine: Quarantine) -> None:
    """As JSON lines by blob date; however many there are, few of them at a time are here."""
    bad = rows.where("reason is not null").select(*QUARANTINE)
    found = iter(bad.collect() if count <= QUARANTINE_LINES else bad.toLocalIterator())
    number = 0
    while some := list(islice(found, QUARANTINE_LINES)):
        number += 1
        by_date: dict[str, list[str]] = {}
        for row in some:
            columns = row.asDict()
            lines = by_date.setdefault(columns.pop("blob_date"), [])
            lines.append(f"{json.dumps(columns, ensure_ascii=False)}\n")
        for day, lines in by_date.items():
            quarantine(f"blob_date={day}/part-{number:05}.json", "".join(lines).encode())


def partials_of(
    spark: SparkSession, schema: str, partials: Mapping[str, str], event_dates: Iterable[str]
) -> DataFrame:
    """Rows of records of these event dates, from the folders of blob dates."""
    by_folder: dict[str, list[str]] = {}
    for day, folder in sorted(partials.items()):
        by_folder.setdefault(folder, []).append(day)
    frames: list[DataFrame] = []
    for folder, days in by_folder.items():
        rows = spark.read.schema(schema).parquet(folder)
        frames.append(rows.where(rows.blob_date.isin(days)))
    found = reduce(lambda some, more: some.unionAll(more), frames)
    return found.where(found.reason.isNull() & found.event_date.isin(sorted(event_dates)))
