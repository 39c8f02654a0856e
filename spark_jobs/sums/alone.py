"""Both steps of the job in one process without Spark, for a sample that fits into memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from shared.sampling.model import Reason
from shared.sampling.operations import DayOperations
from shared.sampling.series import Totals
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
    """What was read. ``records`` counts records by blob date and event date, with copies."""

    totals: Totals
    operations: Mapping[str, DayOperations]
    records: Mapping[str, Counter[str]]
    complaints: Counter[tuple[str, str]]
    """The number of lines, records or files by reason and field."""


def added_up(batches: Iterable[pa.RecordBatch]) -> Alone:
    """Adds up what ``batches_of`` has read."""
    blocks, samples = list[pa.RecordBatch](), list[tuple[str, str, str]]()
    records, complaints = dict[str, Counter[str]](), Counter[tuple[str, str]]()
    for batch in batches:
        good = batch.filter(batch.column("reason").is_null())
        blocks.append(good.select(["event_date", "names", "block"]))
        for row in good.select(["blob_date", "event_date", "records"]).to_pylist():
            of_date = records.setdefault(row["blob_date"], Counter())
            of_date[row["event_date"]] += row["records"]
        for row in batch.filter(batch.column("reason").is_valid()).to_pylist():
            if row["reason"] == Reason.OPERATIONS:
                samples.append((row["event_date"], row["field"], row["text"]))
            else:
                complaints[row["reason"], row["field"]] += row["records"] or 1
    weights = weights_of(samples)
    buckets = bucket_counts(sum(records.values(), Counter()))
    moved = pa.Table.from_batches(divided(blocks, buckets), DIVIDED)
    ordered = moved.sort_by([(name, "ascending") for name in ("event_date", "part", "bucket")])
    sums = sums_of_blocks(ordered.to_batches(), factors_of(weights))
    rows = [row for batch in sums for row in batch.to_pylist()]
    for row in rows:  # Spark's rows have tuples here
        row["hours"] = [tuple(hour.values()) for hour in row["hours"] or ()]
    return Alone(*added(rows, weights), records, complaints)
