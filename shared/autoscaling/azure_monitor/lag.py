"""Computes the lag of samples from Azure Monitor, and compensates for it in decisions. Pure.

Azure Monitor publishes a minute one to ten minutes later, but windows and the guard for missing
data expect samples at once. So a policy sees the samples moved by the source's lag, with the newest
one at ``now``. The lag is limited: a source that lags more than usual counts as missing.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from shared.autoscaling.sources import Source
from shared.values.measurements import MetricValue, Window, span

LAG_SECONDS_MAX = 900.0
"""The longest usual lag, for intervals of a minute: ten for publishing, one for the minute, one
until the next query, one until a sum is read a second time, and two for a failed query."""

NO_LAG = timedelta(0)
A_MINUTE = timedelta(minutes=1)


def usual_lag_seconds(interval: timedelta) -> float:
    """The longest lag of such a metric that still counts as usual."""
    return LAG_SECONDS_MAX + (interval - A_MINUTE).total_seconds()


def lag_of(source: Source, history: Window, now: datetime) -> timedelta:
    """The age of the newest sample, but at most the usual lag of the source."""
    usual, newest = source.usual_lag_seconds, history.latest
    if not usual or newest is None:
        return NO_LAG
    return min(max(now - newest.time, NO_LAG), span(usual))


def moved(window: Window, lag: timedelta) -> Window:
    """The samples, with ``lag`` added to their times."""
    if not lag:
        return window
    return Window(tuple([MetricValue(s.time + lag, s.value, s.status) for s in window.samples]))
