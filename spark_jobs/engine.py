"""The two Spark jobs: one reads files into partials, one for each blob date; the other adds up
partials to sums of dates.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.errors import JobError
from spark_jobs.model import BlobDate, Complaint, Extracted, Shape, Totals
from spark_jobs.publish.shared_folder import marker_beside, require
from spark_jobs.read.blocks import BUCKETS, FORMAT, QUARANTINE, SCHEMA
from spark_jobs.read.files import Chunk, SourceFile, spread
from spark_jobs.read.lines import batches_of
from spark_jobs.read.sources import ClusterFiles, Source, blocks_of
from spark_jobs.session import cores
from spark_jobs.sums.totals import sums_by_bucket, totals_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row, SparkSession

TASK_RECORDS = 250_000
"""The smallest number of records for which a separate task is worthwhile. A task adds up whole
buckets.
"""
TASKS_MAX = 10_000
COMPLAINTS_MAX = 100

Batches = Iterator["pa.RecordBatch"]
Work = Callable[[Batches], Batches]


class Engine:
    """Runs both jobs. Files are read and blocks are added up by functions in ``mapInArrow``; Spark
    itself only moves and stores blocks.

    Partials can be added only to partials of an engine of the same ``name``.
    """

    name = FORMAT

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
        """Write partials to ``folder``, and lines that could not be read to ``quarantine``.

        The counts are those of the files that were written, so retried tasks do not change them.
        Raises JobError.
        """
        with marker_beside(folder) as marker:
            rows = self.rows(source, files, shape, marker)
            rows.write.parquet(folder, compression="snappy")
        written = self._spark.read.schema(rows.schema).parquet(folder)
        groups = counted(written)
        if any(group.reason for group in groups):
            bad = written.where("reason is not null").select("blob_date", *QUARANTINE)
            bad.write.partitionBy("blob_date").json(quarantine)
        return extracted(files, groups)

    def rows(
        self, source: Source, files: Sequence[SourceFile], shape: Shape, marker: str
    ) -> DataFrame:
        """Returns rows of ``blocks.SCHEMA``. All tasks read about the same number of bytes.

        A task fails if its machine has no file ``marker``; an empty name requires none.
        """
        if isinstance(source, ClusterFiles):  # Spark has split the files itself
            parts, work = source.lines(files), _work_on_lines(shape, marker)
        else:
            tasks = spread(files, cores(self._spark))
            parts = self._spark.range(0, len(tasks), 1, len(tasks))
            work = _work_on_chunks(source, tasks, shape, marker)
        return parts.mapInArrow(work, from_arrow_schema(SCHEMA)).select(*SCHEMA.names)

    def total(
        self, partials: Mapping[str, str], event_dates: Collection[str], records: int
    ) -> Totals:
        """Add up some event dates. ``partials`` has the folder of each blob date.

        Copies are counted once, and the records of an operation are combined across all partials.
        ``records`` is the approximate number of records, which determines the number of tasks.
        """
        if not partials or not event_dates:
            return Totals()
        most = min(BUCKETS * len(event_dates), TASKS_MAX)
        tasks = max(cores(self._spark), min(-(-records // TASK_RECORDS), most))
        blocks = partials_of(self._spark, partials, event_dates)
        return totals_of(row.asDict() for row in sums_by_bucket(blocks, tasks).collect())


def _work_on_chunks(
    source: Source, tasks: Sequence[Sequence[Chunk]], shape: Shape, marker: str
) -> Work:
    """Returns the function of a task. Spark sends each task only its number; the task reads its
    files itself.
    """

    def work(batches: Batches) -> Batches:
        gc.freeze()  # excludes modules from the collection that Spark runs after each task
        require(marker)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                pieces = (
                    (chunk.file, piece)
                    for chunk in tasks[number]
                    for piece in blocks_of(source, chunk)
                )
                yield from batches_of(pieces, shape)

    return work


def _work_on_lines(shape: Shape, marker: str) -> Work:
    """Returns the function of a task for lines that Spark has read, in columns path and line."""

    def pieces(batches: Batches) -> Iterator[tuple[SourceFile, bytes]]:
        for batch in batches:
            rows = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
            for path, of_file in groupby(rows, itemgetter(0)):
                file = SourceFile(unquote(path), 0)
                yield file, b"\n".join(line for _, line in of_file)

    def work(batches: Batches) -> Batches:
        gc.freeze()
        require(marker)
        yield from batches_of(pieces(batches), shape)

    return work


def counted(rows: DataFrame) -> list[Row]:
    """Counts the written records by event date, and the unreadable lines by reason.

    ``file`` and ``detail`` belong to one of these lines. It is always the same line, in whatever
    order the tasks end.
    """
    groups = rows.groupBy("blob_date", "event_date", "reason", "field").agg(
        F.sum(F.coalesce("records", F.lit(1))).alias("lines"),
        F.min(F.struct("file", "detail")).alias("example"),
    )
    return groups.collect()


def extracted(files: Sequence[SourceFile], groups: Sequence[Row]) -> Extracted:
    """Returns the counts by blob date, including dates whose files have no lines. Raises
    JobError."""
    by_date: dict[str, list[SourceFile]] = {}
    for file in files:
        by_date.setdefault(file.blob_date, []).append(file)
    if unlisted := {group.blob_date for group in groups} - set(by_date):
        raise JobError(f"records of {min(unlisted)} were read, but no file of that date was listed")
    blob_dates = {}
    for day, of_date in by_date.items():
        counts = [group for group in groups if group.blob_date == day]
        blob_dates[day] = BlobDate(
            size_bytes=sum(file.size_bytes for file in of_date),
            records=sum(group.lines for group in counts if not group.reason),
            quarantined=sum(group.lines for group in counts if group.reason),
            event_dates=tuple(sorted({group.event_date for group in counts} - {None})),
        )
    return Extracted(blob_dates, _complaints(group for group in groups if group.reason))


def _complaints(groups: Iterable[Row]) -> list[Complaint]:
    """Returns the complaints, the most frequent first."""
    same_reason: dict[tuple[str, str], list[Row]] = {}
    for group in groups:
        same_reason.setdefault((group.reason, group.field), []).append(group)
    complaints = [
        Complaint(*key, sum(group.lines for group in same), *min(group.example for group in same))
        for key, same in same_reason.items()
    ]
    complaints.sort(key=lambda each: (-each.count, each.reason, each.field))
    return complaints[:COMPLAINTS_MAX]


def partials_of(
    spark: SparkSession, partials: Mapping[str, str], event_dates: Collection[str]
) -> DataFrame:
    """Returns the blocks of some event dates. ``partials`` has the folder of each blob date."""

    # As a text, a condition needs only one call to Spark.
    def in_dates(column: str, dates: Iterable[str]) -> str:
        return f"{column} in ({', '.join(map(repr, dates))})"

    by_folder: dict[str, list[str]] = {}
    for day, folder in sorted(partials.items()):
        by_folder.setdefault(folder, []).append(day)
    frames = [
        spark.read.schema(from_arrow_schema(SCHEMA))
        .parquet(folder)
        .where(in_dates("blob_date", days))
        for folder, days in by_folder.items()
    ]
    rows = reduce(lambda some, more: some.unionAll(more), frames)
    chosen = rows.where(f"reason is null and {in_dates('event_date', sorted(event_dates))}")
    return chosen.select("event_date", "bucket", "series", "block")
