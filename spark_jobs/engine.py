"""The two Spark jobs: one reads files into partials, and the other adds up partials."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from shared.sampling.model import WITHOUT_LINE, Reason
from shared.sampling.series import Shape, Totals
from spark_jobs.model import Extracted, extracted
from spark_jobs.publish.results import Operations
from spark_jobs.publish.stores import marker_beside, require
from spark_jobs.read.blocks import FORMAT, QUARANTINE, SCHEMA, Batches, in_task
from spark_jobs.read.files import SourceFile, spread
from spark_jobs.read.lines import batches_of
from spark_jobs.read.operations import weights_of
from spark_jobs.read.sources import ClusterFiles, Source, pieces_of_lines, pieces_of_tasks
from spark_jobs.sums.totals import PARTS, added, factors_of, sums_by_part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

TASK_RECORDS = 250_000
"""The number of records for which one more task adds up."""

Partials = Mapping[str, Collection[str]]
"""The blob dates whose partials are used, by folder."""


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
        """
        rows = self.rows(source, files, shape, marker_beside(folder))
        rows.write.parquet(folder, compression="snappy")
        written = self._spark.read.schema(rows.schema).parquet(folder)
        groups = counted(written)
        if any(group.reason and group.reason not in WITHOUT_LINE for group in groups):
            told = ", ".join(f"'{reason}'" for reason in sorted(WITHOUT_LINE))
            bad = written.where(f"reason not in ({told})").select("blob_date", *QUARANTINE)
            bad.write.partitionBy("blob_date").json(quarantine)
        return extracted(files, groups)

    def rows(
        self, source: Source, files: Sequence[SourceFile], shape: Shape, marker: str
    ) -> DataFrame:
        """Returns rows of ``blocks.SCHEMA``. A task reads up to ``CHUNK_BYTES`` of
        files, or one compressed file.

        A task fails if its machine has no file ``marker``; an empty name requires none.
        """
        if isinstance(source, ClusterFiles):  # Spark has split the files itself
            parts, pieces = source.lines(files), partial(pieces_of_lines, source.names)
        else:
            tasks = spread(files)
            parts = self._spark.range(0, len(tasks), 1, len(tasks))
            pieces = partial(pieces_of_tasks, source, tasks)

        def work(batches: Batches) -> Batches:
            require(marker)
            yield from batches_of(pieces(batches), shape)

        return parts.mapInArrow(in_task(work), from_arrow_schema(SCHEMA))

    def total(self, partials: Partials, records: Mapping[str, int]) -> tuple[Totals, Operations]:
        """Add up some event dates. ``partials`` has the blob dates of each folder, and ``records``
        the number of records of each event date, as counted when they were read.

        Copies are counted once, and the records of an operation are combined across all partials.
        """
        if not partials or not records:
            return {}, {}
        most = PARTS * len(records)
        tasks = min(-(-sum(records.values()) // TASK_RECORDS), most)
        rows = partials_of(self._spark, partials, records)
        samples = rows.where(f"reason = '{Reason.OPERATIONS}'")
        blocks = rows.where("reason is null").select("event_date", "names", "block")
        weights = weights_of(samples.select("event_date", "field", "text").collect())
        sums = sums_by_part(blocks, records, tasks, factors_of(weights))
        return added([row.asDict() for row in sums.collect()], weights)


def counted(rows: DataFrame) -> list[Row]:
    """Counts the written records by event date, and the unreadable lines by reason.

    ``file`` and ``detail`` belong to one of these lines. It is always the same line, in whatever
    order the tasks end.
    """
    counted = rows.where(f"reason is null or reason <> '{Reason.OPERATIONS}'")
    groups = counted.groupBy("blob_date", "event_date", "reason", "field").agg(
        F.sum(F.coalesce("records", F.lit(1))).alias("lines"),
        F.min(F.struct("file", "detail")).alias("example"),
    )
    return groups.collect()


def partials_of(spark: SparkSession, partials: Partials, event_dates: Collection[str]) -> DataFrame:
    """Returns the rows of some event dates."""
    read = spark.read.schema(from_arrow_schema(SCHEMA))
    frames = [
        read.parquet(folder).where(F.col("blob_date").isin(*days))
        for folder, days in partials.items()
    ]
    rows = reduce(lambda some, more: some.unionAll(more), frames)
    return rows.where(F.col("event_date").isin(*event_dates))
