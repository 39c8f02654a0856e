"""Merging samples into the state: checked, put in their place, or left out as too late."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from shared.autoscaling.errors import BadMessage
from shared.autoscaling.measurements import CAPACITY_METRIC, CAPACITY_SANE_MAX, Metric
from shared.autoscaling.policies.history import NO_HISTORY, with_capacity, with_sample
from shared.autoscaling.policies.spans import span
from shared.autoscaling.state import ScalingState
from shared.quick import quick
from shared.values.untrusted import MEASURE_MAX

FUTURE_TOLERANCE_SECONDS = 60
"""Clocks of two services may differ by this much; a later sample is a mistake."""


class MergeOutcome(StrEnum):
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    STALE = "stale"


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
    both change nothing. A late one is sorted in. Raises BadMessage for a value that is no
    measurement and for a time in the future.
    """
    _check(metric, now)
    value, name = metric.value, metric.name
    if value.time < now - span(window_seconds):
        return Merged(state, MergeOutcome.STALE)
    start = now - span(history_seconds if history_seconds > window_seconds else window_seconds)
    placed = with_capacity if name == CAPACITY_METRIC else with_sample
    new = placed(state.histories.get(name, NO_HISTORY), value, start)
    if new is None:
        return Merged(state, MergeOutcome.DUPLICATE)
    return Merged(state.with_history(name, new), MergeOutcome.ACCEPTED)


def _check(metric: Metric, now: datetime) -> None:
    value, time = metric.value.value, metric.value.time
    if not 0 <= value <= MEASURE_MAX:
        raise BadMessage(
            f"metric {metric.name} of {metric.resource_name}: value {value} is not a number from 0 "
            f"to {MEASURE_MAX:g}; fix the sender"
        )
    if metric.name == CAPACITY_METRIC and not (value % 1 == 0 and 1 <= value <= CAPACITY_SANE_MAX):
        raise BadMessage(
            f"capacity of {metric.resource_name}: {value:g} is not a whole number of 1 to "
            f"{CAPACITY_SANE_MAX} instances; fix the sender"
        )
    if time > now and time > now + span(FUTURE_TOLERANCE_SECONDS):
        raise BadMessage(
            f"metric {metric.name} of {metric.resource_name}: time {time.isoformat()} lies more "
            f"than {FUTURE_TOLERANCE_SECONDS} s in the future (now {now.isoformat()}); "
            "fix the sender's clock"
        )
