"""Which files hold what: dates from their paths, and an even spread of their bytes over tasks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from heapq import heappop, heappush
from itertools import pairwise

UNDATED = "undated"
"""The blob date of files whose path tells none: they are read by every run."""
ENDINGS = (".json", ".jsonl", ".blob", ".json.gz", ".jsonl.gz", ".blob.gz", ".gz")
"""Of exports: PT1H.json, and .blob of the classic one."""
CHUNK_BYTES_MAX = 64 << 20
CHUNK_BYTES_MIN = 1 << 20
FILE_COST_BYTES = 128 << 10
"""What opening a file costs, as bytes that could be read meanwhile."""
TASKS_PER_CORE = 3

_EXPORT = re.compile(r"y=(\d{4})/m=(\d{1,2})/d=(\d{1,2})(?:/h=(\d{1,2}))?")
_CLASSIC = re.compile(r"(?:^|/)(\d{4})-(\d\d)-(\d\d)(?:/(\d\d)(?=/|$))?")
_CAPTURE = re.compile(r"(?:^|/)(\d{4})/(\d\d)/(\d\d)(?:/(\d\d)(?=/|$))?")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of the export as it was when it was listed; what is appended later waits."""

    path: str
    size_bytes: int

    @property
    def hour(self) -> datetime | None:
        """When its records were received, as far as the path tells: an hour, or a day's first."""
        return hour_of(self.path)

    @property
    def blob_date(self) -> str:
        hour = self.hour
        return UNDATED if hour is None else hour.date().isoformat()

    @property
    def splittable(self) -> bool:
        return not self.path.endswith(".gz")


@dataclass(frozen=True, slots=True)
class Chunk:
    """The lines of a file that begin at bytes ``start`` to ``end`` - 1."""

    file: SourceFile
    start: int
    end: int

    @property
    def cost_bytes(self) -> int:
        return self.end - self.start + FILE_COST_BYTES


def hour_of(path: str) -> datetime | None:
    """Of …/y=2017/m=05/d=15/h=09/…, …/2017-05-15/09/… and …/2017/05/15/09/…, in UTC."""
    for pattern in (_EXPORT, _CLASSIC, _CAPTURE):
        if match := pattern.search(path):
            year, month, day, hour = match.groups()
            try:
                return datetime(int(year), int(month), int(day), int(hour or 0), tzinfo=UTC)
            except ValueError:
                continue
    return None


def is_export(path: str) -> bool:
    """Hidden files, markers and what tools leave beside are none."""
    name = path.rsplit("/", 1)[-1]
    return name.lower().endswith(ENDINGS) and not name.startswith((".", "_"))


def chosen(files: Iterable[SourceFile], since: date | None, until: date | None) -> list[SourceFile]:
    """Files of these blob dates, both included, and all undated ones; None is no limit."""

    def fits(file: SourceFile) -> bool:
        if file.blob_date == UNDATED:
            return True
        day = date.fromisoformat(file.blob_date)
        return (since is None or day >= since) and (until is None or day <= until)

    return [file for file in files if fits(file)]


def spread(files: Sequence[SourceFile], cores: int) -> list[list[Chunk]]:
    """The work of each task: about equally many bytes, however uneven the files are.

    Huge files are cut, small ones put together: the largest piece left goes to the task that has
    least. A task keeps the order of files, so that a file's pieces stay together.
    """
    total = sum(file.size_bytes for file in files)
    share = total // max(cores * TASKS_PER_CORE, 1) + 1
    size = min(max(share, CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)
    chunks = [chunk for file in files for chunk in _cut(file, size)]
    cost = sum(chunk.cost_bytes for chunk in chunks)
    tasks: list[list[Chunk]] = [[] for _ in range(max(-(-cost // (size + FILE_COST_BYTES)), 1))]
    loads = [(0, number) for number in range(len(tasks))]
    for chunk in sorted(chunks, key=lambda chunk: -chunk.cost_bytes):
        load, number = heappop(loads)
        tasks[number].append(chunk)
        heappush(loads, (load + chunk.cost_bytes, number))
    return [
        sorted(task, key=lambda chunk: (chunk.file.path, chunk.start)) for task in tasks if task
    ]


def _cut(file: SourceFile, size: int) -> list[Chunk]:
    if not file.splittable:
        return [Chunk(file, 0, file.size_bytes)]
    pieces = max(-(-file.size_bytes // size), 1)
    ends = [file.size_bytes * piece // pieces for piece in range(pieces + 1)]
    return [Chunk(file, start, end) for start, end in pairwise(ends)]
