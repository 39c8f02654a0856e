"""Files of an export: their dates, as given by their paths, and their distribution over tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from shared.sampling.blob_paths import hour_if_valid
from shared.sampling.series import UNDATED

ENDINGS = (".json", ".jsonl", ".blob", ".json.gz", ".jsonl.gz", ".blob.gz", ".gz")
"""The endings of export files: PT1H.json of diagnostic settings, .blob of the classic export, and
compressed files.
"""
CHUNK_BYTES = 64 << 20
"""What a task reads: so much that its start does not matter, and so little that all cores of a
cluster have work, whatever their number.
"""
FILE_COST_BYTES = 128 << 10
"""Opening a file takes as long as reading this many bytes."""


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
        return hour_if_valid(self.path, self.below)

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


def spread(files: Sequence[SourceFile]) -> list[list[Chunk]]:
    """Returns the chunks of each task, the largest task first.

    Files are cut into chunks of ``CHUNK_BYTES``, except compressed ones. Neighboring chunks share a
    task of up to this size, so a task reads few dates.
    """
    tasks: list[list[Chunk]] = []
    left_bytes = 0
    for file in files:
        step = CHUNK_BYTES if file.splittable else max(file.size_bytes, 1)
        for start in range(0, max(file.size_bytes, 1), step):
            chunk = Chunk(file, start, min(start + step, file.size_bytes))
            if chunk.cost_bytes > left_bytes:
                tasks.append([])
                left_bytes = CHUNK_BYTES
            tasks[-1].append(chunk)
            left_bytes -= chunk.cost_bytes
    return sorted(tasks, key=lambda task: -sum(chunk.cost_bytes for chunk in task))
