"""The data classes of the job: shapes, sums of dates, and the results of reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from shared.sampling.estimates import Sums

ROLE = "AppRoleName"
OTHER = "(other)"
UNIX_START = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Shape:
    """The options that determine what a run computes. Results of different shapes cannot be added.
    Without a ``measurement`` each record counts 1. Dates are those of the time zone.
    """

    measurement: str = ""
    dimensions: tuple[str, ...] = ()
    time_zone: str = "UTC"


@dataclass(frozen=True, slots=True, order=True)
class Series:
    """An event, and its values for the chosen dimensions."""

    kind: str
    event: str
    dims: tuple[str, ...] = ()

    @property
    def is_combined(self) -> bool:
        """Whether it adds up series that have no place of their own."""
        return OTHER in (self.event, *self.dims)


class HourSums(NamedTuple):
    """The adjusted count of the records of one hour that have the same age.

    The hour begins ``hour`` hours after 1970 in UTC. The age is the number of days from the date of
    the records to that of their files in UTC, at most ``blocks.AGE_MAX``. It is None if it is
    unknown, as in results of earlier versions.
    """

    hour: int
    records: int
    weight_sum: float
    age: int | None = None


class DaySums(NamedTuple):
    """The sums of one series on one event date, and those of its hours and ages with records, in
    order.
    """

    sums: Sums
    hours: Sequence[HourSums] = ()


Totals = Mapping[tuple[str, Series], DaySums]
"""Sums by event date and series, in this order."""


@dataclass(frozen=True, slots=True)
class BlobDate:
    """What was read of a blob date. ``records`` counts records by event date, with copies, and
    ``files`` counts files by hour. Manifests of older versions do not have ``files``.
    """

    size_bytes: int = 0
    records: Mapping[str, int] = field(default_factory=dict)
    quarantined: int = 0
    files: Mapping[str, int] = field(default_factory=dict)
    bad_values: int = 0
    """Records without their value of the measurement, because it cannot be read."""
    damaged: int = 0
    """Files that could only be read in part."""
    unsampled: bool = False
    """Whether the ids of operations show that senders which state no sampling rate drop nothing."""

    def lacks_files_of(self, earlier: BlobDate) -> bool:
        """Whether files of any hour are gone. Without counts of files, fewer bytes are a sign."""
        if not earlier.files:
            return self.size_bytes < earlier.size_bytes
        return any(self.files.get(hour, 0) < count for hour, count in earlier.files.items())


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


def hours_until(time: datetime) -> int:
    """Returns the number of whole hours from 1970 to the time, in UTC."""
    return (time - UNIX_START) // timedelta(hours=1)
