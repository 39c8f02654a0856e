"""What a run read of each blob date, and what it could not read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_jobs.errors import JobError
from spark_jobs.read.files import SourceFile

COMPLAINTS_MAX = 100


@dataclass(frozen=True, slots=True)
class Complaint:
    """How often lines were quarantined for one reason, and where for instance."""

    reason: str
    field: str
    count: int
    file: str
    detail: str


@dataclass(frozen=True, slots=True)
class BlobDate:
    """What a run read of one blob date."""

    files: int = 0
    size_bytes: int = 0
    records: int = 0
    """With duplicates."""
    quarantined: int = 0
    event_dates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Extracted:
    """By blob date; complaints about all of them."""

    blob_dates: Mapping[str, BlobDate]
    complaints: Sequence[Complaint] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Records of an event date, or lines that could not be read for one reason.

    ``file`` and ``detail`` are of one line of many; the same one whatever the order.
    """

    blob_date: str
    event_date: str | None
    reason: str | None
    field: str | None
    count: int
    file: str | None
    detail: str | None


def extracted(files: Sequence[SourceFile], groups: Sequence[Group]) -> Extracted:
    """Also of dates whose files held no line. Raises JobError."""
    by_date: dict[str, list[SourceFile]] = {}
    for file in files:
        by_date.setdefault(file.blob_date, []).append(file)
    if strangers := {group.blob_date for group in groups} - set(by_date):
        raise JobError(f"records of {min(strangers)} came, and no file of that date was listed")
    blob_dates = {
        day: _blob_date(found, [group for group in groups if group.blob_date == day])
        for day, found in by_date.items()
    }
    return Extracted(blob_dates, _complaints(group for group in groups if group.reason))


def _blob_date(files: Sequence[SourceFile], groups: Sequence[Group]) -> BlobDate:
    return BlobDate(
        files=len(files),
        size_bytes=sum(file.size_bytes for file in files),
        records=sum(group.count for group in groups if not group.reason),
        quarantined=sum(group.count for group in groups if group.reason),
        event_dates=tuple(sorted({group.event_date for group in groups if group.event_date})),
    )


def _complaints(groups: Iterable[Group]) -> list[Complaint]:
    """The most frequent first."""
    alike: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        alike.setdefault((group.reason or "", group.field or ""), []).append(group)
    complaints = [
        Complaint(*key, sum(group.count for group in found), *min(map(_example, found)))
        for key, found in alike.items()
    ]
    order = sorted(complaints, key=lambda each: (-each.count, each.reason, each.field))
    return order[:COMPLAINTS_MAX]


def _example(group: Group) -> tuple[str, str]:
    return group.file or "", group.detail or ""
