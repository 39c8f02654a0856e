"""``python -m spark_jobs.check FOLDER``: are the item counts of a sample of telemetry right, and is
any event incomplete? One process, without Spark, Azure or history.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from io import TextIOWrapper

from shared.sampling.model import Ignored, Outcome, Quarantined
from shared.sampling.records import read_line
from shared.sampling.sample_check import SampleCheck
from spark_jobs.errors import JobError
from spark_jobs.event_trends import CONNECTION_STRING
from spark_jobs.read.files import Chunk, SourceFile
from spark_jobs.read.sources import Files, files_of, pieces_of

RECORDS_MAX = 1_000_000
"""About 1 GB of memory."""
SHOWN_MAX = 40


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m spark_jobs.check", description=__doc__)
    parser.add_argument("folder", metavar="FOLDER", help="exported telemetry: a folder or file, or"
        " an http(s) URL of blobs; the newest dates are read first")  # fmt: skip
    folder = parser.parse_args(arguments).folder
    if isinstance(sys.stdout, TextIOWrapper):  # a name that cannot be printed must not end the run
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print("\n".join(_page(folder)))
    except JobError as error:
        print(f"check: {error}", file=sys.stderr)
        return 1
    return 0


def _page(folder: str) -> Iterator[str]:
    source = files_of(folder, os.environ.get(CONNECTION_STRING, ""))
    files = [file for file in source.files() if file.is_export]
    check, others, left = _read(source, sorted(files, key=lambda file: file.blob_date))
    if not check.dates:
        told = "; ".join(f"{count} {what}" for what, count in others.most_common(5))
        raise JobError(f"{folder}: no telemetry in {len(files)} files ({told or 'all are empty'})")
    yield f"{check.records:,} records of {check.dates[0]} to {check.dates[-1]}"
    yield from (f"  not read: {count:,} {what}" for what, count in others.most_common(5))
    if left:
        yield f"  not read: {left} files of older dates, as {RECORDS_MAX:,} records are the most;"
        yield "  python -m spark_jobs.event_trends reads all"
    if check.without_operation:
        yield f"  {check.without_operation:,} records belong to no operation, so ids say nothing"
    yield "\nItemCounts"
    yield from _some([f"  {line}" for line in check.item_counts()])
    yield "\nEvents"
    lost = [
        f"  {each.verdict.day} {each.event}: {each.only and f'{each.only}; '}{each.verdict.kind}:"
        f" {each.verdict.reason}"
        for each in check.incomplete()
    ]
    yield from _some(lost or ["  none is seen to be incomplete"])
    if len(check.dates) == 1:
        yield "  There is only one date. Losses are seen by comparing dates."
    if across := len(check.across_midnight):
        yield f"  {across:,} operations with records of two dates were left out"
    if names := check.not_paired():
        yield f"  {len(names)} rare events were not compared with others, such as {names[0]}"


def _some(lines: Sequence[str]) -> Iterator[str]:
    yield from lines[:SHOWN_MAX]
    if len(lines) > SHOWN_MAX:
        yield f"  and {len(lines) - SHOWN_MAX} more"


def _read(source: Files, files: Sequence[SourceFile]) -> tuple[SampleCheck, Counter[str], int]:
    """Returns what was read, what was not, and the number of files that are left."""
    check, others = SampleCheck(), Counter[str]()
    for number, file in enumerate(reversed(files)):
        if check.records >= RECORDS_MAX:
            return check, others, len(files) - number
        for outcome in _outcomes(source, file):
            if isinstance(outcome, str):
                others[f"file: {outcome}"] += 1
            elif isinstance(outcome, Quarantined):
                others[f"lines ({outcome.reason})"] += 1
            elif isinstance(outcome, Ignored):
                others[f"records of the table {outcome.table}"] += 1
            else:
                check.add(outcome)
    return check, others, 0


def _outcomes(source: Files, file: SourceFile) -> Iterator[Outcome | str]:
    for piece in pieces_of(source, Chunk(file, 0, file.size_bytes)):
        if isinstance(piece, str):
            yield piece
        else:
            for line in piece.split(b"\n"):
                yield from read_line(line, file.received)


if __name__ == "__main__":
    sys.exit(main())
