"""Both steps of the job in one process without Spark, for a sample that fits into memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import pyarrow as pa

from shared.sampling.model import Reason
from shared.sampling.operations import DayOperations
from shared.sampling.series import Totals
from spark_jobs.model import Extracted, extracted
from spark_jobs.read.files import SourceFile
from spark_jobs.read.operations import weights_of
from spark_jobs.sums.totals import (
    DIVIDED,
    added,
    bucket_counts,
    divided,
    factors_of,
    sums_of_blocks,
)


@dataclass(frozen=True)
class Alone:
    totals: Totals
    operations: Mapping[str, DayOperations]
    read: Extracted


def added_up(files: Sequence[SourceFile], batches: Iterable[pa.RecordBatch]) -> Alone:
    """Adds up what ``batches_of`` has read of the files."""
    blocks, samples = list[pa.RecordBatch](), list[tuple[str, str, str]]()
    groups = list[SimpleNamespace]()
    for batch in batches:
        good = batch.filter(batch.column("reason").is_null())
        blocks.append(good.select(["event_date", "names", "block"]))
        for row in batch.drop_columns(["names", "block"]).to_pylist():
            if row["reason"] == Reason.OPERATIONS:
                samples.append((row["event_date"], row["field"], row["text"]))
            else:
                told = {"lines": row["records"] or 1, "example": (row["file"], row["detail"])}
                groups.append(SimpleNamespace(**row, **told))
    read = extracted(files, groups)
    weights = weights_of(samples)
    records = sum((Counter(each.records) for each in read.blob_dates.values()), Counter[str]())
    moved = pa.Table.from_batches(divided(blocks, bucket_counts(records)), DIVIDED)
    ordered = moved.sort_by([(name, "ascending") for name in ("event_date", "part", "bucket")])
    sums = sums_of_blocks(ordered.to_batches(), factors_of(weights))
    rows = [row for batch in sums for row in batch.to_pylist()]
    for row in rows:  # Spark's rows have tuples here
        row["hours"] = [tuple(hour.values()) for hour in row["hours"] or ()]
    return Alone(*added(rows, weights), read)
