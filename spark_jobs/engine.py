"""Files → partials of their dates, and partials → sums of event dates, by Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_jobs.read import reading
from spark_jobs.read.blocks import BUCKETS, FORMAT
from spark_jobs.read.extracted import Extracted
from spark_jobs.read.files import SourceFile
from spark_jobs.read.reading import Quarantine
from spark_jobs.read.sources import Source
from spark_jobs.session import cores
from spark_jobs.shape import Shape
from spark_jobs.sums.sums import Totals
from spark_jobs.sums.totals import sums_by_bucket, totals_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_RECORDS = 250_000
"""A task adds up no less than a bucket of a date."""
TASKS_MAX = 10_000


class Engine:
    """``mapInArrow`` reads and adds up; Spark moves, stores and counts blocks."""

    name = FORMAT
    """Partials of one format can be put together with those of the same format only."""

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
        """See ``reading.extract``. Raises BadInput."""
        return reading.extract(self._spark, source, files, shape, folder, quarantine)

    def total(
        self, partials: Mapping[str, str], event_dates: Collection[str], records: int
    ) -> Totals:
        """Of these event dates, from the partials of blob dates: blob date → folder.

        Copies are counted once and operations put together across all of them. ``records`` is
        about how many there are, and tells how many tasks there should be.
        """
        if not partials or not event_dates:
            return Totals()
        most = min(BUCKETS * len(event_dates), TASKS_MAX)
        tasks = max(cores(self._spark), min(-(-records // TASK_RECORDS), most))
        blocks = reading.partials_of(self._spark, partials, event_dates)
        return totals_of(row.asDict() for row in sums_by_bucket(blocks, tasks).collect())
