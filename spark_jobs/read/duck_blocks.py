"""Compact records in blocks: packed columns, one block a blob date, event date and bucket.

Spark moves few large values instead of many small rows. All records of an operation, and so all
copies of a record, are in one bucket of their event date.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 6
"""Another one where partials of before cannot be read, or keys are made in another way."""
BUCKETS = 8
BLOCK_ROWS_MAX = 65_536
BATCH_BYTES = 2 << 20
SCHEMA = (
    "blob_date string, event_date string, bucket int, records long, block binary,"
    " file string, reason string, field string, detail string, text string"
)
"""A block of records, or a line that could not be read."""
NAMES = tuple(part.split()[0] for part in SCHEMA.split(","))
DIM = "dim_"
"""With a number behind it: the column of a dimension. Most jobs have none."""


@dataclass(frozen=True, slots=True)
class Block:
    blob_date: str
    event_date: str
    bucket: int
    records: pa.Table


def packed(records: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, records.schema, options=options) as writer:
        writer.write_table(records.combine_chunks())
    content: bytes = sink.getvalue().to_pybytes()
    return content


def unpacked(block: Any) -> pa.Table:
    import pyarrow as pa

    return pa.ipc.open_stream(block).read_all()


def batches_of_blocks(blocks: Iterable[Block]) -> Iterator[pa.RecordBatch]:
    """Small ones together, large ones alone."""
    rows: list[dict[str, Any]] = []
    size_bytes = 0
    for block in blocks:
        for start in range(0, block.records.num_rows, BLOCK_ROWS_MAX):
            part = block.records.slice(start, BLOCK_ROWS_MAX)
            content = packed(part)
            rows.append(
                {
                    "blob_date": block.blob_date,
                    "event_date": block.event_date,
                    "bucket": block.bucket,
                    "records": part.num_rows,
                    "block": content,
                }
            )
            size_bytes += len(content)
            if size_bytes >= BATCH_BYTES:
                yield batch(rows)
                rows, size_bytes = [], 0
    if rows:
        yield batch(rows)


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    import pyarrow as pa

    types = {"bucket": pa.int32(), "records": pa.int64(), "block": pa.binary()}
    return pa.RecordBatch.from_arrays(
        [
            pa.array([row.get(name) for row in rows], type=types.get(name, pa.string()))
            for name in NAMES
        ],
        names=list(NAMES),
    )
