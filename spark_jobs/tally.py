"""What tasks count while they read: it reaches the driver beside the rows, and costs no query.

Spark adds what a task has counted once the task has succeeded, and only once however often it was
tried, as long as its rows are written by the same stage (RDD Programming Guide, "Accumulators").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from spark_jobs.engine import BlobDate, Complaint
from spark_jobs.files import SourceFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator

COMPLAINTS_MAX = 100


class Group(NamedTuple):
    """Records of an event date, or lines that could not be read for one reason."""

    blob_date: str
    event_date: str | None
    reason: str | None
    field: str | None


class Count(NamedTuple):
    """``file`` and ``detail`` are of one line of many; the same one whatever the order."""

    number: int
    file: str = ""
    detail: str = ""


Counts = dict[Group, Count]


def merge(counts: Counts, more: Counts) -> Counts:
    """Into the first one."""
    for group, count in more.items():
        known = counts.get(group)
        if known is None:
            counts[group] = count
        else:
            example = min(known[1:], count[1:])
            counts[group] = Count(known.number + count.number, *example)
    return counts


class _Counting:
    """How Spark adds counts; see ``pyspark.AccumulatorParam``."""

    def zero(self, value: Counts) -> Counts:
        del value
        return {}

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:  # noqa: N802
        return merge(value1, value2)


def accumulator(context: SparkContext) -> Accumulator[Counts]:
    return context.accumulator({}, _Counting())  # type: ignore[arg-type]


def counted(
    batches: Iterable[pa.RecordBatch], counts: Accumulator[Counts]
) -> Iterator[pa.RecordBatch]:
    """The same batches. A row is a line that could not be read, so many ``records``, or one."""
    for batch in batches:
        counts.add(_counts_of(batch))
        yield batch


def _counts_of(batch: pa.RecordBatch) -> Counts:
    names = ["blob_date", "event_date", "reason", "field", "file", "detail"]
    columns = [batch.column(name).to_pylist() for name in names]
    packed = "records" in batch.schema.names
    numbers = batch.column("records").to_pylist() if packed else [1] * batch.num_rows
    found: Counts = {}
    for blob_date, event_date, reason, field, file, detail, number in zip(
        *columns, numbers, strict=True
    ):
        group = Group(blob_date, event_date, reason, field)
        count = Count(number) if reason is None else Count(1, file, detail)
        merge(found, {group: count})
    return found


def quarantined(counts: Counts) -> int:
    """How many lines could not be read."""
    return sum(count.number for group, count in counts.items() if group.reason)


def complaints_of(counts: Counts) -> list[Complaint]:
    """The most frequent first."""
    of_all_dates: Counts = {}
    for group, count in counts.items():
        if group.reason is not None:
            merge(of_all_dates, {Group("", None, group.reason, group.field): count})
    complaints = [
        Complaint(group.reason or "", group.field or "", count.number, count.file, count.detail)
        for group, count in of_all_dates.items()
    ]
    return sorted(complaints, key=lambda complaint: -complaint.count)[:COMPLAINTS_MAX]


def blob_dates_of(counts: Counts, files: Sequence[SourceFile]) -> dict[str, BlobDate]:
    """Also of dates whose files held no line."""
    sizes: dict[str, list[int]] = {}
    for file in files:
        sizes.setdefault(file.blob_date, []).append(file.size_bytes)
    by_date: dict[str, Counts] = {day: {} for day in sizes}
    for group, count in counts.items():
        by_date[group.blob_date][group] = count
    return {day: _blob_date(sizes[day], found) for day, found in by_date.items()}


def _blob_date(sizes: Sequence[int], counts: Counts) -> BlobDate:
    return BlobDate(
        files=len(sizes),
        size_bytes=sum(sizes),
        records=sum(count.number for group, count in counts.items() if group.reason is None),
        quarantined=quarantined(counts),
        event_dates=tuple(sorted({group.event_date for group in counts if group.event_date})),
    )
