"""The block format: compact records of one event date, packed into one value.

With blocks, Spark moves a few large values instead of many small rows. Partials have the blocks of
each blob date and event date. To add them up, each date is divided into buckets by the hash of the
operation. So all records of an operation, and therefore all copies of a record, are in the same
bucket, whichever file they came from.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

FORMAT = "blocks-4"
"""The name of the format. Change it when earlier partials can no longer be read, or when keys are
computed differently.
"""
BATCH_BYTES = 2 << 20
BLOCK_RECORDS = 25_000
"""The most records of a block, which then takes about 1 MB."""
RECORD = np.dtype(
    [
        ("key", "<u8"),  # equal for copies of a record
        ("unit", "<u8"),  # hash of the operation; if there is none, the record's key
        ("k", "<f8"),  # weight: number of records that this one represents
        ("x", "<f8"),  # the measurement; NaN if it is missing
        ("hour", "<i4"),  # since 1970 in UTC
        ("series", "<u4"),  # index into the block's list of series
        ("sender", "<u4"),  # index into the block's list of senders
        ("trusted", "?"),
        ("exact", "?"),  # the weight is not rounded
        ("late", "?"),
        ("near", "?"),  # so near midnight that its operation may have records of two dates
        ("age", "i1"),  # days from the UTC date of the record to that of its file, or UNKNOWN_AGE
    ]
)
AGE_MAX = 4
"""Records of this age may be older."""
QUARANTINE = ("file", "reason", "field", "detail", "text")
SCHEMA = pa.schema(
    {
        "blob_date": pa.string(),
        "event_date": pa.string(),
        "records": pa.int64(),
        "names": pa.string(),
        "block": pa.binary(),
        **dict.fromkeys(QUARANTINE, pa.string()),
    }
)
"""A row is a block of records, one line or file that could not be read, the number of records of a
table without events in one file, or a sample of operations."""

Row = dict[str, Any]
Names = Sequence[tuple[str, ...]]
"""The kind, name and dimensions of each series, or the columns of each sender."""
NAMED = ("series", "sender")
"""The columns that are indexes into lists of names."""
Batches = Iterator[pa.RecordBatch]
Work = Callable[[Batches], Batches]


class Numbered(dict[Any, int]):
    """Numbers keys from 0 in the order in which they are first looked up."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


def batches(rows: Iterable[Row], schema: pa.Schema) -> Batches:
    """Groups small rows into batches of about ``BATCH_BYTES``."""
    batch: list[Row] = []
    size_bytes = 0
    for row in rows:
        batch.append(row)
        size_bytes += len(row.get("block") or row["text"])
        if size_bytes >= BATCH_BYTES:
            yield pa.RecordBatch.from_pylist(batch, schema=schema)
            batch, size_bytes = [], 0
    if batch:
        yield pa.RecordBatch.from_pylist(batch, schema=schema)


def in_task(work: Work) -> Work:
    """Returns the function for ``mapInArrow``."""

    def working(batches: Batches) -> Batches:
        gc.freeze()  # excludes modules from the collection that Spark runs after each task
        yield from work(batches)

    return working


def packed(records: Any, names: Sequence[Iterable[Any]], groups: Any) -> Iterator[tuple[int, Row]]:
    """Packs the records of each group into blocks, in the order of the groups' numbers.

    ``records`` has the columns of ``RECORD``; those in ``NAMED`` are indexes into ``names``.
    ``groups`` has the number of each record's group.
    """
    order = np.argsort(groups, kind="stable")
    records, groups = records.take(order), groups[order]
    lists = dict(zip(NAMED, map(list, names), strict=True))
    for start, end in pairwise([*starts(groups), len(groups)]):
        for first in range(start, end, BLOCK_RECORDS):
            block = records[first : min(first + BLOCK_RECORDS, end)]
            used = []
            for column, of_column in lists.items():
                numbers, block[column] = np.unique(block[column], return_inverse=True)
                used.append([of_column[number] for number in numbers])
            row = {"records": len(block), "names": json.dumps(used), "block": block.tobytes()}
            yield int(groups[start]), row


def joined(blocks: Iterable[Sequence[Any]]) -> tuple[Sequence[Names], Any]:
    """Returns the names and the records of blocks. ``blocks`` has the columns names and block."""
    found = [Numbered() for _ in NAMED]
    lists, packs = zip(*blocks, strict=True)
    records = concatenated(packs)
    end = 0
    for names, block in zip(lists, packs, strict=True):
        start, end = end, end + len(block) // RECORD.itemsize
        for column, known, of_block in zip(NAMED, found, json.loads(names), strict=True):
            numbers = np.array([known[tuple(each)] for each in of_block])
            records[column][start:end] = numbers[records[column][start:end]]
    return [list(known) for known in found], records


def concatenated(parts: Iterable[Any]) -> Any:
    """Returns the records of all parts. ``np.concatenate`` would copy them field by field."""
    return np.frombuffer(bytearray().join(parts), RECORD)


def starts(*columns: Any) -> Any:
    """Returns the indexes at which runs of equal rows begin."""
    changed = np.zeros(len(columns[0]), np.bool_)
    changed[:1] = True
    for column in columns:
        changed[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changed)
