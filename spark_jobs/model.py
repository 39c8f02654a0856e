"""What was read: the figures of each blob date, and what could not be read, as a person is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.sampling.model import NOTICES, Reason
from shared.sampling.series import BlobDate
from spark_jobs.errors import JobError
from spark_jobs.read.files import SourceFile, bytes_by_date, files_by_hour

ROLE = "AppRoleName"
COMPLAINTS_MAX = 100


@dataclass(frozen=True, slots=True)
class Complaint:
    """The number of lines, records or files with one problem, and one of them as an example."""

    reason: str
    field: str
    count: int
    file: str
    detail: str


@dataclass(frozen=True, slots=True)
class Extracted:
    """The result of reading, by blob date, with the most frequent complaints about all lines."""

    blob_dates: Mapping[str, BlobDate]
    complaints: Sequence[Complaint] = ()


def extracted(files: Sequence[SourceFile], groups: Iterable[Any]) -> Extracted:
    """Returns the counts by blob date, including dates without lines. Raises JobError.

    A group has a number of ``lines`` that were read of a blob date and an event date; or, with a
    ``reason`` and ``field``, that were not read, and the file and detail of an ``example``.
    """
    groups, blob_dates, sizes, hours = list(groups), {}, bytes_by_date(files), files_by_hour(files)
    if unlisted := {group.blob_date for group in groups} - sizes.keys():
        raise JobError(f"records of {min(unlisted)} were read, but no file of that date was listed")
    for day, size_bytes in sizes.items():
        counts = [group for group in groups if group.blob_date == day]
        records = Counter[str]()
        for group in counts:
            records.update({group.event_date: 0 if group.reason else group.lines})
        blob_dates[day] = BlobDate(
            size_bytes,
            records=dict(+records),
            files=hours[day],
            quarantined=sum(g.lines for g in counts if g.reason and g.reason not in NOTICES),
            bad_values=sum(g.lines for g in counts if g.reason == Reason.BAD_VALUE),
            damaged=sum(g.lines for g in counts if g.reason == Reason.DAMAGED),
        )
    return Extracted(blob_dates, _complaints(group for group in groups if group.reason))


def _complaints(groups: Iterable[Any]) -> list[Complaint]:
    """Returns the complaints, the most frequent first."""
    same_reason: dict[tuple[str, str], list[Any]] = {}
    for group in groups:
        same_reason.setdefault((group.reason, group.field), []).append(group)
    complaints = [
        Complaint(*key, sum(group.lines for group in same), *min(group.example for group in same))
        for key, same in same_reason.items()
    ]
    return sorted(complaints, key=lambda c: (-c.count, c.reason, c.field))[:COMPLAINTS_MAX]


def unread_files(files: Iterable[SourceFile]) -> list[Complaint]:
    """Returns a complaint about the files that are not empty and are not read for their names."""
    unread = [file for file in files if not file.is_export and file.size_bytes]
    if not unread:
        return []
    detail = "only lines of JSON are read, in .json, .jsonl, .blob and .gz: rename or unpack them"
    return [Complaint(Reason.OTHER_NAME, "", len(unread), unread[0].path, detail)]


TOLD: Mapping[str, str] = {
    Reason.OTHER_NAME: "{n} file{s} not read because of the name, such as {place}: {detail}",
    Reason.OTHER_FORM: "{n} file{s} not read, such as {place}: {detail}",
    Reason.DAMAGED: "{n} file{s} read only in part, such as {place}: {detail}",
    Reason.OTHER_TABLE: (
        "{n} record{s} of the table {name} not read, because it has no events, such as in {place}"
    ),
    Reason.UNKNOWN_COLUMN: (
        "column {name} is not documented, so records that differ only in it count as copies; it is"
        " in {place}"
    ),
    Reason.BAD_VALUE: "{n} record{s} counted without a value {why}, such as in {place}: {detail}",
}
OF_LINES = "{n} line{s} not read {why}, such as in {place}: {detail}"


def describe(complaint: Complaint) -> str:
    """Returns one line, which begins with the number of what was not read, if it was counted."""
    n, name, detail = complaint.count, complaint.field, complaint.detail
    why = f"({complaint.reason}{f', field {name}' if name else ''})"
    told, s = TOLD.get(complaint.reason, OF_LINES), "" if n == 1 else "s"
    return told.format(n=n, s=s, name=name, why=why, place=complaint.file, detail=detail)
