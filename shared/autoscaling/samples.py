"""Merging samples into a history: sorted by the source's time, each time once, bounded."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache

from shared.autoscaling.errors import BadMessage
from shared.autoscaling.model import CAPACITY_METRIC, History, Metric, MetricValue, ScalingState
from shared.quick import quick

FUTURE_TOLERANCE_SECONDS = 60
"""Clocks of two services may differ by this much; a later sample is a mistake."""

SAMPLES_KEPT_MAX = 3000
"""Keeps the rows of a resource inside one transaction (4 MiB) and one round trip."""

CAPACITY_SANE_MAX = 1000
"""No target has more instances; a larger number is a mistake of the sender."""


class MergeOutcome(StrEnum):
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    STALE = "stale"


Samples = tuple[MetricValue, ...]
NO_HISTORY = History()


@quick
@dataclass(frozen=True, slots=True)
class Merged:
    state: ScalingState
    outcome: MergeOutcome


def merge(
    state: ScalingState,
    metric: Metric,
    now: datetime,
    window_seconds: float,
    history_seconds: float = 0,
) -> Merged:
    """The state with the sample in it; samples are kept for the longer of the two times.

    A sample of a time that is known already is a duplicate, one older than the window is stale:
    counted, otherwise left out. A late one is sorted in. Raises BadMessage for a value that is
    no measurement and for a time in the future.
    """
    _check(metric, now)
    value, name = metric.value, metric.name
    history = state.histories.get(name, NO_HISTORY)
    if value.time < now - _span(window_seconds):
        counted = History(history.samples, history.stale_count + 1)
        return Merged(state.with_history(name, counted), MergeOutcome.STALE)
    samples = _inserted(history.samples, value)
    if samples is None:
        return Merged(state, MergeOutcome.DUPLICATE)
    start = now - _span(max(window_seconds, history_seconds))
    kept = _changes_only(samples, start) if name == CAPACITY_METRIC else _bounded(samples, start)
    merged = state.with_history(name, History(kept, history.stale_count))
    return Merged(merged, MergeOutcome.ACCEPTED)


@lru_cache
def _span(seconds: float) -> timedelta:
    """The same few spans are asked for with every sample."""
    return timedelta(seconds=seconds)


def _inserted(samples: Samples, value: MetricValue) -> Samples | None:
    """In its place by time, commonly the last; None where that time is known already."""
    if not samples or samples[-1].time < value.time:
        return (*samples, value)
    at = bisect_left(samples, value.time, key=_time)
    if samples[at].time == value.time:
        return None
    return (*samples[:at], value, *samples[at:])


def _bounded(samples: Samples, start: datetime) -> Samples:
    kept = samples if samples[0].time >= start else since(samples, start)
    return kept if len(kept) <= SAMPLES_KEPT_MAX else kept[-SAMPLES_KEPT_MAX:]


def since(samples: Sequence[MetricValue], start: datetime) -> tuple[MetricValue, ...]:
    """The samples at ``start`` or later; they must be sorted."""
    return tuple(samples[bisect_left(samples, start, key=_time) :])


def _time(sample: MetricValue) -> datetime:
    return sample.time


def _changes_only(samples: Samples, start: datetime) -> Samples:
    """Of a run of equal values only the first and the newest, from the one before ``start`` on.

    That one stays, for it says which capacity there was at ``start``.
    """
    kept: list[MetricValue] = []
    for sample in samples:
        if len(kept) > 1 and kept[-1].value == sample.value == kept[-2].value:
            kept[-1] = sample
        else:
            kept.append(sample)
    first = 0
    while first + 1 < len(kept) and kept[first + 1].time <= start:
        first += 1
    return tuple(kept[first:][-SAMPLES_KEPT_MAX:])


def _check(metric: Metric, now: datetime) -> None:
    value, time = metric.value.value, metric.value.time
    if not math.isfinite(value) or value < 0:
        raise BadMessage(
            f"metric {metric.name} of {metric.resource_name}: value {value} is not a finite number "
            "of at least 0; fix the sender"
        )
    if metric.name == CAPACITY_METRIC and not (value % 1 == 0 and 1 <= value <= CAPACITY_SANE_MAX):
        raise BadMessage(
            f"capacity of {metric.resource_name}: {value:g} is not a whole number of 1 to "
            f"{CAPACITY_SANE_MAX} instances; fix the sender"
        )
    if time > now and time > now + _span(FUTURE_TOLERANCE_SECONDS):
        raise BadMessage(
            f"metric {metric.name} of {metric.resource_name}: time {time.isoformat()} lies more "
            f"than {FUTURE_TOLERANCE_SECONDS} s in the future (now {now.isoformat()}); "
            "fix the sender's clock"
        )
