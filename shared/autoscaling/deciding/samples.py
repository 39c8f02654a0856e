"""Merges samples into the state of a resource, and selects the samples that its policy sees."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shared.autoscaling.errors import BadMessage
from shared.autoscaling.learning.counts import ABANDONED
from shared.autoscaling.learning.throughput import (
    known_throughput,
    rate_estimate,
    started,
    starting_minutes,
)
from shared.autoscaling.policy import Observation, Resource
from shared.autoscaling.sources import Source
from shared.autoscaling.state import ScalingState
from shared.values.measurements import (
    CAPACITY_METRIC,
    CAPACITY_SANE_MAX,
    HISTORY_SECONDS_MAX,
    MEASURE_MAX,
    NO_SAMPLES,
    Metric,
    MetricValue,
    Samples,
    Window,
    received,
    since,
    span,
    time_of,
)

SAMPLES_KEPT_MAX = 3000
"""The most samples of one metric: so all rows of a resource fit into one transaction (4 MiB)."""

FUTURE_TOLERANCE_SECONDS = 60
"""The clocks of two services may differ. A sample further in the future is a sender's error."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The state after the samples of a message, and what became of each sample. A duplicate has the
    time of a known one, and a stale one is too old. Refused ones are invalid."""

    state: ScalingState
    accepted: tuple[Metric, ...]
    duplicates: int
    stale: tuple[Metric, ...]
    refused: tuple[tuple[Metric, BadMessage], ...]


def merge(
    resource: Resource,
    state: ScalingState,
    metrics: Iterable[Metric],
    now: datetime,
    *,
    decides: bool = True,
) -> Merged:
    """Add the samples to the state, each in order of time. Only an accepted one changes it. At most
    SAMPLES_KEPT_MAX samples of a metric are kept. A copy of the app that does not decide keeps them
    as long as any rules may need them."""
    histories, duplicates = dict(state.histories), 0
    accepted, stale, refused = list[Metric](), list[Metric](), list[tuple[Metric, BadMessage]]()
    for metric in metrics:
        name, value = metric.name, metric.value
        if wrong := _problem(metric, now):
            refused.append((metric, BadMessage(wrong)))
            continue
        age_max, kept_max = kept_seconds(resource, name) if decides else (HISTORY_SECONDS_MAX,) * 2
        if value.time < now - span(age_max):
            stale.append(metric)
            continue
        samples = _sorted_in(histories.get(name, NO_SAMPLES).samples, value)
        if samples is None:
            duplicates += 1
            continue
        kept_since = _changes_since if name == CAPACITY_METRIC else since
        kept = kept_since(samples, now - span(kept_max))
        histories[name] = Window(kept[-SAMPLES_KEPT_MAX:])
        accepted.append(metric)
    new = replace(state, histories=histories) if accepted else state
    return Merged(new, tuple(accepted), duplicates, tuple(stale), tuple(refused))


def _problem(metric: Metric, now: datetime) -> str:
    """Why the sample is invalid; empty if it is valid."""
    value, time = metric.value.value, metric.value.time
    if not 0 <= value <= MEASURE_MAX:
        return (
            f"metric {metric.name} of {metric.resource_name}: value {value} is not a number from 0 "
            f"to {MEASURE_MAX:g}; correct the sender"
        )
    if metric.name == CAPACITY_METRIC and not (value % 1 == 0 and 1 <= value <= CAPACITY_SANE_MAX):
        return (
            f"capacity of {metric.resource_name}: {value:g} is not a whole number of 1 to "
            f"{CAPACITY_SANE_MAX} instances; correct the sender"
        )
    if time > now + span(FUTURE_TOLERANCE_SECONDS):
        return (
            f"metric {metric.name} of {metric.resource_name}: time {time.isoformat()} lies more "
            f"than {FUTURE_TOLERANCE_SECONDS} s in the future (now {now.isoformat()}); "
            "correct the sender's clock"
        )
    return ""


def _sorted_in(samples: Samples, value: MetricValue) -> Samples | None:
    """The samples with ``value``; None if its time is already present."""
    if not samples or value.time > samples[-1].time:
        return (*samples, value)
    at = bisect_left(samples, value.time, key=time_of)
    if samples[at].time == value.time:
        return None
    return (*samples[:at], value, *samples[at:])


def _changes_since(samples: Samples, start: datetime) -> Samples:
    """The first and the last of each run of equal capacities, from the newest one before ``start``
    on, which states the capacity at that time."""
    kept: list[MetricValue] = []
    for sample in samples:
        if len(kept) > 1 and kept[-1].value == sample.value == kept[-2].value:
            kept[-1] = sample
        else:
            kept.append(sample)
    return tuple(kept[max(bisect_right(kept, start, key=time_of) - 1, 0) :])


INSTANT, NO_LAG = timedelta(microseconds=1), timedelta(0)


def observe(resource: Resource, state: ScalingState, capacity: int, now: datetime) -> Observation:
    """The observation that the policy sees at ``now``. Its windows hold only samples that are newer
    than the last confirmed change, and its histories all that are kept. Samples of a source that
    lags, as Azure Monitor does, are moved so that the newest one is at ``now``, and those of a
    disabled entity left out (see ``received``)."""
    desired, metrics, histories = state.desired, dict[str, Window](), dict[str, Window]()
    for name, source in resource.metrics.items():
        samples = received(samples_of(state, name))
        lag = lag_of(source, samples, now)
        start = window_start(resource, state, now, lag)
        if lag:
            samples = tuple([MetricValue(s.time + lag, s.value, s.status) for s in samples])
        histories[name], metrics[name] = Window(samples), Window(since(samples, start + lag))
    estimate = rate_estimate(resource.throughput, state.learned)
    return Observation(
        resource.name,
        now,
        capacity,
        resource.limits,
        metrics,
        desired.changed_at if desired else None,
        histories,
        state.histories.get(CAPACITY_METRIC, NO_SAMPLES),
        desired if desired and desired.pending else None,
        resource.goal,
        known_throughput(resource.throughput, state.learned, estimate),
        state.profile,
        estimate,
        Window(working(resource, state)),
    )


def lag_of(source: Source, samples: Samples, now: datetime) -> timedelta:
    """The age of the newest sample, but at most the usual lag of the source: one that lags more
    counts as missing."""
    usual = source.usual_lag_seconds
    if not usual or not samples:
        return NO_LAG
    return min(max(now - samples[-1].time, NO_LAG), span(usual))


def window_start(
    resource: Resource, state: ScalingState, now: datetime, lag: timedelta = NO_LAG
) -> datetime:
    """The time of the oldest sample that decisions use, for a source with this lag."""
    start = now - span(resource.window_seconds) - lag
    changed_at = state.desired.changed_at if state.desired else None
    if changed_at is not None and changed_at >= start:
        start = changed_at + INSTANT
    return start


def kept_seconds(resource: Resource, name: str) -> tuple[float, float]:
    """The maximum age of a sample of this metric on arrival, and the time for which it is kept.

    Decisions do not use counts of items, so a sample of a count may be as old as the history.
    """
    usual_lag = resource.source(name).usual_lag_seconds
    counts = name in (resource.throughput.counted_metric, ABANDONED)
    kept = resource.kept_history_seconds
    return (kept if counts else resource.window_seconds) + usual_lag, kept + usual_lag


def samples_of(state: ScalingState, name: str) -> Samples:
    """All kept samples of a metric, oldest first."""
    return state.histories.get(name, NO_SAMPLES).samples


def working(resource: Resource, state: ScalingState) -> Samples:
    """The changes of the number of instances that can work, according to all kept samples."""
    samples, known = samples_of(state, CAPACITY_METRIC), known_capacity(state)
    if known and samples and known.time >= samples[-1].time:
        samples = (*samples, known)
    return started(samples, starting_minutes(resource.throughput, state.learned))


def known_capacity(state: ScalingState) -> MetricValue | None:
    """The newest known capacity and its time: reported by the target, or a confirmed change."""
    kept = samples_of(state, CAPACITY_METRIC)
    observed = kept[-1] if kept else None
    desired = state.desired
    if desired is None:
        return observed
    if desired.changed_at is None:
        return observed or MetricValue(desired.requested_at, desired.capacity)
    if observed is not None and observed.time > desired.changed_at:
        return observed
    return MetricValue(desired.changed_at, desired.capacity)
