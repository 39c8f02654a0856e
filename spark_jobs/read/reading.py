"""Files → a DataFrame of blocks and of lines that could not be read, and what is in it."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING

from spark_jobs.read.blocks import QUARANTINE, SCHEMA, TYPES
from spark_jobs.read.extracted import Extracted, Group, extracted
from spark_jobs.read.files import SourceFile, spread
from spark_jobs.read.lines import Place, batches_of
from spark_jobs.read.sources import ClusterFiles, Source, blocks_of, plain_path
from spark_jobs.session import cores
from spark_jobs.shape import Shape

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FILE_LINES = 10_000

Quarantine = Callable[[str, bytes], None]
"""Writes a file of the quarantine, by its name there."""
Batches = Iterator["pa.RecordBatch"]


def blocks(
    spark: SparkSession, source: Source, files: Sequence[SourceFile], shape: Shape
) -> DataFrame:
    """Each task reads about as many bytes as the others; Spark spreads what it reads itself."""
    if isinstance(source, ClusterFiles):
        frame = source.lines(files).mapInArrow(_of_lines(shape), SCHEMA)
    else:
        frame = _of_chunks(spark, source, files, shape)
    return frame.select(*TYPES)


def _of_chunks(
    spark: SparkSession, source: Source, files: Sequence[SourceFile], shape: Shape
) -> DataFrame:
    tasks = spread(files, cores(spark))

    def work(batches: Batches) -> Batches:
        gc.freeze()  # Spark collects garbage after each task: not among all that was imported
        for batch in batches:
            for number in batch.column(0).to_pylist():
                pieces = (
                    (Place.of(chunk.file), bytes(piece))
                    for chunk in tasks[number]
                    for piece in blocks_of(source, chunk)
                )
                yield from batches_of(pieces, shape)

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(work, SCHEMA)


def _of_lines(shape: Shape) -> Callable[[Batches], Batches]:
    """Of lines that Spark has read: columns path and line."""

    def pieces(batches: Batches) -> Iterator[tuple[Place, bytes]]:
        for batch in batches:
            lines = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
            for path, found in groupby(lines, itemgetter(0)):
                place = Place.of(SourceFile(plain_path(path), 0))
                yield place, b"\n".join(line for _, line in found)

    def work(batches: Batches) -> Batches:
        gc.freeze()
        yield from batches_of(pieces(batches), shape)

    return work


def extract(
    spark: SparkSession,
    source: Source,
    files: Sequence[SourceFile],
    shape: Shape,
    folder: str,
    quarantine: Quarantine,
) -> Extracted:
    """Write the partials of these files' blob dates below ``folder``.

    What was written is counted, so it is no matter how often tasks were tried. What could not be
    read goes to ``quarantine``, as JSON lines by blob date with file and reason. Raises JobError.
    """
    found = blocks(spark, source, files, shape)
    found.write.option("compression", "snappy").parquet(folder)
    written = spark.read.schema(SCHEMA).parquet(folder)
    groups = [Group(**row.asDict()) for row in counted(written).collect()]
    if count := sum(group.count for group in groups if group.reason):
        set_apart(bad_lines(written, count), quarantine)
    return extracted(files, groups)


def counted(rows: DataFrame) -> DataFrame:
    """In the columns of ``Group``."""
    from pyspark.sql import functions as F

    found = rows.groupBy("blob_date", "event_date", "reason", "field").agg(
        F.sum(F.coalesce("records", F.lit(1))).alias("count"),
        F.min(F.struct("file", "detail")).alias("example"),
    )
    return found.select(
        "blob_date", "event_date", "reason", "field", "count", "example.file", "example.detail"
    )


def bad_lines(rows: DataFrame, count: int) -> Iterator[Mapping[str, str]]:
    """Of rows that were written; where they are many, a partition at a time, each by a job."""
    bad = rows.where("reason is not null").select("blob_date", *QUARANTINE)
    found = bad.collect() if count <= FILE_LINES else bad.toLocalIterator()
    return (row.asDict() for row in found)


def set_apart(lines: Iterable[Mapping[str, str]], quarantine: Quarantine) -> None:
    """As JSON lines by blob date; however many there are, few of them at a time are here."""
    rest, number = iter(lines), 0
    while some := list(islice(rest, FILE_LINES)):
        number += 1
        by_date: dict[str, list[str]] = {}
        for line in some:
            columns = {name: line[name] for name in QUARANTINE}
            text = f"{json.dumps(columns, ensure_ascii=False)}\n"
            by_date.setdefault(line["blob_date"], []).append(text)
        for day, texts in by_date.items():
            quarantine(f"blob_date={day}/part-{number:05}.json", "".join(texts).encode())


def partials_of(
    spark: SparkSession, partials: Mapping[str, str], event_dates: Collection[str]
) -> DataFrame:
    """Blocks of these event dates, from the folders of blob dates: blob date → folder."""
    by_folder: dict[str, list[str]] = {}
    for day, folder in sorted(partials.items()):
        by_folder.setdefault(folder, []).append(day)
    frames = [
        spark.read.schema(SCHEMA).parquet(folder).where(_among("blob_date", days))
        for folder, days in by_folder.items()
    ]
    found = reduce(lambda some, more: some.unionAll(more), frames)
    wanted = found.where(f"reason is null and {_among('event_date', sorted(event_dates))}")
    return wanted.select("event_date", "bucket", "series", "block")


def _among(column: str, dates: Iterable[str]) -> str:
    """As text, which goes to Spark at once however many dates there are."""
    return f"{column} in ({', '.join(map(repr, dates))})"
