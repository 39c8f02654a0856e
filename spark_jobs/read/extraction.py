"""What all engines do with files: spread them over tasks, write partials, count, quarantine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import TYPE_CHECKING

from spark_jobs.engine import Extracted, Quarantine
from spark_jobs.errors import JobError
from spark_jobs.read.cluster_files import ClusterFiles
from spark_jobs.read.files import Chunk, SourceFile, spread
from spark_jobs.read.sources import Source
from spark_jobs.read.tally import (
    QUARANTINE,
    Line,
    Tally,
    accumulator,
    blob_dates_of,
    complaints_of,
    counted,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

FILE_LINES = 10_000

Batches = Iterable["pa.RecordBatch"]
ReadChunks = Callable[[Source, Sequence[Chunk]], Batches]
ReadLines = Callable[[Batches], Batches]
"""Columns path and line."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What tasks make of lines. Rows have the columns blob_date, event_date and, of a line that
    could not be read, those of ``QUARANTINE``; ``tally`` is complete once they are written."""

    frame: DataFrame
    tally: Accumulator[Tally]


def read(
    spark: SparkSession,
    source: Source,
    files: Sequence[SourceFile],
    read_chunks: ReadChunks,
    read_lines: ReadLines,
    schema: str,
) -> Rows:
    """Each task reads about as many bytes as the others; Spark spreads what it reads itself."""
    tally = accumulator(spark.sparkContext)
    if isinstance(source, ClusterFiles):
        lines = source.lines(files)
        frame = lines.mapInArrow(lambda batches: counted(read_lines(batches), tally), schema)
        return Rows(frame, tally)
    tasks = spread(files, spark.sparkContext.defaultParallelism)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from counted(read_chunks(source, tasks[number]), tally)

    return Rows(spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(work, schema), tally)


def write(
    rows: Rows,
    files: Sequence[SourceFile],
    folder: str,
    quarantine: Quarantine,
    compression: str = "zstd",
) -> Extracted:
    """Partials, and apart from them what could not be read. Raises JobError."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    seen = Observation()
    frame = rows.frame.observe(seen, F.count(F.lit(1)).alias("rows"))
    frame.write.option("compression", compression).parquet(folder)
    found = rows.tally.value
    if found.rows != seen.get["rows"]:
        raise JobError("Spark lost some of what tasks counted; nothing was changed: run it again")
    set_apart(found.lines if found.has_all_lines else _bad_lines_in(folder, frame), quarantine)
    return Extracted(blob_dates_of(found.counts, files), complaints_of(found.counts))


def _bad_lines_in(folder: str, frame: DataFrame) -> Iterator[Line]:
    return bad_lines(frame.sparkSession.read.schema(frame.schema).parquet(folder))


def bad_lines(rows: DataFrame) -> Iterator[Line]:
    """Of rows that were written, a partition at a time."""
    bad = rows.where("reason is not null").select(*QUARANTINE)
    return (row.asDict() for row in bad.toLocalIterator())


def set_apart(lines: Iterable[Line], quarantine: Quarantine) -> None:
    """As JSON lines by blob date; however many there are, few of them at a time are here."""
    rest, number = iter(lines), 0
    while some := list(islice(rest, FILE_LINES)):
        number += 1
        by_date: dict[str, list[str]] = {}
        for line in some:
            columns = {name: line[name] for name in QUARANTINE[1:]}
            text = f"{json.dumps(columns, ensure_ascii=False)}\n"
            by_date.setdefault(line["blob_date"], []).append(text)
        for day, texts in by_date.items():
            quarantine(f"blob_date={day}/part-{number:05}.json", "".join(texts).encode())


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
        frames.append(rows.where(_among("blob_date", days)))
    found = reduce(lambda some, more: some.unionAll(more), frames)
    return found.where(f"reason is null and {_among('event_date', sorted(event_dates))}")


def _among(column: str, dates: Iterable[str]) -> str:
    """As text, which goes to Spark at once however many dates there are."""
    return f"{column} in ({', '.join(map(repr, dates))})"
