"""Computes the lag of samples from Azure Monitor, and compensates for it in decisions. Pure.

Azure Monitor publishes the value of a minute one to ten minutes after that minute. Windows and the
guard for missing data are meant for samples that arrive at once. Before a policy sees the samples
of such a source, the app therefore adds the current lag of the source to their times, so that the
newest sample is at ``now``. A window of five minutes then contains the newest five minutes that are
known. The added lag is limited. So if a source lags more than usual, its samples grow old as those
of any other source do, and the metric then counts as missing.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from shared.autoscaling.sources import Source
from shared.values.durations import iso
from shared.values.measurements import MetricValue, Window, span

LAG_SECONDS_MAX = 900.0
"""The longest usual lag, for intervals of a minute: ten minutes for publishing, one for the minute
itself, one until the next query, one until a sum is read a second time, and two for a failed query.
"""

NO_LAG = timedelta(0)
A_MINUTE = timedelta(minutes=1)


def grain_of(time_grain: str) -> timedelta:
    """The length of the interval that one value covers."""
    return iso(time_grain)


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
