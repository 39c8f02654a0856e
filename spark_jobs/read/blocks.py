"""The block format: compact records of one blob date, event date and bucket, packed into one value.

With blocks, Spark moves a few large values instead of many small rows. A bucket is a part of an
event date, chosen by the hash of the operation. So all records of an operation, and therefore all
copies of a record, are in the same bucket, whichever file they came from.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

FORMAT = "blocks-2"
"""The name of the format. Change it when earlier partials can no longer be read, or when keys are
computed differently.
"""
BUCKETS = 64
"""The number of buckets of a date. The sums of a date are added bucket by bucket, so their last
digits depend on this number.
"""
BATCH_BYTES = 2 << 20
RECORD = np.dtype(
    [
        ("key", "<u8"),  # equal for copies of a record
        ("unit", "<u8"),  # hash of the operation; if there is none, the record's key
        ("k", "<f8"),  # weight: number of records that this one represents
        ("x", "<f8"),  # the measurement; NaN if it is missing
        ("hour", "<i4"),  # since 1970 in UTC
        ("series", "<u4"),  # index into the block's list of series
        ("trusted", "?"),
        ("late", "?"),
    ]
)
QUARANTINE = ("file", "reason", "field", "detail", "text")
SCHEMA = pa.schema(
    {
        "blob_date": pa.string(),
        "event_date": pa.string(),
        "bucket": pa.int32(),
        "records": pa.int64(),
        "series": pa.string(),
        "block": pa.binary(),
        **dict.fromkeys(QUARANTINE, pa.string()),
    }
)
"""A row is either a block of records or one line that could not be read."""

Row = dict[str, Any]
SeriesNames = tuple[str, ...]
"""The kind, name and dimensions of a series."""
Key = TypeVar("Key", bound=Hashable)


class Numbered(dict[Key, int]):
    """Numbers keys from 0 in the order in which they are first looked up."""

    def __missing__(self, key: Key) -> int:
        self[key] = number = len(self)
        return number


def batches(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Groups small rows into batches of about ``BATCH_BYTES``."""
    batch: list[Row] = []
    size_bytes = 0
    for row in rows:
        batch.append(row)
        size_bytes += len(row.get("block") or row["text"])
        if size_bytes >= BATCH_BYTES:
            yield pa.RecordBatch.from_pylist(batch, schema=SCHEMA)
            batch, size_bytes = [], 0
    if batch:
        yield pa.RecordBatch.from_pylist(batch, schema=SCHEMA)


def packed(records: Any, series: list[SeriesNames]) -> Row:
    """Packs records into a row. ``records`` has the columns of ``RECORD``; their ``series`` are
    indexes into the list.
    """
    used, indexes = np.unique(records["series"], return_inverse=True)
    content = records.copy()
    content["series"] = indexes
    names = json.dumps([series[number] for number in used])
    return {"records": len(records), "series": names, "block": content.tobytes()}


def unpacked(series: str, block: bytes) -> tuple[list[SeriesNames], Any]:
    return [tuple(names) for names in json.loads(series)], np.frombuffer(block, RECORD)
