"""``python -m spark_jobs.check FOLDER``: are the item counts of a sample of telemetry right, and is
any event incomplete? It calls what the nightly job runs in Spark's tasks, in one process without
Spark, Azure or history.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from spark_jobs.errors import JobError, exit_code, need_packages

if __name__ == "__main__":
    need_packages()

import pyarrow as pa

from shared.sampling.kept_ids import WeightsSeen, of_run
from shared.sampling.model import Reason
from shared.sampling.operations import LEFT_OUT, LOGS, DayOperations
from shared.sampling.series import Shape, Totals
from shared.sampling.trend_rows import Trend
from shared.sampling.trends import TrendInputs, trends_of
from shared.sampling.verdict import CAPPED, LOST, VerdictKind
from spark_jobs.model import Extracted, describe, extracted, unread_files
from spark_jobs.read.files import Chunk, SourceFile
from spark_jobs.read.lines import batches_of
from spark_jobs.read.operations import weights_of
from spark_jobs.read.sources import files_of, pieces_of_chunks
from spark_jobs.sums.totals import (
    DIVIDED,
    added,
    bucket_counts,
    divided,
    factors_of,
    sums_of_parts,
)

FILES_BYTES_MAX = 600_000_000
"""About a million records, which take 100 MB of memory."""
ARRIVAL_DAYS = 1
PACKED = 10
"""The size of a text beside that of its compressed file."""
SHOWN_MAX, COMPLAINTS_MAX, NAMES_MAX = 40, 5, 10
GROUP = ("blob_date", "event_date", "reason", "field")


@dataclass(frozen=True)
class Alone:
    totals: Totals
    operations: Mapping[str, DayOperations]
    read: Extracted


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m spark_jobs.check", description=__doc__)
    parser.add_argument("folder", metavar="FOLDER", help="exported telemetry: a folder or file, or"
        " an http(s) URL of blobs; the newest dates are read first")  # fmt: skip
    today = datetime.now(UTC).date()
    folder = parser.parse_args(arguments).folder
    return exit_code("check", lambda: print("\n".join(page_of(folder, today))))


def page_of(folder: str, today: date) -> Iterator[str]:
    source = files_of([folder], os.environ.get("AZURE_STORAGE_CONNECTION_STRING", ""))
    listed = list(source.files())
    files = sorted((f for f in listed if f.is_export), key=lambda file: file.blob_date)
    chosen = _newest(files)
    pieces = pieces_of_chunks(source, [Chunk(file, 0, file.size_bytes) for file in chosen])
    found = added_up(chosen, batches_of(pieces, Shape()))
    others = [
        describe(each) for each in (*unread_files(listed), *found.read.complaints[:COMPLAINTS_MAX])
    ]
    dates = sorted(found.operations)
    if not dates:
        told = "; ".join(others) or "all are empty"
        raise JobError(f"{folder}: no telemetry in {len(files)} files: {told}")
    count = sum(sum(each.records.values()) for each in found.read.blob_dates.values())
    yield f"{count:,} records of {dates[0]} to {dates[-1]}"
    yield from (f"  {other}" for other in others)
    if left := len(files) - len(chosen):
        yield f"  not read: {left} files of older dates; spark_jobs.event_trends reads all"
    yield "\nItemCounts"
    lines = [f"  {line}" for line in _item_counts(found.operations)]
    yield from _some(lines or ["  cannot be told: no event, request or trace has an OperationId"])
    yield "\nEvents"
    yield from _some([f"  {line}" for line in _events(found)])
    if 0 <= (today - date.fromisoformat(dates[-1])).days <= ARRIVAL_DAYS:
        yield f"  Some files of {dates[-1]} may still be written. Tables arrive at different times."
    if left_out := sum(day.counts[LEFT_OUT,] for day in found.operations.values()):
        yield f"  {left_out:,} operations near midnight or with late records were left out"


def added_up(files: Sequence[SourceFile], batches: Iterable[pa.RecordBatch]) -> Alone:
    """Adds up what ``batches_of`` has read of the files, as the second Spark job does."""
    blocks, samples = list[pa.RecordBatch](), list[tuple[str, str, str]]()
    lines, examples = Counter[tuple[Any, ...]](), dict[tuple[Any, ...], tuple[str, str]]()
    for batch in batches:
        good = batch.filter(batch.column("reason").is_null())
        blocks.append(good.select(["event_date", "names", "block"]))
        for row in batch.drop_columns(["names", "block"]).to_pylist():
            if row["reason"] == Reason.OPERATIONS:
                samples.append((row["event_date"], row["field"], row["text"]))
            else:
                key, example = tuple(row[name] for name in GROUP), (row["file"], row["detail"])
                lines[key] += row["records"] or 1
                examples[key] = min(examples.get(key, example), example)
    groups = [
        SimpleNamespace(**dict(zip(GROUP, key, strict=True)), lines=count, example=examples[key])
        for key, count in lines.items()
    ]
    read = extracted(files, groups)
    weights = weights_of(samples)
    records = sum((Counter(each.records) for each in read.blob_dates.values()), Counter[str]())
    moved = pa.Table.from_batches(divided(blocks, bucket_counts(records)), DIVIDED)
    ordered = moved.sort_by([(name, "ascending") for name in ("event_date", "part", "bucket")])
    rows = sums_of_parts(ordered.to_batches(), factors_of(weights))
    return Alone(*added(rows, weights), read)


def _events(found: Alone) -> Iterator[str]:
    """Yields the events that were lost or may be, and those that were not compared. The first and
    the last date may not be whole, so only companions count there.
    """
    dates = sorted(found.operations)
    tomorrow = date.fromisoformat(dates[-1]) + timedelta(days=1)
    inputs = TrendInputs(Shape(), found.read.blob_dates, tomorrow, operations=found.operations)
    trends, lost = trends_of(found.totals, inputs), False
    if not trends:
        yield "cannot be told: the files hold metrics, but no event, request or trace"
        return
    if len(dates) == 1:
        yield "There is only one date. Losses are seen by comparing dates."
        return
    for trend in trends:
        fallen = trend.date in dates[1:-1] and (trend.verdict in LOST or _may_be_lost(trend))
        capped = trend.date in dates[1:-1][-1:] and CAPPED in trend.reason
        if fallen or capped or trend.evidence.get("companion_fallen"):
            yield f"{trend.date} {trend.event}: {trend.verdict}: {trend.reason}"
            lost = True
    compared = {trend.event for trend in trends if "companion" in trend.evidence}
    if compared and not lost:
        yield "none is seen to be incomplete"
    if others := sorted({trend.event for trend in trends} - compared):
        named = ", ".join(others[:NAMES_MAX]) + (", …" if len(others) > NAMES_MAX else "")
        yield f"not compared, for want of an event with the same operations and sampling: {named}"


def _may_be_lost(trend: Trend) -> bool:
    seen = trend.evidence
    is_low = seen.get("score_by_value", 0) < seen.get("score_min_by_value", 0)
    return is_low and trend.verdict == VerdictKind.UNCERTAIN


def _item_counts(operations: Mapping[str, DayOperations]) -> Iterator[str]:
    """Yields a line for each sampler, and run of dates on which its item counts are alike."""
    by_sampler: dict[str, list[tuple[str, WeightsSeen]]] = {}
    for day, of_day in operations.items():
        for name, seen in of_day.weights.items():
            by_sampler.setdefault(name, []).append((day, seen))
    for name, days in sorted(by_sampler.items()):
        if name.endswith(LOGS) and _alike(days, by_sampler.get(name.removesuffix(LOGS), ())):
            continue
        runs: list[list[tuple[str, WeightsSeen]]] = []
        for day, seen in days:
            if runs and runs[-1][-1][1].is_like(seen):
                runs[-1].append((day, seen))
            else:
                runs.append([(day, seen)])
        for run in runs:
            (first, _), (last, _) = run[0], run[-1]
            span = first if first == last else f"{first} to {last}"
            told = of_run([seen for _, seen in run]).told(name)
            yield f"{name if name.removesuffix(LOGS) else f'(no SDKVersion){name}'}, {span}: {told}"


def _alike(
    some: Sequence[tuple[str, WeightsSeen]], others: Sequence[tuple[str, WeightsSeen]]
) -> bool:
    """Whether both say the same of the same dates."""
    return [day for day, _ in some] == [day for day, _ in others] and all(
        one.is_like(other) for (_, one), (_, other) in zip(some, others, strict=True)
    )


def _some(lines: Sequence[str]) -> Iterator[str]:
    yield from lines[:SHOWN_MAX]
    if len(lines) > SHOWN_MAX:
        yield f"  and {len(lines) - SHOWN_MAX} more"


def _newest(files: Sequence[SourceFile]) -> list[SourceFile]:
    """Returns the files of the newest dates, which are at most ``FILES_BYTES_MAX`` together."""
    chosen, size_bytes = list[SourceFile](), 0
    for file in reversed(files):
        size_bytes += file.size_bytes * (1 if file.splittable else PACKED)
        if chosen and size_bytes > FILES_BYTES_MAX:
            break
        chosen.append(file)
    return chosen


if __name__ == "__main__":
    sys.exit(main())
