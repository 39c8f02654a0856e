"""What was measured: samples, windows of them, and the usual week.

Times are aware UTC datetimes; units stand at the end of names.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any

CAPACITY_METRIC = "capacity"
"""Reserved metric name: the capacity that the target itself reports."""


CAPACITY_SANE_MAX = 1000
"""No target has more instances; a larger number is a mistake of the sender."""

MEASURE_MAX = 1e15
"""Of a metric's value. Up to here floats tell whole numbers apart and sums of squares are finite;
whatever is larger is a mistake of the sender."""


EvidenceValue = float | int | str | bool | None


Evidence = Mapping[str, EvidenceValue]


NOTHING: Mapping[str, Any] = MappingProxyType({})


time_of = attrgetter("time")


@dataclass(frozen=True, slots=True)
class MetricValue:
    """One sample: what a source answered, at the time of the source's own clock."""

    time: datetime
    value: float


Samples = tuple[MetricValue, ...]
"""Sorted by time, each time once."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One sample of one named metric, addressed to the resource whose rules want it."""

    resource_name: str
    name: str
    value: MetricValue


@dataclass(frozen=True, slots=True)
class WeekProfile:
    """The load to expect: items per minute for each hour of the week, Monday 0:00 first.

    Hours are those of ``time_zone``; one that no week supports is None. Written by the nightly job,
    read by SeasonalFloor.
    """

    items_per_minute: tuple[float | None, ...]
    time_zone: str = "UTC"
    weeks: tuple[int, ...] = ()
    """How many weeks support each hour; empty where that is not told."""
    absent: str = ""
    """Why there is no profile, in place of the hours."""


@dataclass(frozen=True, slots=True)
class Window:
    """The samples of one metric that count, oldest first."""

    samples: tuple[MetricValue, ...] = ()

    @property
    def count(self) -> int:
        return len(self.samples)

    @property
    def latest(self) -> MetricValue | None:
        return self.samples[-1] if self.samples else None

    @property
    def mean(self) -> float | None:
        """None without samples: a missing value is never zero."""
        return sum([s.value for s in self.samples]) / self.count if self.samples else None

    @property
    def maximum(self) -> float | None:
        return max([s.value for s in self.samples]) if self.samples else None


NO_SAMPLES = Window()


def since(samples: Samples, start: datetime) -> Samples:
    """The samples at ``start`` or later; they must be sorted."""
    return samples[bisect_left(samples, start, key=time_of) :]


def until(samples: Samples, end: datetime) -> Samples:
    """The samples at ``end`` or earlier; they must be sorted."""
    return samples[: bisect_right(samples, end, key=time_of)]


@lru_cache
def span(seconds: float) -> timedelta:
    """The same few are asked for with every sample."""
    return timedelta(seconds=seconds)
