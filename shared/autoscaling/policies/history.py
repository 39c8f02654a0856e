"""A sample's place in the history of its metric: sorted by time, each time once, bounded."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from datetime import datetime
from operator import attrgetter

from shared.autoscaling.measurements import MetricValue
from shared.autoscaling.state import History

SAMPLES_KEPT_MAX = 3000
"""Keeps the rows of a resource inside one transaction (4 MiB) and one round trip."""

Samples = tuple[MetricValue, ...]
NO_HISTORY = History()
time_of = attrgetter("time")


def with_sample(history: History, value: MetricValue, start: datetime) -> History | None:
    """From ``start`` on, with the sample; None where its time is known already.

    A history that began here knows its gaps until a sample comes late.
    """
    samples, gaps = history.samples, history.known_gaps
    if not samples:
        return History((value,), (0.0,))
    if value.time <= samples[-1].time:
        late = _sorted_in(samples, value)
        return None if late is None else History(_bounded(late, start))
    kept = _bounded((*samples, value), start)
    if gaps is not None:
        gaps = (*gaps, (value.time - samples[-1].time).total_seconds())[-len(kept) :]
    return History(kept, gaps)


def with_capacity(history: History, value: MetricValue, start: datetime) -> History | None:
    """Of a run of equal values only the first and the newest, from the one before ``start`` on.

    That one stays, for it says which capacity there was at ``start``.
    """
    samples = history.samples
    if samples and value.time <= samples[-1].time:
        late = _sorted_in(samples, value)
        if late is None:
            return None
        return History(_kept(_changes_only(late), start))
    goes_on = len(samples) > 1 and samples[-2].value == samples[-1].value == value.value
    changes = (*(samples[:-1] if goes_on else samples), value)
    return History(_kept(changes, start))


def since(samples: Samples, start: datetime) -> Samples:
    """The samples at ``start`` or later; they must be sorted."""
    return samples[bisect_left(samples, start, key=time_of) :]


def until(samples: Samples, end: datetime) -> Samples:
    """The samples at ``end`` or earlier; they must be sorted."""
    return samples[: bisect_right(samples, end, key=time_of)]


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
