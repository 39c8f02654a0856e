"""The fast engine: DuckDB inside Spark's tasks, which reads JSON several times faster.

1. Each task reads about as many bytes as the others and returns blocks of compact records by blob
   date, event date and bucket. All records of an operation, and so all copies, share a bucket.
2. Blocks of the same event date and bucket meet in one task, which counts them exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_jobs.engine import Extracted, Quarantine, Totals
from spark_jobs.engine_spark import totals_of
from spark_jobs.read import duck_blocks, extraction
from spark_jobs.read.duck_reading import read_chunks, read_lines
from spark_jobs.read.files import SourceFile
from spark_jobs.read.sources import Source
from spark_jobs.shape import Shape
from spark_jobs.sums import duck_totals

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

TASK_BYTES = 8 << 20
"""Packed; some 300,000 records. A task has no less than a bucket of a date."""
TASKS_MAX = 10_000
BATCH_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
BATCH_BLOCKS = "64"
"""A row holds up to some megabytes: few of them at a time go to Python."""


class DuckDbEngine:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def name(self) -> str:
        """With what hashes and blocks depend on: others cannot be put together with them."""
        import duckdb

        return f"duckdb-{duck_blocks.FORMAT}.{duckdb.__version__.partition('.')[0]}"

    def extract(
        self,
        source: Source,
        files: Sequence[SourceFile],
        shape: Shape,
        folder: str,
        quarantine: Quarantine,
    ) -> Extracted:
        chunks, lines = partial(read_chunks, shape=shape), partial(read_lines, shape=shape)
        blocks = extraction.read(self._spark, source, files, chunks, lines, duck_blocks.SCHEMA)
        return extraction.write(blocks, files, folder, quarantine, compression="none")

    def total(self, partials: Mapping[str, str], event_dates: Collection[str]) -> Totals:
        if not partials or not event_dates:
            return Totals()
        schema = duck_blocks.SCHEMA
        blocks = extraction.partials_of(self._spark, schema, partials, event_dates)
        packed_bytes = blocks._jdf.queryExecution().analyzed().stats().sizeInBytes()
        cores = self._spark.sparkContext.defaultParallelism
        wanted = -(-int(str(packed_bytes)) // TASK_BYTES)
        most = min(duck_blocks.BUCKETS * len(event_dates), TASKS_MAX)
        parts = max(cores, min(wanted, most))
        met = blocks.repartition(parts, "event_date", "bucket").select("event_date", "block")
        usual = self._spark.conf.get(BATCH_SETTING) or "10000"
        self._spark.conf.set(BATCH_SETTING, BATCH_BLOCKS)
        try:
            found = met.mapInArrow(totalling, duck_totals.SCHEMA).collect()
        finally:
            self._spark.conf.set(BATCH_SETTING, usual)
        return totals_of([row.asDict() for row in found])


def totalling(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a task does: all blocks of its event dates and buckets → their sums."""
    blocks: list[tuple[str, Any]] = []
    for batch in batches:
        blocks += zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
    if blocks:
        yield from duck_totals.totals(blocks).to_batches()
