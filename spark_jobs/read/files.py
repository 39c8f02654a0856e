"""Files of an export: their dates, as given by their paths, and their even distribution over
tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import pairwise

from shared.sampling import blob_paths
from shared.sampling.series import UNDATED

ENDINGS = (".json", ".jsonl", ".blob", ".json.gz", ".jsonl.gz", ".blob.gz", ".gz")
"""The endings of export files: PT1H.json of diagnostic settings, .blob of the classic export, and
compressed files.
"""
CHUNK_BYTES_MAX = 128 << 20
CHUNK_BYTES_MIN = 8 << 20
FILE_COST_BYTES = 128 << 10
"""Opening a file takes as long as reading this many bytes."""
TASKS_PER_CORE = 3


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of the export as listed; bytes that are appended later are left to the next run."""

    path: str
    size_bytes: int
    below: int = 0
    """The length of the part of the path that is ``--input``. No date in it counts."""

    @property
    def hour(self) -> datetime | None:
        """When the file's records were received, according to its path: an hour, or the first hour
        of a day. None if the path has no date or names a date that does not exist.
        """
        try:
            return blob_paths.hour_of(self.path, self.below)
        except ValueError:
            return None

    @property
    def received(self) -> date | None:
        """The UTC date in the path."""
        return self.hour and self.hour.date()

    @property
    def blob_date(self) -> str:
        return str(self.received or UNDATED)

    @property
    def splittable(self) -> bool:
        return not self.path.lower().endswith(".gz")

    @property
    def is_export(self) -> bool:
        """False for hidden files, markers such as _SUCCESS, and other endings. A file that is
        itself the ``--input`` is read, whatever its name.
        """
        name = self.path.rsplit("/", 1)[-1]
        named = name.lower().endswith(ENDINGS) and not name.startswith((".", "_"))
        return named or self.below == len(self.path)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The lines of a file that begin at byte ``start`` or later and before byte ``end``."""

    file: SourceFile
    start: int
    end: int

    @property
    def cost_bytes(self) -> int:
        return self.end - self.start + FILE_COST_BYTES


def chosen(files: Iterable[SourceFile], since: date | None, until: date | None) -> list[SourceFile]:
    """Returns the files of the blob dates from ``since`` to ``until``, and all files without a
    date. None sets no limit.
    """
    first, last = str(since or ""), str(until or UNDATED)  # UNDATED sorts after any date
    return [file for file in files if file.blob_date == UNDATED or first <= file.blob_date <= last]


def files_by_hour(files: Iterable[SourceFile]) -> Mapping[str, Mapping[str, int]]:
    """Returns the number of files of each blob date and hour. A file that was compressed keeps its
    place: PT1H.json and PT1H.json.gz in one folder count once. Empty files do not count.
    """
    names: dict[str, dict[str, set[str]]] = {}
    for file in files:
        name = file.path.lower().removesuffix(".gz")
        stem = name.removesuffix(next(filter(name.endswith, ENDINGS), ""))
        hour = f"{file.hour:%H}" if file.hour else ""
        of_date = names.setdefault(file.blob_date, {})
        if file.size_bytes:
            of_date.setdefault(hour, set()).add(stem)
    return {day: {hour: len(of) for hour, of in hours.items()} for day, hours in names.items()}


def bytes_by_date(files: Iterable[SourceFile]) -> Counter[str]:
    """Returns the size of the files of each blob date."""
    sizes = Counter[str]()
    for file in files:
        sizes[file.blob_date] += file.size_bytes
    return sizes


def spread(files: Sequence[SourceFile], cores: int) -> list[list[Chunk]]:
    """Returns the chunks of each task. All tasks have about the same number of bytes.

    1. All files together, in their order, are divided into equal parts, one for each task.
    2. A file is cut at the borders of these parts. It is not cut near its own start or end, where
       the remainder would be tiny. A compressed file cannot be cut.
    3. Each chunk belongs to the part in which its middle lies. So neighboring chunks share a task,
       and a task reads few dates. The tasks are returned in order of size, the largest first.
    """
    cost = sum(file.size_bytes + FILE_COST_BYTES for file in files)
    size = min(max(cost // (cores * TASKS_PER_CORE), CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)
    count = max(round(cost / size), 1)
    if count > cores:  # in the last round, too, all cores have work
        count += -count % cores
    tasks: list[list[Chunk]] = [[] for _ in range(count)]
    begin = 0
    for file in files:
        begin += FILE_COST_BYTES
        end = begin + file.size_bytes
        parts = range(begin * count // cost, end * count // cost + 1) if file.splittable else ()
        edges = [cost * part // count - begin for part in parts]
        cuts = [e for e in edges if FILE_COST_BYTES < e < file.size_bytes - FILE_COST_BYTES]
        for start, stop in pairwise([0, *cuts, file.size_bytes]):
            part = (begin + (start + stop) // 2) * count // cost
            tasks[min(part, count - 1)].append(Chunk(file, start, stop))
        begin = end
    return sorted(filter(None, tasks), key=lambda task: -sum(chunk.cost_bytes for chunk in task))
