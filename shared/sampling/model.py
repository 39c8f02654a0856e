"""The data classes of sampled telemetry. Times are aware and in UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple


class BadField(ValueError):
    """A field has the wrong type or value, because the schema changed or the line is damaged."""

    def __init__(self, field: str, expected: str, found: object) -> None:
        self.field = field
        super().__init__(f"{field}: expected {expected}, found {str(found)[:60]!r}")


class RecordKind(StrEnum):
    """The table of Application Insights to which a record belongs."""

    EVENT = "event"
    REQUEST = "request"
    DEPENDENCY = "dependency"
    TRACE = "trace"
    METRIC = "metric"
    """Metrics are aggregated before sampling, so they can serve as a control series."""


class Weight(NamedTuple):
    """The number of sent records that one kept record represents; at least 1, possibly
    fractional."""

    value: float
    trusted: bool = True
    """False if the sender may drop records without stating a rate, or if the item count and the
    rate differ by more than rounding."""
    exact: bool = False
    """False if the weight may be a whole number that stands for another one."""


class Sender(NamedTuple):
    """What sent a record; empty where it is unknown. The names are those of columns."""

    AppRoleInstance: str = ""
    SDKVersion: str = ""
    AppVersion: str = ""


UNKNOWN_SENDER = Sender()


@dataclass(frozen=True, slots=True)
class Record:
    """One telemetry record, independent of the format of its export.

    ``key`` is equal for copies of a record, because exports repeat records without unique IDs.
    """

    kind: RecordKind
    time: datetime
    name: str
    weight: Weight
    key: str
    operation_id: str
    """Empty if the record belongs to no operation."""
    measurements: Mapping[str, float]
    """Custom measurements, and DurationMs of requests and dependencies."""
    properties: Mapping[str, str]
    role_name: str = ""
    sender: Sender = UNKNOWN_SENDER
    item_count: float = 1.0
    """As stated, or 1; the weight may follow the sampling rate instead."""
    unreadable: Mapping[str | None, BadField] = field(default_factory=dict)
    """The measurements whose values cannot be read. None stands for all of them."""

    def error_of(self, measurement: str) -> BadField | None:
        """The reason why a measurement of this record cannot be read; None if it is missing."""
        every = None if measurement in self.measurements else self.unreadable.get(None)
        return self.unreadable.get(measurement, every)


class Reason(StrEnum):
    """The reason why a line, a record or a file was not read, or not as a whole."""

    NOT_JSON = "not_json"  # for example the last line of a blob that is still being written
    NOT_TEXT = "not_text"
    OTHER_PRODUCT = "other_product"
    BAD_FIELD = "bad_field"
    OTHER_FORM = "other_form"  # the file has no lines of JSON
    OTHER_NAME = "other_name"  # of a file that was not opened
    DAMAGED = "damaged"  # the rest of a compressed file
    OTHER_TABLE = "other_table"  # a table without events, such as AppPageViews
    UNKNOWN_COLUMN = "unknown_column"  # the record counts; the column is not part of its key
    BAD_VALUE = "bad_value"  # the record counts, without the value of the measurement
    OPERATIONS = "operations"  # nothing is wrong: a sample of the operations that were read


WITHOUT_LINE = frozenset({Reason.OTHER_TABLE, Reason.UNKNOWN_COLUMN, Reason.OPERATIONS})
"""The reasons that are only told: no line is written to quarantine."""
NOTICES = WITHOUT_LINE | {Reason.BAD_VALUE}
"""The reasons for which nothing counts as quarantined."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A line, or a record in a line, that could not be read. It is counted and never dropped.
    ``text`` is the beginning of the line. ``field`` names the wrong column, if there is one.
    """

    reason: Reason
    detail: str
    text: str
    field: str = ""


@dataclass(frozen=True, slots=True)
class Ignored:
    """A record of a table that is not evaluated, such as AppExceptions. This is not an error."""

    table: str


Outcome = Record | Quarantined | Ignored
