"""``python -m bench.adding_process RECORDS`` does what one task does of a date with many records.

It divides blocks into buckets, adds up one of the parts of the date, and prints its peak memory in
MB.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from spark_jobs.read.blocks import BLOCK_RECORDS, RECORD, batches, packed
from spark_jobs.sums.totals import DIVIDED, PARTS, bucket_counts, divided, sums_of_blocks

DAY, FIRST_HOUR = "2017-05-15", 415_176
SERIES = [("event", f"Event{number}") for number in range(6)]
SENDERS = [("web-0", "dotnet:2.22.0", "7.1")]
BATCH_BLOCKS = 8
"""The blocks that Spark gives to a task at a time: 8 MB."""


def main(records: int) -> None:
    rng = np.random.default_rng(5)
    buckets = bucket_counts({DAY: records})
    for batch in divided(_blocks(rng, records // PARTS), buckets):
        assert batch.num_rows
    (sums,) = sums_of_blocks(_part(rng, records // PARTS, -(-buckets[DAY] // PARTS)), {})
    assert sums.num_rows == len(SERIES) + 1
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024)


def _blocks(rng: np.random.Generator, count: int) -> Iterator[pa.RecordBatch]:
    """Yields the blocks that a task reads from partials."""
    schema = pa.schema([DIVIDED.field(name) for name in ("event_date", "names", "block")])
    size = BATCH_BLOCKS * BLOCK_RECORDS
    for start in range(0, count, size):
        found = _records(rng, min(size, count - start))
        rows = packed(found, (SERIES, SENDERS), np.zeros(len(found), np.int8))
        yield pa.RecordBatch.from_pylist([{"event_date": DAY, **row} for _, row in rows], schema)


def _part(rng: np.random.Generator, count: int, buckets: int) -> Iterator[pa.RecordBatch]:
    """Yields the blocks of a part, bucket by bucket."""
    for bucket in range(buckets):
        found = _records(rng, count // buckets)
        rows = packed(found, (SERIES, SENDERS), np.arange(len(found)) // 1_000)
        place = {"event_date": DAY, "part": 0, "bucket": bucket * PARTS}
        yield from batches(({**place, **row} for _, row in rows), DIVIDED)


def _records(rng: np.random.Generator, count: int) -> np.ndarray:
    """Returns sampled records in operations of two."""
    found = np.zeros(count, RECORD)
    found["key"] = rng.integers(0, 1 << 63, count)
    found["unit"] = np.repeat(rng.integers(0, 1 << 63, count // 2 + 1), 2)[:count]
    found["k"] = 4
    found["x"] = rng.random(count)
    found["hour"] = FIRST_HOUR + rng.integers(0, 24, count)
    found["sender"] = 0
    found["series"] = rng.integers(0, len(SERIES), count)
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]))
