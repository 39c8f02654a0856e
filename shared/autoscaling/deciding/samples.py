"""A resource's samples: merged into its state, and what its policy may see of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from shared.autoscaling.errors import BadMessage
from shared.autoscaling.learning import known_throughput
from shared.autoscaling.measurements import (
    CAPACITY_METRIC,
    CAPACITY_SANE_MAX,
    MEASURE_MAX,
    NO_SAMPLES,
    Metric,
    MetricValue,
    Samples,
    Window,
    since,
    span,
    time_of,
)
from shared.autoscaling.policy import Observation, Resource
from shared.autoscaling.state import ActionStatus, ScalingState

SAMPLES_KEPT_MAX = 3000
"""Keeps the rows of a resource inside one transaction (4 MiB) and one round trip."""

FUTURE_TOLERANCE_SECONDS = 60
"""Clocks of two services may differ by this much; a later sample is a mistake."""


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
    both change nothing. A late one is sorted in. Raises BadMessage for a value that is no
    measurement and for a time in the future.
    """
    _check(metric, now)
    value, name = metric.value, metric.name
    if value.time < now - span(window_seconds):
        return Merged(state, MergeOutcome.STALE)
    start = now - span(history_seconds if history_seconds > window_seconds else window_seconds)
    placed = with_capacity if name == CAPACITY_METRIC else with_sample
    new = placed(state.histories.get(name, NO_SAMPLES), value, start)
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


def with_sample(history: Window, value: MetricValue, start: datetime) -> Window | None:
    """From ``start`` on, with the sample; None where its time is known already."""
    samples = history.samples
    if not samples:
        return Window((value,))
    if value.time > samples[-1].time:
        return Window(_bounded((*samples, value), start))
    late = _sorted_in(samples, value)
    return None if late is None else Window(_bounded(late, start))


def with_capacity(history: Window, value: MetricValue, start: datetime) -> Window | None:
    """Of a run of equal values only the first and the newest, from the one before ``start`` on.

    That one stays, for it says which capacity there was at ``start``.
    """
    samples = history.samples
    if samples and value.time <= samples[-1].time:
        late = _sorted_in(samples, value)
        if late is None:
            return None
        return Window(_kept(_changes_only(late), start))
    goes_on = len(samples) > 1 and samples[-2].value == samples[-1].value == value.value
    changes = (*(samples[:-1] if goes_on else samples), value)
    return Window(_kept(changes, start))


def _sorted_in(samples: Samples, value: MetricValue) -> Samples | None:
    at = bisect_left(samples, value.time, key=time_of)
    if samples[at].time == value.time:
        return None
    return (*samples[:at], value, *samples[at:])


def _bounded(samples: Samples, start: datetime) -> Samples:
    first = 0
    while samples[first].time < start:  # rarely more than one is too old
        first += 1
    return samples[first:][-SAMPLES_KEPT_MAX:]


def _kept(changes: Samples, start: datetime) -> Samples:
    first, last = 0, len(changes) - 1
    while first < last and changes[first + 1].time <= start:
        first += 1
    return changes[first:][-SAMPLES_KEPT_MAX:]


def _changes_only(samples: Samples) -> Samples:
    kept: list[MetricValue] = []
    for sample in samples:
        if len(kept) > 1 and kept[-1].value == sample.value == kept[-2].value:
            kept[-1] = sample
        else:
            kept.append(sample)
    return tuple(kept)


INSTANT = timedelta(microseconds=1)


def observe(resource: Resource, state: ScalingState, capacity: int, now: datetime) -> Observation:
    """What the policy may see: samples in the window that are newer than the last change.

    Load of the time before a change must not cause another one, so it does not count any more.
    """
    known, desired = state.histories, state.desired
    histories: Mapping[str, Window] = {n: known.get(n, NO_SAMPLES) for n in resource.metrics}
    return Observation(
        resource.name,
        now,
        capacity,
        resource.limits,
        _Recent(histories, resource, state, now),
        desired.changed_at if desired else None,
        histories,
        known.get(CAPACITY_METRIC, NO_SAMPLES),
        desired if desired and desired.pending else None,
        resource.goal,
        known_throughput(resource.throughput, state.learned),
        state.profile,
    )


def window_start(resource: Resource, state: ScalingState, now: datetime) -> datetime:
    """From when on samples count."""
    start = now - span(resource.window_seconds)
    changed_at = state.desired.changed_at if state.desired else None
    if changed_at is not None and changed_at >= start:
        start = changed_at + INSTANT
    return start


class _Recent(Mapping[str, Window]):
    """Of each history what counts, cut out when somebody asks for it."""

    __slots__ = ("_cut", "_histories", "_now", "_resource", "_state")

    def __init__(
        self,
        histories: Mapping[str, Window],
        resource: Resource,
        state: ScalingState,
        now: datetime,
    ) -> None:
        self._histories = histories
        self._resource = resource
        self._state = state
        self._now = now
        self._cut: dict[str, Window] = {}

    def __getitem__(self, name: str) -> Window:
        window = self._cut.get(name)
        if window is None:
            start = window_start(self._resource, self._state, self._now)
            window = self._cut[name] = _from(self._histories[name], start)
        return window

    def __iter__(self) -> Iterator[str]:
        return iter(self._histories)

    def __len__(self) -> int:
        return len(self._histories)


def _from(window: Window, start: datetime) -> Window:
    samples = window.samples
    return window if not samples or samples[0].time >= start else Window(since(samples, start))


def samples_of(state: ScalingState, name: str) -> tuple[MetricValue, ...]:
    return state.histories.get(name, NO_SAMPLES).samples


def known_capacity(state: ScalingState) -> MetricValue | None:
    """The newest known number of instances: what the target itself says, or a confirmed change."""
    kept = samples_of(state, CAPACITY_METRIC)
    observed = kept[-1] if kept else None
    desired = state.desired
    if desired is None:
        return observed
    if desired.changed_at is None:
        return observed or MetricValue(desired.requested_at, desired.previous)
    if observed is not None and observed.time > desired.changed_at:
        return observed
    confirmed = desired.status is ActionStatus.CONFIRMED
    return MetricValue(desired.changed_at, desired.target if confirmed else desired.previous)
