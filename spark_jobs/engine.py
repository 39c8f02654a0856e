"""What an engine does: files to partials of their dates, and partials to sums of event dates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from spark_jobs.read.files import SourceFile
from spark_jobs.read.sources import Source
from spark_jobs.shape import Shape
from spark_jobs.sums.sums import HourSums, Series, Sums


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

    def as_json(self) -> dict[str, Any]:
        return {
            "files": self.files,
            "size_bytes": self.size_bytes,
            "records": self.records,
            "quarantined": self.quarantined,
            "event_dates": list(self.event_dates),
        }


@dataclass(frozen=True, slots=True)
class Extracted:
    """By blob date; complaints about all of them."""

    blob_dates: Mapping[str, BlobDate]
    complaints: Sequence[Complaint] = ()


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums by event date and series, and by hour."""

    days: Mapping[tuple[str, Series], Sums] = field(default_factory=dict)
    hours: Mapping[tuple[str, Series], Sequence[HourSums]] = field(default_factory=dict)


Quarantine = Callable[[str, bytes], None]
"""Writes a file of the quarantine, by its name there."""


class Engine(Protocol):
    """Partials of one engine can be read by the same engine only."""

    @property
    def name(self) -> str: ...

    def extract(
        self,
        source: Source,
        files: Sequence[SourceFile],
        shape: Shape,
        folder: str,
        quarantine: Quarantine,
    ) -> Extracted:
        """Write the partials of these files' blob dates below ``folder``.

        What could not be read goes to ``quarantine``, as JSON lines by blob date with file and
        reason. Raises BadInput.
        """
        ...

    def total(self, partials: Mapping[str, str], event_dates: Collection[str]) -> Totals:
        """Of these event dates, from the partials of blob dates: blob date → folder.

        Copies are counted once and operations put together across all of them.
        """
        ...
