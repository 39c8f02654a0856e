"""Which files hold what: dates from their paths, and an even spread of their bytes over tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import pairwise

from shared.sampling import blob_paths

UNDATED = "undated"
"""The blob date of files whose path tells none: they are read by every run."""
ENDINGS = (".json", ".jsonl", ".blob", ".json.gz", ".jsonl.gz", ".blob.gz", ".gz")
"""Of exports: PT1H.json, and .blob of the classic one."""
CHUNK_BYTES_MAX = 128 << 20
CHUNK_BYTES_MIN = 8 << 20
FILE_COST_BYTES = 128 << 10
"""What opening a file costs, as bytes that could be read meanwhile."""
TASKS_PER_CORE = 3


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
    """See ``blob_paths.hour_of``; None also where a path names a date that no calendar has."""
    try:
        return blob_paths.hour_of(path)
    except ValueError:
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

    All files one behind the other are cut into as many equal parts as there are tasks. A file that
    cannot be cut goes where most of it would lie. Neighbours share a task, so that what a task
    reads has few dates. The longest tasks come first.
    """
    cost = sum(file.size_bytes + FILE_COST_BYTES for file in files)
    size = min(max(cost // (cores * TASKS_PER_CORE), CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)
    count = max(round(cost / size), 1)
    if count > cores:  # so that none is left to the last when all others have ended
        count += -count % cores
    tasks: list[list[Chunk]] = [[] for _ in range(count)]
    at = 0
    for file in files:
        if file.splittable:
            for number, chunk in _cut(file, at, cost, count):
                tasks[number].append(chunk)
        else:
            middle = at + (file.size_bytes + FILE_COST_BYTES) // 2
            tasks[middle * count // cost].append(Chunk(file, 0, file.size_bytes))
        at += file.size_bytes + FILE_COST_BYTES
    return sorted(filter(None, tasks), key=_cost, reverse=True)


def _cost(task: Sequence[Chunk]) -> int:
    return sum(chunk.cost_bytes for chunk in task)


def _cut(file: SourceFile, at: int, cost: int, count: int) -> Iterator[tuple[int, Chunk]]:
    """Numbers of tasks, and the pieces that they read of a file that begins ``at`` so much cost.

    What opening costs comes first. A short rest at either end goes with its neighbour.
    """
    first = at + FILE_COST_BYTES
    last = first + file.size_bytes
    edges = [
        cost * number // count for number in range(first * count // cost, last * count // cost + 1)
    ]
    cuts = [e - first for e in edges if first + FILE_COST_BYTES < e < last - FILE_COST_BYTES]
    for start, end in pairwise([0, *cuts, file.size_bytes]):
        yield min((first + (start + end) // 2) * count // cost, count - 1), Chunk(file, start, end)
