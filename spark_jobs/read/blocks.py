"""Compact records in blocks: one block holds records of one blob date, event date and bucket.

Spark moves few large values instead of many small rows. All records of an operation, and so all
copies of a record, are in one bucket of their event date, whichever file they came from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

FORMAT = "blocks-1"
"""Another one where partials of before cannot be read, or keys are made in another way."""
BUCKETS = 64
"""As sums of a date are added up bucket by bucket, their last digits depend on this number."""
BATCH_BYTES = 2 << 20
RECORD = np.dtype(
    [
        ("key", "<u8"),  # equal for copies
        ("unit", "<u8"),  # the operation; of a record without one its key
        ("k", "<f8"),  # how many records it stands for
        ("x", "<f8"),  # the measurement; NaN where it is missing
        ("hour", "<i4"),  # since 1970 in UTC
        ("series", "<u4"),  # its place in the block's list
        ("trusted", "?"),
        ("late", "?"),
    ]
)
QUARANTINE = ("file", "reason", "field", "detail", "text")
TYPES = {
    "blob_date": pa.string(),
    "event_date": pa.string(),
    "bucket": pa.int32(),
    "records": pa.int64(),
    "series": pa.string(),
    "block": pa.binary(),
    **dict.fromkeys(QUARANTINE, pa.string()),
}
SCHEMA = (
    "blob_date string, event_date string, bucket int, records long, series string, block binary,"
    " file string, reason string, field string, detail string, text string"
)
"""A block of records, or a line that could not be read."""

Row = dict[str, Any]
Series = tuple[str, ...]
"""Kind, name and dimensions."""
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Numbered(dict[Key, int], Generic[Key, Value]):
    """A number for each key, from 0 on; ``made`` has by number what was made of the keys."""

    def __init__(self, make: Callable[[Key], Value]) -> None:
        super().__init__()
        self._make = make
        self.made: list[Value] = []

    def __missing__(self, key: Key) -> int:
        self.made.append(self._make(key))
        self[key] = number = len(self.made) - 1
        return number

    def looked_up(self, numbers: Any, of: Callable[[Value], Any]) -> Any:
        """An array of what ``of`` says of each number; it is asked once for each that there is."""
        used, places = np.unique(numbers, return_inverse=True)
        return np.array([of(self.made[number]) for number in used])[places]


def batch(rows: list[Row]) -> pa.RecordBatch:
    """In the columns of ``SCHEMA``."""
    columns = [pa.array([row.get(name) for row in rows], kind) for name, kind in TYPES.items()]
    return pa.RecordBatch.from_arrays(columns, names=list(TYPES))


def batches(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Small blocks together, large ones alone."""
    some: list[Row] = []
    size_bytes = 0
    for row in rows:
        some.append(row)
        size_bytes += len(row["block"])
        if size_bytes >= BATCH_BYTES:
            yield batch(some)
            some, size_bytes = [], 0
    if some:
        yield batch(some)


def packed(records: Any, series: list[Series]) -> Row:
    """``records`` are in the columns of ``RECORD``, with numbers of ``series``."""
    used, places = np.unique(records["series"], return_inverse=True)
    content = records.copy()
    content["series"] = places
    names = json.dumps([series[number] for number in used])
    return {"records": len(records), "series": names, "block": content.tobytes()}


def unpacked(series: str, block: bytes) -> tuple[list[Series], Any]:
    return [tuple(found) for found in json.loads(series)], np.frombuffer(block, RECORD)
