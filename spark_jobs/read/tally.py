"""What tasks count while they read: it reaches the driver beside the rows, and costs no query.

Spark adds what a task has counted once the task has succeeded, and only once however often it was
tried, as long as its rows are written by the same stage (RDD Programming Guide, "Accumulators"). It
does not promise that none is lost on the way, so the rows are counted by Spark as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from spark_jobs.engine import BlobDate, Complaint
from spark_jobs.errors import JobError
from spark_jobs.read.files import SourceFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator

COMPLAINTS_MAX = 100
LINES_MAX = 1_000
QUARANTINE = ["blob_date", "file", "reason", "field", "detail", "text"]

Line = dict[str, str]
"""In the columns of ``QUARANTINE``; of the text the beginning."""


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


@dataclass(slots=True)
class Tally:
    """Of so many ``rows``; ``lines`` are those that could not be read, unless they are too many."""

    rows: int = 0
    counts: Counts = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)

    @property
    def has_all_lines(self) -> bool:
        return len(self.lines) == quarantined(self.counts)

    def add(self, more: Tally) -> Tally:
        self.rows += more.rows
        merge(self.counts, more.counts)
        lines = self.lines + more.lines
        self.lines = lines if len(lines) <= LINES_MAX else []
        return self


class _Adding:
    """How Spark adds tallies; see ``pyspark.AccumulatorParam``."""

    def zero(self, value: Tally) -> Tally:
        del value
        return Tally()

    def addInPlace(self, value1: Tally, value2: Tally) -> Tally:  # noqa: N802
        return value1.add(value2)


def accumulator(context: SparkContext) -> Accumulator[Tally]:
    return context.accumulator(Tally(), _Adding())  # type: ignore[arg-type]


def counted(
    batches: Iterable[pa.RecordBatch], tally: Accumulator[Tally]
) -> Iterator[pa.RecordBatch]:
    """The same batches. A row is a line that could not be read, so many ``records``, or one."""
    for batch in batches:
        tally.add(_tally_of(batch))
        yield batch


def _tally_of(batch: pa.RecordBatch) -> Tally:
    days, event_dates = (batch.column(name).to_pylist() for name in ("blob_date", "event_date"))
    packed = "records" in batch.schema.names
    numbers = batch.column("records").to_pylist() if packed else [1] * batch.num_rows
    good = batch.column("reason").is_null().to_pylist()
    found = Tally(batch.num_rows)
    for day, event_date, number, read in zip(days, event_dates, numbers, good, strict=True):
        if read:
            merge(found.counts, {Group(day, event_date, None, None): Count(number)})
    if not all(good):
        found.add(_tally_of_lines(batch.filter(batch.column("reason").is_valid())))
    return found


def _tally_of_lines(batch: pa.RecordBatch) -> Tally:
    lines: list[Line] = batch.select(QUARANTINE).to_pylist()
    found = Tally(lines=lines)
    for line in lines:
        group = Group(line["blob_date"], None, line["reason"], line["field"])
        merge(found.counts, {group: Count(1, line["file"], line["detail"])})
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
    order = sorted(complaints, key=lambda each: (-each.count, each.reason, each.field))
    return order[:COMPLAINTS_MAX]


def blob_dates_of(counts: Counts, files: Sequence[SourceFile]) -> dict[str, BlobDate]:
    """Also of dates whose files held no line."""
    sizes: dict[str, list[int]] = {}
    for file in files:
        sizes.setdefault(file.blob_date, []).append(file.size_bytes)
    by_date: dict[str, Counts] = {day: {} for day in sizes}
    for group, count in counts.items():
        if group.blob_date not in by_date:
            raise JobError(
                f"records of {group.blob_date} came, and no file of that date was listed"
            )
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
