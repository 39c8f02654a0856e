"""Detects that the clock of the sources differs from that of the store. All functions are pure.

If one of these clocks is wrong by minutes, all samples seem too old or from the future, and no
decision could be made. The capacity is read in every collection: if its samples arrive one after
the other and all seem equally old, the clocks differ. From the third one on, samples are dated by
the clock of the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from shared.autoscaling.deciding.samples import FUTURE_TOLERANCE_SECONDS, samples_of
from shared.autoscaling.state import ScalingState
from shared.values.measurements import (
    CAPACITY_METRIC,
    NO_SAMPLES,
    Metric,
    MetricValue,
    Window,
    span,
)

NOTES = "!clock"
"""The history with the arrivals of the newest capacity samples that seem old or from the future:
the first one and the last two. The time of a note is that of the store, and its value that of the
source, in seconds since 1970."""
NOTES_MAX = 3
STEADY_SECONDS = 30
"""The notes must cover this much time, and the ages may differ by at most as much."""


def noted(state: ScalingState, metrics: Iterable[Metric], now: datetime) -> ScalingState:
    """The state with a note of each sample of the capacity, or without notes if the clocks agree. A
    sample that is late or repeated says nothing about the clocks."""
    for metric in metrics:
        if metric.name == CAPACITY_METRIC:
            state = _noted(state, metric.value, now)
    return state


def _noted(state: ScalingState, sample: MetricValue, now: datetime) -> ScalingState:
    notes = samples_of(state, NOTES)
    note = MetricValue(now, sample.time.timestamp())
    if abs(_age(note)) <= FUTURE_TOLERANCE_SECONDS:
        return state.with_history(NOTES, NO_SAMPLES) if notes else state
    if notes and (note.value <= notes[-1].value or now <= notes[-1].time):
        return state
    if notes and abs(_age(note) - _age(notes[0])) > STEADY_SECONDS:
        notes = ()
    return state.with_history(NOTES, Window((*notes[:1], *notes[1:][-1:], note)))


def difference(state: ScalingState) -> timedelta:
    """How far the clock of the store is ahead of that of the sources; 0 unless it is certain."""
    notes = samples_of(state, NOTES)
    if len(notes) < NOTES_MAX or notes[-1].time - notes[0].time < span(STEADY_SECONDS):
        return timedelta(0)
    return timedelta(seconds=_age(notes[0]))


def dated(state: ScalingState, metric: Metric, now: datetime) -> Metric:
    """The sample with its time by the clock of the store, if this brings it closer to ``now``: its
    source may have another clock than the capacity."""
    value = metric.value
    time = value.time + difference(state)
    if abs(now - value.time) <= abs(now - time):
        return metric
    return replace(metric, value=replace(value, time=time))


def told(state: ScalingState) -> str:
    """The difference of the clocks in words; empty if they agree."""
    seconds = difference(state).total_seconds()
    if not seconds:
        return ""
    where = "ahead of" if seconds > 0 else "behind"
    return f"the clock of the storage account is {abs(seconds):.0f} s {where} that of the plan"


def _age(note: MetricValue) -> float:
    return note.time.timestamp() - note.value
