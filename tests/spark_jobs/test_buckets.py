"""The memory of a task and of the driver does not grow with the number of records of a date."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_jobs.read import blocks
from spark_jobs.sums import totals
from spark_jobs.sums.totals import DIVIDED, PARTS, bucket_counts, divided, sums_of_blocks

DAY, FIRST_HOUR = "2017-05-15", 415_176
SERIES = [("event", "OrderPlaced"), ("event", "OrderPaid"), ("request", "GET /")]
SENDERS = [("web-0", "dotnet:2.22.0", "7.1")]
BUCKET_RECORDS = 1_000
SLACK = 1.25
"""The hash does not fill all buckets evenly. Their standard deviation is 4 % here."""


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "BUCKET_RECORDS", BUCKET_RECORDS)


def blocks_of_a_date(count: int) -> Iterator[pa.RecordBatch]:
    """Yields blocks of records in operations of two, as tasks write them."""
    rng = np.random.default_rng(count)
    found = np.zeros(count, blocks.RECORD)
    found["key"] = rng.permutation(count)
    found["unit"] = np.repeat(rng.integers(0, 1 << 63, count // 2), 2)
    found["k"] = rng.integers(1, 4, count)
    found["x"] = rng.random(count)
    found["hour"] = FIRST_HOUR + rng.integers(0, 24, count)
    found["sender"] = 0
    found["series"] = rng.integers(0, len(SERIES), count)
    rows = blocks.packed(found, (SERIES, SENDERS), np.zeros(count, np.int64))
    columns = pa.schema(
        {name: DIVIDED.field(name).type for name in ("event_date", "names", "block")}
    )
    yield from blocks.batches(({"event_date": DAY, **row} for _, row in rows), columns)


def bucket_sizes(count: int) -> list[int]:
    """Returns the number of records in each bucket of a date."""
    sizes: dict[int, int] = {}
    for batch in divided(blocks_of_a_date(count), bucket_counts({DAY: count})):
        for row in batch.to_pylist():
            found = len(row["block"]) // blocks.RECORD.itemsize
            sizes[row["bucket"]] = sizes.get(row["bucket"], 0) + found
    assert sum(sizes.values()) == count
    return list(sizes.values())


@pytest.mark.parametrize("count", [50_000, 200_000, 800_000])
def test_a_bucket_of_a_date_of_any_size_has_no_more_records_than_its_limit(count: int) -> None:
    assert max(bucket_sizes(count)) < SLACK * BUCKET_RECORDS


def test_a_date_gets_as_many_buckets_as_its_records_need_and_at_least_one() -> None:
    counts = {"one": 1, "full": BUCKET_RECORDS, "more": BUCKET_RECORDS + 1, "many": 10**9}
    assert bucket_counts(counts) == {"one": 1, "full": 1, "more": 2, "many": 10**6}


def ordered(batches: Iterator[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    """Orders blocks as Spark does."""
    order = [(name, "ascending") for name in ("event_date", "part", "bucket")]
    found: Sequence[pa.RecordBatch] = pa.Table.from_batches(batches).sort_by(order).to_batches()
    return found


def test_a_task_holds_one_bucket_at_a_time_and_returns_a_row_for_each_part_and_series(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = []

    def counting(some: Any) -> Any:
        names, found = blocks.joined(some)
        held.append(len(found))
        return names, found

    count = 200_000
    moved = ordered(divided(blocks_of_a_date(count), bucket_counts({DAY: count})))
    monkeypatch.setattr("spark_jobs.sums.totals.joined", counting)
    (sums,) = sums_of_blocks(moved, {})
    assert sum(held) == sum(filter(None, sums.column("records").to_pylist())) == count
    assert max(held) < SLACK * BUCKET_RECORDS
    assert sums.num_rows == PARTS * (len(SERIES) + 1)
