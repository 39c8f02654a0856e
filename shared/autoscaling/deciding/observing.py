"""What is known of a resource: its capacity, and what its rule may see of its samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from shared.autoscaling.desired import ActionStatus
from shared.autoscaling.learning.dead_time_and_throughput import known_service
from shared.autoscaling.measurements import CAPACITY_METRIC, NO_SAMPLES, MetricValue, Window
from shared.autoscaling.policies.history import NO_HISTORY, since
from shared.autoscaling.policies.spans import span
from shared.autoscaling.policy import Observation, Resource
from shared.autoscaling.state import ScalingState

INSTANT = timedelta(microseconds=1)


def observe(resource: Resource, state: ScalingState, capacity: int, now: datetime) -> Observation:
    """What the rule may see: samples in the window that are newer than the last change.

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
        known_service(resource.service, state.learned),
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
        found = self._cut.get(name)
        if found is None:
            start = window_start(self._resource, self._state, self._now)
            found = self._cut[name] = _from(self._histories[name], start)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._histories)

    def __len__(self) -> int:
        return len(self._histories)


def _from(window: Window, start: datetime) -> Window:
    samples = window.samples
    return window if not samples or samples[0].time >= start else Window(since(samples, start))


def samples_of(state: ScalingState, name: str) -> tuple[MetricValue, ...]:
    return state.histories.get(name, NO_HISTORY).samples


def known_capacity(state: ScalingState) -> MetricValue | None:
    """The newest word on how many instances there are: the target's own, or a confirmed change."""
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
