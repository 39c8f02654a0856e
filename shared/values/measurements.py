"""Measured values: samples, windows of samples, and the week profile of the expected load.

Times are aware UTC datetimes. Names end in their unit.
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
"""The reserved name of the metric that holds the capacity reported by the target."""

CAPACITY_SANE_MAX = 1000
"""The highest plausible capacity. A higher number is an error of the sender."""

MEASURE_MAX = 1e15
"""The highest value of a metric. Floats represent each whole number up to it exactly, and sums of
squares stay finite."""

HISTORY_SECONDS_MAX = 14_400
"""Four hours, for whose samples, one every 15 s, the rows of a resource have room."""

EvidenceValue = float | int | str | bool | None

Evidence = Mapping[str, EvidenceValue]

OF_TOPIC = "topic "
"""Begins the status of a subscription that delivers nothing because of its topic."""
_OWN = ("Disabled", "ReceiveDisabled", "Creating", "Deleting", "Renaming", "Restoring")
DISABLED = (*_OWN, *(OF_TOPIC + each for each in _OWN))
"""The statuses of Service Bus entities from which nothing can be received. With ``SendDisabled``
and ``Unknown`` that is possible."""

NOTHING: Mapping[str, Any] = MappingProxyType({})

time_of = attrgetter("time")
status_of = attrgetter("status")


@dataclass(frozen=True, slots=True)
class MetricValue:
    """One sample: the value that a source returned, and the time by the source's own clock."""

    time: datetime
    value: float
    status: str = ""
    """One of ``DISABLED`` if nothing could be received from a Service Bus entity at that time."""


Samples = tuple[MetricValue, ...]
"""Sorted by time; no two samples have the same time."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One sample of one metric of one resource."""

    resource_name: str
    name: str
    value: MetricValue


HOURS_OF_A_WEEK = 168


@dataclass(frozen=True, slots=True)
class WeekProfile:
    """The expected load in items per minute, for each hour of the week from Monday 0:00 on, in
    ``time_zone``; None for an hour without data."""

    items_per_minute: tuple[float | None, ...]
    time_zone: str = "UTC"
    weeks: tuple[int, ...] = ()
    """The number of weeks with data for each hour; empty if unknown."""
    absent: str = ""
    """Why there is no profile. ``items_per_minute`` is then empty."""


@dataclass(frozen=True, slots=True)
class Window:
    """Samples of one metric, oldest first."""

    samples: tuple[MetricValue, ...] = ()

    @property
    def count(self) -> int:
        return len(self.samples)

    @property
    def latest(self) -> MetricValue | None:
        return self.samples[-1] if self.samples else None

    @property
    def mean(self) -> float | None:
        """The mean value; None without samples."""
        samples = self.samples
        return sum([s.value for s in samples]) / len(samples) if samples else None

    @property
    def maximum(self) -> float | None:
        """The highest value; None without samples."""
        return max([s.value for s in self.samples]) if self.samples else None


NO_SAMPLES = Window()


def since(samples: Samples, start: datetime) -> Samples:
    """The samples at ``start`` or later. The samples must be sorted."""
    return samples[bisect_left(samples, start, key=time_of) :]


def until(samples: Samples, end: datetime) -> Samples:
    """The samples at ``end`` or earlier. The samples must be sorted."""
    return samples[: bisect_right(samples, end, key=time_of)]


def received(samples: Samples) -> Samples:
    """The samples since the entity was last disabled; none while it is disabled."""
    if not any(map(status_of, samples)):
        return samples
    disabled = [at for at, each in enumerate(samples) if each.status]
    return samples[disabled[-1] + 1 :]


@lru_cache
def span(seconds: float) -> timedelta:
    """A timedelta of that many seconds, cached because each sample needs the same few."""
    return timedelta(seconds=seconds)
