"""A line as one or more flat rows: what trends need of a record, or why it could not be read.

The reference for every engine: it reads with ``shared.sampling`` and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from shared.sampling.model import Ignored, Quarantined, Record
from shared.sampling.records import read_line
from spark_jobs.read.files import SourceFile
from spark_jobs.shape import ROLE, Shape

LATE_AFTER = timedelta(hours=1)
"""A record is late if it is older than this at the beginning of the hour that it is filed under."""
UNIX_START = datetime(1970, 1, 1, tzinfo=UTC)

SCHEMA = (
    "blob_date string, event_date string, hour long, kind string, name string,"
    " dims array<string>, key string, op string, k double, trusted boolean, late boolean,"
    " x double, file string, reason string, field string, detail string, text string"
)
COLUMNS = tuple(part.split()[0] for part in SCHEMA.split(","))


@dataclass(frozen=True, slots=True)
class Row:
    """``hour`` is counted from 1970 in UTC; ``x`` is None where the measurement is missing."""

    blob_date: str
    event_date: str | None = None
    hour: int | None = None
    kind: str | None = None
    name: str | None = None
    dims: list[str] | None = None
    key: str | None = None
    op: str | None = None
    k: float | None = None
    trusted: bool | None = None
    late: bool | None = None
    x: float | None = None
    file: str | None = None
    reason: str | None = None
    field: str | None = None
    detail: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where lines come from: the file, and what its path tells."""

    path: str
    blob_date: str
    hour: datetime | None

    @classmethod
    def of(cls, file: SourceFile) -> Place:
        return cls(file.path, file.blob_date, file.hour)


class Reader:
    """Reads lines into rows of one shape."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._zone = ZoneInfo(shape.time_zone)

    def rows(self, line: bytes | str, place: Place) -> Iterator[Row]:
        for outcome in read_line(line, place.path):
            if isinstance(outcome, Quarantined):
                yield quarantine_row(outcome, place)
            elif not isinstance(outcome, Ignored):
                yield self.row(outcome, place)

    def date_of(self, time: datetime) -> str:
        return time.astimezone(self._zone).date().isoformat()

    def row(self, record: Record, place: Place) -> Row:
        measurement = self._shape.measurement
        return Row(
            blob_date=place.blob_date,
            event_date=self.date_of(record.time),
            hour=hours_until(record.time),
            kind=str(record.kind),
            name=sendable(record.name),
            dims=[sendable(_dimension(record, name)) for name in self._shape.dimensions],
            key=record.key,
            op=sendable(record.operation_id),
            k=record.weight.value,
            trusted=record.weight.trusted,
            late=place.hour is not None and record.time < place.hour - LATE_AFTER,
            x=record.measurements.get(measurement) if measurement else 1.0,
        )


def hours_until(time: datetime) -> int:
    """Since 1970 in UTC."""
    return (time - UNIX_START) // timedelta(hours=1)


def _dimension(record: Record, name: str) -> str:
    return record.role_name if name == ROLE else record.properties.get(name, "")


def quarantine_row(found: Quarantined, place: Place) -> Row:
    return Row(
        blob_date=place.blob_date,
        file=place.path,
        reason=str(found.reason),
        field=found.field,
        detail=sendable(found.detail),
        text=sendable(found.text),
    )


def sendable(text: str) -> str:
    """Lone surrogates have no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def columns(rows: list[Row]) -> dict[str, list[Any]]:
    return {name: [getattr(row, name) for row in rows] for name in COLUMNS}
