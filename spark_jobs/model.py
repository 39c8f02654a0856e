"""The data classes of the job: the results of reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shared.sampling.series import BlobDate

ROLE = "AppRoleName"


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
