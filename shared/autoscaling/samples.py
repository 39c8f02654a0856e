"""Merging samples into a history: sorted by the source's time, each time once, bounded."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from shared.autoscaling.errors import BadMessage
from shared.autoscaling.model import CAPACITY_METRIC, History, Metric, MetricValue, ScalingState

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
    history = state.histories.get(metric.name, History())
    start = now - timedelta(seconds=window_seconds)
    if metric.value.time < start:
        return Merged(
            _with(state, metric.name, replace(history, stale_count=history.stale_count + 1)),
            MergeOutcome.STALE,
        )
    at = bisect_left(history.samples, metric.value.time, key=_time)
    if at < len(history.samples) and history.samples[at].time == metric.value.time:
        return Merged(state, MergeOutcome.DUPLICATE)
    samples = (*history.samples[:at], metric.value, *history.samples[at:])
    kept_from = min(start, now - timedelta(seconds=history_seconds))
    kept = since(samples, kept_from)[-SAMPLES_KEPT_MAX:]
    if metric.name == CAPACITY_METRIC:
        kept = _changes_only(samples, kept_from)
    return Merged(_with(state, metric.name, replace(history, samples=kept)), MergeOutcome.ACCEPTED)


def since(samples: Sequence[MetricValue], start: datetime) -> tuple[MetricValue, ...]:
    """The samples at ``start`` or later; they must be sorted."""
    return tuple(samples[bisect_left(samples, start, key=_time) :])


def _time(sample: MetricValue) -> datetime:
    return sample.time


def _changes_only(samples: tuple[MetricValue, ...], start: datetime) -> tuple[MetricValue, ...]:
    """The last sample before ``start`` on; of a run of equal values only the first and the newest.

    One from before ``start`` stays, for it says which capacity there was then.
    """
    kept: list[MetricValue] = []
    for sample in samples:
        if len(kept) > 1 and kept[-1].value == kept[-2].value == sample.value:
            kept.pop()
        kept.append(sample)
    first = max(bisect_left(kept, start, key=_time) - 1, 0)
    return tuple(kept[first:][-SAMPLES_KEPT_MAX:])


def _with(state: ScalingState, name: str, history: History) -> ScalingState:
    return replace(state, histories={**state.histories, name: history})


def _check(metric: Metric, now: datetime) -> None:
    value, time = metric.value.value, metric.value.time
    if not math.isfinite(value) or value < 0:
        raise BadMessage(
            f"metric {metric.name} of {metric.resource_name}: value {value} is not a finite number "
            "of at least 0; fix the sender"
        )
    whole = value % 1 == 0 and 1 <= value <= CAPACITY_SANE_MAX
    if metric.name == CAPACITY_METRIC and not whole:
        raise BadMessage(
            f"capacity of {metric.resource_name}: {value:g} is not a whole number of 1 to "
            f"{CAPACITY_SANE_MAX} instances; fix the sender"
        )
    if time > now + timedelta(seconds=FUTURE_TOLERANCE_SECONDS):
        raise BadMessage(
            f"metric {metric.name} of {metric.resource_name}: time {time.isoformat()} lies more "
            f"than {FUTURE_TOLERANCE_SECONDS} s in the future (now {now.isoformat()}); "
            "fix the sender's clock"
        )
