"""Learns the share of a topic's messages that reaches a subscription, from its backlog. Pure.

Azure Monitor counts the incoming messages of a topic, of which a subscription gets a share p. In a
minute in which all n instances were busy, with the rate μ per instance, its backlog grows by

    growth = p·incoming - μ·n

A linear regression without a constant gives p and its standard error, unless ``incoming`` and n are
always proportional. The completed messages of a minute are then p·incoming - growth.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shared.autoscaling.learning.backlog_rate import MINUTE
from shared.autoscaling.learning.throughput import Counted, with_counted
from shared.autoscaling.state import BusyIntervals
from shared.values.measurements import MetricValue, Samples, since, time_of

REMEMBERED = timedelta(hours=1)
"""Readings of the backlog and the capacity are kept for this time, because counts are late."""
OBSERVATIONS_MAX, OBSERVATIONS_MIN = 300, 20
STANDARD_ERROR_MAX = 0.1
"""The share is used only if its standard error is at most this share of its value."""


@dataclass(frozen=True, slots=True)
class BusyMinute:
    """A minute in which all instances were busy."""

    incoming: float
    """The number of messages that the topic received."""
    busy: float
    """The work of the instances, in instance-minutes."""
    growth: float
    """The growth of the subscription's backlog, in messages."""


@dataclass(frozen=True, slots=True)
class ShareHistory:
    """The readings and busy minutes from which the share is learned."""

    backlog: Samples = ()
    capacity: Samples = ()
    minutes: tuple[BusyMinute, ...] = ()


def with_readings(
    history: ShareHistory, backlog: MetricValue | None, capacity: MetricValue | None
) -> ShareHistory:
    """The history with the current readings. A disabled entity's backlog does not show what was
    finished, so it is learned anew afterwards."""
    if backlog is not None and backlog.status:
        return replace(history, backlog=())
    return replace(
        history,
        backlog=_appended(history.backlog, backlog),
        capacity=_appended(history.capacity, capacity),
    )


def _appended(samples: Samples, value: MetricValue | None) -> Samples:
    if value is None or (samples and value.time <= samples[-1].time):
        return samples
    return since((*samples, value), value.time - REMEMBERED)


def finished(
    history: ShareHistory, incoming: Sequence[MetricValue]
) -> tuple[ShareHistory, tuple[MetricValue, ...]]:
    """The history with the new busy minutes, and the number of completed messages of each minute:
    none while the share is unknown."""
    observed = [busy for each in incoming if (busy := _busy_minute(history, each))]
    history = replace(history, minutes=(*history.minutes, *observed)[-OBSERVATIONS_MAX:])
    share = share_of(history.minutes)
    if share is None:
        return history, ()
    known = [(each, _growth(history.backlog, each.time)) for each in incoming]
    values = [
        MetricValue(each.time, max(share * each.value - growth, 0.0))
        for each, growth in known
        if growth is not None
    ]
    return history, tuple(values)


def _busy_minute(history: ShareHistory, incoming: MetricValue) -> BusyMinute | None:
    interval = (MetricValue(incoming.time - MINUTE, 0), incoming)
    counted = Counted(interval, incoming=True)
    work = with_counted(BusyIntervals(), counted, history.backlog, history.capacity)
    if not work.recent or len(work.recent[0]) > 2:  # instances may have been starting
        return None
    done, busy = work.recent[0]
    return BusyMinute(incoming.value, busy, incoming.value - done)


def share_of(minutes: Sequence[BusyMinute]) -> float | None:
    """The share, estimated by least squares; None while its standard error is too large."""
    if len(minutes) < OBSERVATIONS_MIN:
        return None
    ii = sum(each.incoming**2 for each in minutes)
    nn = sum(each.busy**2 for each in minutes)
    cross = sum(each.incoming * each.busy for each in minutes)
    determinant = ii * nn - cross * cross
    if determinant <= 1e-9 * ii * nn:  # incoming and n are proportional
        return None
    gi = sum(each.growth * each.incoming for each in minutes)
    gn = sum(each.growth * each.busy for each in minutes)
    share, rate = (gi * nn - gn * cross) / determinant, (gi * cross - gn * ii) / determinant
    unexplained = sum((m.growth - share * m.incoming + rate * m.busy) ** 2 for m in minutes)
    error = math.sqrt(unexplained / (len(minutes) - 2) * nn / determinant)
    if share <= 0 or error > STANDARD_ERROR_MAX * share:
        return None
    return min(share, 1.0)


def _growth(backlog: Samples, end: datetime) -> float | None:
    """The growth of the backlog in the minute up to ``end``; None if it was not read."""
    before = bisect_right(backlog, end - MINUTE, key=time_of) - 1
    after = bisect_right(backlog, end, key=time_of) - 1
    if before < 0 or after == before:
        return None
    return backlog[after].value - backlog[before].value
