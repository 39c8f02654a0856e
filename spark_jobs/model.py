"""The data classes of the job: shapes, sums of dates, and the results of reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from shared.sampling.estimates import Sums

ROLE = "AppRoleName"
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


class HourSums(NamedTuple):
    """The adjusted count of one hour, which begins ``hour`` hours after 1970 in UTC."""

    hour: int
    records: int
    weight_sum: float


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums by event date and series, and by hour, ordered by date and series."""

    days: Mapping[tuple[str, Series], Sums] = field(default_factory=dict)
    hours: Mapping[tuple[str, Series], Sequence[HourSums]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BlobDate:
    """The result of reading the files of one blob date. ``records`` includes duplicates."""

    size_bytes: int = 0
    records: int = 0
    quarantined: int = 0
    event_dates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Complaint:
    """The number of lines that were quarantined for one reason, and one of them as an example."""

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
