"""What decisions saw, in short: the lowest, highest and last value of each figure. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from shared.autoscaling.deciding.decide import LogEntry
from shared.autoscaling.learning.backlogs import AGE_AT_MOST, age_minutes
from shared.values.measurements import CAPACITY_METRIC

Figures = Mapping[str, tuple[float, float, float]]
"""The lowest, highest and last value of each figure."""
AGE = "age_minutes"
RUNS_MAX = 20
"""The most stretches of a quarter of an hour. What follows is joined to the last one."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What decisions in a row saw at one capacity. ``time`` is that of the first."""

    time: datetime
    capacity: int
    desired: int | None
    metrics: Figures
    ages: Figures

    def fits(self, after: Stretch) -> bool:
        return (self.capacity, self.desired) == (after.capacity, after.desired)

    def joined(self, after: Stretch) -> Stretch:
        metrics, ages = _joined(self.metrics, after.metrics), _joined(self.ages, after.ages)
        return replace(self, metrics=metrics, ages=ages)


def stretch_of(entry: LogEntry) -> Stretch | None:
    """None if the entry has no capacity or no samples."""
    if entry.current is None or not entry.seen:
        return None
    values = {n: [s.value for s in seen] for n, seen in entry.seen.items() if n != CAPACITY_METRIC}
    metrics = {name: (min(each), max(each), each[-1]) for name, each in values.items() if each}
    found = {AGE: age_minutes(entry.evidence), AGE_AT_MOST: entry.evidence.get(AGE_AT_MOST)}
    ages = {
        name: (age, age, age)
        for name, age in found.items()
        if isinstance(age, int | float) and math.isfinite(age)
    }
    return Stretch(entry.time, entry.current, entry.desired, metrics, ages)


def course_of(entries: Iterable[LogEntry]) -> list[Stretch]:
    """A stretch for each of the entries that has one, oldest first."""
    oldest_first = sorted(entries, key=lambda entry: entry.time)
    return [stretch for entry in oldest_first if (stretch := stretch_of(entry))]


def extended(course: list[Stretch], entry: LogEntry) -> list[Stretch]:
    """The stretches of a quarter of an hour with one more decision."""
    after = stretch_of(entry)
    if after is None:
        return course
    if course and (course[-1].fits(after) or len(course) == RUNS_MAX):
        return [*course[:-1], course[-1].joined(after)]
    return [*course, after]


def _joined(before: Figures, after: Figures) -> Figures:
    both = {
        name: (min(before[name][0], low), max(before[name][1], high), last)
        for name, (low, high, last) in after.items()
        if name in before
    }
    return {**before, **after, **both}
