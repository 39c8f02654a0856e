"""The data classes of sampled telemetry. Times are aware and in UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class RecordKind(StrEnum):
    """The table of Application Insights to which a record belongs."""

    EVENT = "event"
    REQUEST = "request"
    DEPENDENCY = "dependency"
    TRACE = "trace"
    METRIC = "metric"
    """Metrics are aggregated before sampling, so they can serve as a control series."""


class WeightSource(StrEnum):
    """The source of a record's weight, which determines whether the weight can be trusted."""

    ITEM_COUNT = "item_count"
    SAMPLE_RATE = "sample_rate"  # consistent with the item count, but not rounded
    ASSUMED = "assumed"  # the record has neither, so the weight is 1
    CONFLICT = "conflict"  # the two differ by more than rounding, so the larger one is used
    UNSTATED = "unstated"  # the sender may drop records without stating a rate


TRUSTED = frozenset({WeightSource.ITEM_COUNT, WeightSource.SAMPLE_RATE, WeightSource.ASSUMED})


@dataclass(frozen=True, slots=True)
class Weight:
    """The number of sent records that one kept record represents; at least 1, possibly
    fractional."""

    value: float
    source: WeightSource

    @property
    def trusted(self) -> bool:
        return self.source in TRUSTED

    @property
    def exact(self) -> bool:
        """False if the weight may be a whole number that stands for another one."""
        return self.source is WeightSource.SAMPLE_RATE


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


class Reason(StrEnum):
    """The reason why a line, a record or a file was not read."""

    NOT_JSON = "not_json"  # for example the last line of a blob that is still being written
    NOT_TEXT = "not_text"
    OTHER_PRODUCT = "other_product"
    BAD_FIELD = "bad_field"
    OTHER_FORM = "other_form"  # the file has no lines of JSON
    OTHER_NAME = "other_name"  # of a file that was not opened
    OTHER_TABLE = "other_table"  # a table without events, such as AppPageViews


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A line, or a record in a line, that could not be read. It is counted and never dropped.
    ``text`` is the beginning of the line. ``field`` names the wrong column, if there is one.
    """

    source: str
    line_number: int
    reason: Reason
    detail: str
    text: str
    field: str = ""


@dataclass(frozen=True, slots=True)
class Ignored:
    """A record of a table that is not evaluated, such as AppExceptions. This is not an error."""

    table: str


Outcome = Record | Quarantined | Ignored
