"""Queries of Azure Monitor: what to ask, which points to take, and how long to wait. Pure.

Azure Monitor publishes one point per minute and metric, minutes late. A point without a value is a
minute of which nothing is known yet: it is missing, not zero. Sums and counts may still grow after
they were first published, because the parts of a service report separately. They are taken once two
queries have returned the same value.

https://learn.microsoft.com/azure/azure-monitor/metrics/migrate-to-batch-api
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from shared.autoscaling.declaring import AzureMonitorMetric
from shared.autoscaling.lag import grain_of, usual_lag_seconds
from shared.autoscaling.measurements import NOTHING, MetricValue, span

QUERY_EVERY = timedelta(seconds=55)
"""A source is queried once a minute. The collector runs every few seconds, hence the slack."""
SETTLED_AFTER = timedelta(minutes=5)
"""A sum that is this old at the first query of a process is taken at once."""
RESOURCES_MAX = 50
"""The most resources of a query, a limit of Azure Monitor."""
METRICS_MAX = 20
"""The most metrics of a query, a limit of Azure Monitor."""
DENIED_FOR = timedelta(hours=1)
"""How long the app does not ask again whether it may query a whole subscription."""
WAIT_FIRST = timedelta(minutes=1)
WAIT_MAX = timedelta(minutes=15)
RETRY_AFTER_MAX = timedelta(hours=1)

RESOURCE_ID = re.compile(
    r"/subscriptions/([^/]+)/resourceGroups/[^/]+/providers/([^/]+)((?:/[^/]+/[^/]+)+)/?", re.I
)


# --- what to ask ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MetricQuery:
    """One request. All resources have the same type; with a region, they are asked as a batch."""

    subscription_id: str
    region: str
    namespace: str
    resource_ids: tuple[str, ...]
    metrics: tuple[str, ...]
    aggregations: tuple[str, ...]
    grain: str
    filter: str
    sources: tuple[AzureMonitorMetric, ...]

    @property
    def place(self) -> str:
        """What Azure Monitor throttles: a resource, or for a batch its subscription and region."""
        if self.region:
            return f"subscription {self.subscription_id} in {self.region}"
        return self.resource_ids[0]

    def start(self, now: datetime) -> datetime:
        """The beginning of the time that is asked for."""
        return now - max(map(queried_span, self.sources))


class _Alike(NamedTuple):
    """What the sources of one request have in common. The subscription and the region are empty for
    a resource that is asked alone."""

    subscription_id: str
    region: str
    alone: str
    namespace: str
    grain: str
    filter: str


def plan_queries(
    sources: Iterable[AzureMonitorMetric], regions: Mapping[str, str], denied: Collection[str]
) -> list[MetricQuery]:
    """The requests for the sources, as few as Azure Monitor allows.

    Resources are batched if their regions are known and the app may query the whole subscription
    (``denied`` has those that it may not). A batch of one resource needs more rights and saves
    nothing, so it is asked alone. ``regions`` is by resource ID in lower case.
    """
    groups = defaultdict[_Alike, list[AzureMonitorMetric]](list)
    for source in sources:
        groups[_alike(source, regions, denied)].append(source)
    queries = list[MetricQuery]()
    for alike, members in groups.items():
        ids = sorted({resource_key(source) for source in members})
        for start in range(0, len(ids), RESOURCES_MAX):
            some = ids[start : start + RESOURCES_MAX]
            queries += _queries(alike, some, [s for s in members if resource_key(s) in some])
    return queries


def _alike(
    source: AzureMonitorMetric, regions: Mapping[str, str], denied: Collection[str]
) -> _Alike:
    subscription_id, namespace = subscription_and_namespace(source.resource_id)
    key = resource_key(source)
    region = regions.get(key, "")
    if subscription_id in denied or not region:
        return _Alike(subscription_id, "", key, namespace, source.time_grain, source.filter)
    return _Alike(subscription_id, region, "", namespace, source.time_grain, source.filter)


def _queries(
    alike: _Alike, ids: Sequence[str], sources: Sequence[AzureMonitorMetric]
) -> Iterator[MetricQuery]:
    names = sorted({source.metric for source in sources})
    for start in range(0, len(names), METRICS_MAX):
        some = names[start : start + METRICS_MAX]
        asked = tuple(source for source in sources if source.metric in some)
        yield MetricQuery(
            alike.subscription_id,
            alike.region if len(ids) > 1 else "",
            alike.namespace,
            tuple(ids),
            tuple(some),
            tuple(sorted({source.aggregation for source in asked})),
            alike.grain,
            alike.filter,
            asked,
        )


def one_by_one(query: MetricQuery, *, metrics_too: bool = False) -> list[MetricQuery]:
    """The same sources, each resource alone, or even each metric of each resource."""
    parts = defaultdict[tuple[str, str], list[AzureMonitorMetric]](list)
    for source in query.sources:
        parts[resource_key(source), source.metric if metrics_too else ""].append(source)
    return [each for some in parts.values() for each in plan_queries(some, NOTHING, ())]


def resource_key(source: AzureMonitorMetric) -> str:
    """The resource ID in one spelling: Azure ignores its case."""
    return source.resource_id.rstrip("/").lower()


def subscription_and_namespace(resource_id: str) -> tuple[str, str]:
    """The subscription, and the resource type, which is the namespace of platform metrics."""
    match = RESOURCE_ID.fullmatch(resource_id)
    assert match is not None, "validated with the rules"
    types = match[3].split("/")[1::2]
    return match[1].lower(), "/".join([match[2], *types]).lower()


# --- what to take -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """The value of one interval, which begins at ``start``. An interval of which nothing is known
    has no point."""

    start: datetime
    value: float


@dataclass(frozen=True, slots=True)
class Taken:
    """The starts of the intervals whose points were taken, and values that may still grow."""

    starts: frozenset[datetime] = frozenset()
    unsettled: Mapping[datetime, float] = field(default_factory=dict)
    queried: bool = False


def take(
    points: Iterable[MetricPoint], taken: Taken, source: AzureMonitorMetric, now: datetime
) -> tuple[tuple[MetricValue, ...], Taken]:
    """The samples that are new since the last query, oldest first, and what was taken so far.

    A sample is dated by the end of its interval, because a sum or an average holds up to then. A
    point may be late: it is new even if later ones were taken before. An interval that is not over
    is left for a later query.
    """
    grain, oldest = grain_of(source.time_grain), now - queried_span(source)
    starts = {start for start in taken.starts if start >= oldest}
    unsettled, samples = dict[datetime, float](), list[MetricValue]()
    for point in sorted(points, key=lambda point: point.start):
        if point.start in starts or point.start + grain > now:
            continue
        if _settled(point, taken, source, now):
            samples.append(MetricValue(point.start + grain, point.value))
            starts.add(point.start)
        else:
            unsettled[point.start] = point.value
    return tuple(samples), Taken(frozenset(starts), unsettled, queried=True)


def _settled(point: MetricPoint, taken: Taken, source: AzureMonitorMetric, now: datetime) -> bool:
    if source.aggregation not in ("total", "count"):
        return True
    end = point.start + grain_of(source.time_grain)
    if not taken.queried and end <= now - SETTLED_AFTER:
        return True
    return taken.unsettled.get(point.start) == point.value


def combined(values: Sequence[float], aggregation: str) -> float:
    """One value for several values of a filtered dimension."""
    if aggregation in ("total", "count"):
        return sum(values)
    if aggregation == "average":
        return sum(values) / len(values)
    return max(values) if aggregation == "maximum" else min(values)


def queried_span(source: AzureMonitorMetric) -> timedelta:
    """How far back a query asks: for as long as a point may be late, and one interval more."""
    return span(usual_lag_seconds(source)) + grain_of(source.time_grain) + SETTLED_AFTER


# --- how long to wait -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Throttling:
    """A place that Azure Monitor throttles is not asked before ``until``."""

    refusals: int
    until: datetime


def throttled(
    before: Throttling | None, now: datetime, retry_after: timedelta | None
) -> Throttling:
    """The next wait: twice as long at each refusal in a row, and never shorter than asked for."""
    refusals = before.refusals + 1 if before else 1
    wait = min(WAIT_FIRST * 2 ** min(refusals - 1, 10), WAIT_MAX)
    if retry_after is not None:
        wait = max(wait, min(retry_after, RETRY_AFTER_MAX))
    return Throttling(refusals, now + wait)
