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

SAMPLES_KEPT_MAX = 1000
"""Keeps a history inside one table property (32 Ki characters)."""


class Outcome(StrEnum):
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Merged:
    state: ScalingState
    outcome: Outcome


def merge(state: ScalingState, metric: Metric, now: datetime, window_seconds: float) -> Merged:
    """The state with the sample in it.

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
            Outcome.STALE,
        )
    at = bisect_left(history.samples, metric.value.time, key=_time)
    if at < len(history.samples) and history.samples[at].time == metric.value.time:
        return Merged(state, Outcome.DUPLICATE)
    samples = (*history.samples[:at], metric.value, *history.samples[at:])
    kept = _kept(metric.name, samples, start)
    return Merged(_with(state, metric.name, replace(history, samples=kept)), Outcome.ACCEPTED)


def since(samples: Sequence[MetricValue], start: datetime) -> tuple[MetricValue, ...]:
    """The samples at ``start`` or later; they must be sorted."""
    return tuple(samples[bisect_left(samples, start, key=_time) :])


def _time(sample: MetricValue) -> datetime:
    return sample.time


def _kept(name: str, samples: tuple[MetricValue, ...], start: datetime) -> tuple[MetricValue, ...]:
    if name == CAPACITY_METRIC:  # only the last one says how many instances there are
        return samples[-1:]
    return since(samples, start)[-SAMPLES_KEPT_MAX:]


def _with(state: ScalingState, name: str, history: History) -> ScalingState:
    return replace(state, histories={**state.histories, name: history})


def _check(metric: Metric, now: datetime) -> None:
    value, time = metric.value.value, metric.value.time
    if not math.isfinite(value) or value < 0:
        raise BadMessage(
            f"metric {metric.name} of {metric.resource_name}: value {value} is not a finite number "
            "of at least 0; fix the sender"
        )
    if time > now + timedelta(seconds=FUTURE_TOLERANCE_SECONDS):
        raise BadMessage(
            f"metric {metric.name} of {metric.resource_name}: time {time.isoformat()} lies more "
            f"than {FUTURE_TOLERANCE_SECONDS} s in the future (now {now.isoformat()}); "
            "fix the sender's clock"
        )
