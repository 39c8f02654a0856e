"""Reconstructs a workload from the app's records of backlogs and capacities.

If an interval ends with a backlog, all instances were busy, so  arrivals = change of backlog +
μ·n·minutes. If an interval ends with an empty queue, the arrivals are only known to be at most what
could be served. The replay then assumes the minimum, none. Quiet times are therefore replayed with
too little load.

The decision log holds the capacity and the samples of each decision. If the instance rate
is not given, the learned rate is used.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

import numpy as np

from backtest.errors import NoHistory
from backtest.traces.reading import minutes_of
from backtest.traces.samples import MINUTE
from backtest.workload import FILLED_MINUTES_MAX, Workload
from shared.autoscaling import Resource
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.learning.throughput import rate_estimate
from shared.autoscaling.ports import StateStore
from shared.autoscaling.state import ScalingState
from shared.settings import SettingsError, parse
from shared.values.measurements import CAPACITY_METRIC
from shared.wiring.remedies import with_remedy

ENTRIES_MAX = 200_000
"""A decision every 15 s for a month."""

GAP = timedelta(minutes=FILLED_MINUTES_MAX)


@dataclass(frozen=True, slots=True)
class Point:
    """Backlog and capacity at one time."""

    time: datetime
    backlog: float
    capacity: int


@dataclass(frozen=True, slots=True)
class History:
    """What the records say: backlogs and capacities by time, and the rate per instance."""

    points: Sequence[Point]
    rate: float
    workload: Workload


def load_history(
    resource: Resource,
    rate: float | None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> History:
    """Read from the storage account of AzureWebJobsStorage. Raises NoHistory."""
    entries, state = asyncio.run(read_history(resource.name, since, until))
    estimate = rate_estimate(resource.throughput, state.learned)
    if rate is None and estimate is not None and estimate.sure:
        rate = estimate.likely
    if rate is None:
        guess = f"{estimate.likely:.3g}, its estimate so far" if estimate else "items a minute"
        raise NoHistory(
            f"{resource.name}: the app has not learned the rate per instance yet. Give "
            f"--instance-rate ({guess})."
        )
    found = points_of(resource, entries, state)
    points = [p for p in found if (not since or since <= p.time) and (not until or p.time < until)]
    return History(points, rate, workload_from(resource, points, rate))


async def read_history(
    resource_name: str, since: datetime | None = None, until: datetime | None = None
) -> tuple[list[LogEntry], ScalingState]:
    """``read_record`` of the storage account of AzureWebJobsStorage. Raises NoHistory."""
    from shared.autoscaling.store.tables import TableStateStore  # noqa: PLC0415  heavy to import
    from shared.azure import credentials  # noqa: PLC0415  heavy to import

    try:
        store = TableStateStore(parse()[0].storage("AzureWebJobsStorage"))
        try:
            return await read_record(store, resource_name, since, until)
        finally:
            await store.close()
            await credentials.close()
    except SettingsError as error:
        raise NoHistory(str(error)) from error
    except Exception as error:
        what = with_remedy(f"{type(error).__name__}: {error}".splitlines()[0])
        raise NoHistory(f"the records of {resource_name} cannot be read: {what}") from error


async def read_record(
    store: StateStore,
    resource_name: str,
    since: datetime | None = None,
    until: datetime | None = None,
) -> tuple[list[LogEntry], ScalingState]:
    """The decisions of a time, and the state with the samples that are kept."""
    entries = await store.log(resource_name, ENTRIES_MAX, since, before=until)
    return entries, (await store.load(resource_name)).state


def points_of(resource: Resource, entries: Sequence[LogEntry], state: ScalingState) -> list[Point]:
    """Backlog and capacity by time, oldest first, from the log and the kept samples."""
    metric = next((n for n, s in resource.metrics.items() if s.counts_backlog), None)
    if metric is None:
        raise NoHistory(f"no metric of {resource.name} counts waiting items")
    by_time: dict[datetime, Point] = {}
    for entry in entries:
        if entry.kind is not EntryKind.DECISION or entry.current is None:
            continue
        for sample in entry.seen.get(metric, ()):
            by_time[sample.time] = Point(sample.time, sample.value, entry.current)
    for point in _kept(state, metric):
        by_time.setdefault(point.time, point)
    return sorted(by_time.values(), key=lambda point: point.time)


def _kept(state: ScalingState, metric: str) -> list[Point]:
    """The kept samples of the backlog, each with the latest capacity before it."""
    if metric not in state.histories or CAPACITY_METRIC not in state.histories:
        return []
    capacities = state.histories[CAPACITY_METRIC].samples
    times = [sample.time for sample in capacities]
    points = []
    for sample in state.histories[metric].samples:
        at = bisect_right(times, sample.time) - 1
        if at >= 0:
            points.append(Point(sample.time, sample.value, int(capacities[at].value)))
    return points


def workload_from(resource: Resource, points: Sequence[Point], rate: float) -> Workload:
    """Arrivals per minute, with each interval spread evenly. Longer gaps are cut out."""
    if len(points) < 2:
        raise NoHistory(
            f"{resource.name}: found {len(points)} recorded backlogs, but at least 2 are needed. "
            "Check the resource's name, and that the app has been running."
        )
    start = points[0].time.replace(second=0, microsecond=0)
    minutes = -(-(points[-1].time - start) // MINUTE)
    arrivals, covered = np.zeros(minutes), np.zeros(minutes)
    empty = gaps = 0
    for before, after in pairwise(points):
        if after.time - before.time > GAP:
            gaps += 1
            continue
        empty += after.backlog == 0
        came, lasted = _arrivals(before, after, rate), after.time - before.time
        for minute, inside in minutes_of(before.time - start, after.time - start):
            arrivals[minute] += came * (inside / lasted)
            covered[minute] += inside / lasted * (lasted / MINUTE)
    kept = np.flatnonzero(covered >= 0.5)
    if not len(kept):
        raise NoHistory(
            f"{resource.name}: no minute of the records is covered by half. Backlogs must be "
            f"recorded within {GAP / MINUTE:g} min of each other, for a minute at least."
        )
    notices = [
        f"reconstructed from {len(points)} recorded backlogs at {rate:g} items per instance-minute",
        f"{empty} of {len(points) - 1} intervals end with an empty queue: their arrivals are "
        "unknown, and the minimum is assumed",
    ]
    if gaps:
        notices.append(f"{gaps} gaps of more than {GAP / MINUTE:g} min: cut out")
    return Workload(
        name=f"history of {resource.name}",
        arrivals=arrivals[kept] / covered[kept],
        starts=[start + MINUTE * int(minute) for minute in kept],
        notices=tuple(notices),
    )


def _arrivals(before: Point, after: Point, rate: float) -> float:
    minutes = (after.time - before.time) / MINUTE
    could = rate * before.capacity * minutes
    if after.backlog == 0:
        return 0.0
    return max(0.0, after.backlog - before.backlog + could)
