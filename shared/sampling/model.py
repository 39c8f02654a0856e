"""The nouns of sampled telemetry: frozen values, aware UTC times, units in the names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class RecordKind(StrEnum):
    """Which table of Application Insights a record belongs to."""

    EVENT = "event"
    REQUEST = "request"
    DEPENDENCY = "dependency"
    TRACE = "trace"
    METRIC = "metric"
    """Aggregated before sampling: its weight is what it stands for, so it is a control."""


class WeightSource(StrEnum):
    """Where a record's weight comes from, and so how far it can be trusted."""

    ITEM_COUNT = "item_count"
    SAMPLE_RATE = "sample_rate"  # says the same as the item count, without its rounding
    ASSUMED = "assumed"  # neither was there: 1
    CONFLICT = "conflict"  # the two disagree by more than rounding: the larger one
    UNSTATED = "unstated"  # written by an OpenTelemetry exporter that may drop and not say so
    IMPLAUSIBLE = "implausible"  # larger than any SDK's lowest sampling rate explains


TRUSTED = frozenset({WeightSource.ITEM_COUNT, WeightSource.SAMPLE_RATE, WeightSource.ASSUMED})


@dataclass(frozen=True, slots=True)
class Weight:
    """How many records one kept record stands for: at least 1, and not always whole."""

    value: float
    source: WeightSource

    @property
    def trusted(self) -> bool:
        return self.source in TRUSTED


@dataclass(frozen=True, slots=True)
class Record:
    """One telemetry record, the same whichever way it was exported.

    ``key`` is equal for two copies of the same record: exports repeat records, and number none.
    """

    kind: RecordKind
    time: datetime
    name: str
    weight: Weight
    key: str
    operation_id: str
    """Empty where the record belongs to no operation."""
    measurements: Mapping[str, float]
    """Custom ones, and DurationMs of requests and dependencies."""
    properties: Mapping[str, str]
    role_name: str = ""


class Reason(StrEnum):
    """Why a line could not be read."""

    NOT_JSON = "not_json"  # cut in the middle, as the end of a blob that is appended to
    NOT_TEXT = "not_text"
    OTHER_PRODUCT = "other_product"
    BAD_FIELD = "bad_field"


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A line, or a record of one, that could not be read; kept, counted and never dropped.

    ``text`` is its beginning; ``field`` names the column where one is to blame.
    """

    source: str
    line_number: int
    reason: Reason
    detail: str
    text: str
    field: str = ""


@dataclass(frozen=True, slots=True)
class Ignored:
    """A record of a table that holds no event, such as AppMetrics: no fault, and not counted."""

    table: str


Outcome = Record | Quarantined | Ignored
