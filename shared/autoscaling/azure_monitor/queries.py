"""Plans queries of Azure Monitor, selects the points to take, and computes waits. Pure.

Azure Monitor publishes one point per minute and metric, some minutes late. A point without a value
is missing, not zero. Sums and counts may still grow, because the parts of a service report
separately: they are taken once two queries have returned the same value.

https://learn.microsoft.com/azure/azure-monitor/metrics/migrate-to-batch-api
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shared.autoscaling.azure_monitor.source import AzureMonitorMetric
from shared.values.durations import iso
from shared.values.measurements import NOTHING, MetricValue, span

QUERY_EVERY = timedelta(seconds=55)
"""A source is queried once a minute, in the nearest run of the collector."""
SETTLED_AFTER = timedelta(minutes=5)
"""A sum that is this old at the first query of a process is taken at once."""
RESOURCES_MAX = 50
METRICS_MAX = 20
"""Limits of Azure Monitor for one query."""
DENIED_FOR = timedelta(hours=1)
"""The wait before a query that was denied is repeated."""
WAIT_FIRST = timedelta(minutes=1)
WAIT_MAX = timedelta(minutes=15)
RETRY_AFTER_MAX = timedelta(hours=1)


# --- queries ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MetricQuery:
    """One request. All its resources have the same type. With a region, it is a batch request."""

    subscription_id: str
    region: str
    namespace: str
    grain: str
    filter: str
    resource_ids: tuple[str, ...]
    metrics: tuple[str, ...]
    sources: tuple[AzureMonitorMetric, ...]

    @property
    def aggregations(self) -> tuple[str, ...]:
        return tuple(sorted({source.aggregation for source in self.sources}))

    @property
    def place(self) -> str:
        """The unit that is throttled: a resource, or the subscription and region of a batch."""
        if self.region:
            return f"subscription {self.subscription_id} in {self.region}"
        return self.resource_ids[0]

    def start(self, now: datetime) -> datetime:
        return now - max(map(queried_span, self.sources))


_Alike = tuple[str, str, str, str, str]
"""What the sources of one request have in common: the first fields of MetricQuery."""


def plan_queries(
    sources: Iterable[AzureMonitorMetric], regions: Mapping[str, str], denied: Collection[str]
) -> list[MetricQuery]:
    """The requests for the sources, as few as the limits of Azure Monitor allow.

    Resources are queried as a batch if their regions are known, there are several, and their
    subscription is not among the ``denied``. ``regions`` maps resource IDs in lower case to
    regions.
    """
    groups = defaultdict[tuple[_Alike, str], list[AzureMonitorMetric]](list)
    for source in sources:
        alike = _alike(source, regions, denied)
        alone = "" if alike[1] else resource_key(source)
        groups[alike, alone].append(source)
    queries = list[MetricQuery]()
    for (alike, _), members in groups.items():
        ids = sorted({resource_key(source) for source in members})
        for start in range(0, len(ids), RESOURCES_MAX):
            some = ids[start : start + RESOURCES_MAX]
            queries += _queries(alike, some, [s for s in members if resource_key(s) in some])
    return queries


def _alike(
    source: AzureMonitorMetric, regions: Mapping[str, str], denied: Collection[str]
) -> _Alike:
    subscription_id, namespace = subscription_and_namespace(source.resource_id)
    region = "" if subscription_id in denied else regions.get(resource_key(source), "")
    return subscription_id, region, source.namespace or namespace, source.time_grain, source.filter


def _queries(
    alike: _Alike, ids: Sequence[str], sources: Sequence[AzureMonitorMetric]
) -> Iterator[MetricQuery]:
    if len(ids) == 1:
        alike = alike[0], "", *alike[2:]
    names = sorted({source.metric for source in sources})
    for start in range(0, len(names), METRICS_MAX):
        some = names[start : start + METRICS_MAX]
        asked = tuple(source for source in sources if source.metric in some)
        yield MetricQuery(*alike, tuple(ids), tuple(some), asked)


def one_by_one(query: MetricQuery, *, metrics_too: bool = False) -> list[MetricQuery]:
    """The same sources in one request per resource, or per metric with ``metrics_too``."""
    parts = defaultdict[tuple[str, str], list[AzureMonitorMetric]](list)
    for source in query.sources:
        parts[resource_key(source), source.metric if metrics_too else ""].append(source)
    return [each for some in parts.values() for each in plan_queries(some, NOTHING, ())]


def resource_key(source: AzureMonitorMetric) -> str:
    """The resource ID in lower case, because Azure ignores its case."""
    return source.resource_id.rstrip("/").lower()


def subscription_and_namespace(resource_id: str) -> tuple[str, str]:
    """The subscription, and the resource type, which is the namespace of platform metrics."""
    _, subscription_id, _, _, _, provider, *names = resource_id.strip("/").lower().split("/")
    return subscription_id, "/".join([provider, *names[::2]])


# --- points -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """The value of the interval that begins at ``start``."""

    start: datetime
    value: float


@dataclass(frozen=True, slots=True)
class Taken:
    """The starts of the intervals whose points were taken, and the values that may still grow."""

    starts: frozenset[datetime] = frozenset()
    unsettled: Mapping[datetime, float] = field(default_factory=dict)
    queried: bool = False


def take(
    points: Iterable[MetricPoint], taken: Taken, source: AzureMonitorMetric, now: datetime
) -> tuple[tuple[MetricValue, ...], Taken]:
    """The samples that are new since the last query, oldest first, and what was taken so far.

    The time of a sample is the end of its interval. A late point is also new if points of later
    intervals were taken before. An interval that has not ended is left to a later query.
    """
    grain, oldest = iso(source.time_grain), now - queried_span(source)
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
    end = point.start + iso(source.time_grain)
    if not taken.queried and end <= now - SETTLED_AFTER:
        return True
    return taken.unsettled.get(point.start) == point.value


def combined(values: Sequence[float], aggregation: str) -> float:
    """The aggregate of the values of several dimension values that the filter selects."""
    if aggregation in ("total", "count"):
        return sum(values)
    if aggregation == "average":
        return sum(values) / len(values)
    return max(values) if aggregation == "maximum" else min(values)


def queried_span(source: AzureMonitorMetric) -> timedelta:
    """The time that a query covers: the usual lag, ``SETTLED_AFTER``, and one interval."""
    return span(source.usual_lag_seconds) + iso(source.time_grain) + SETTLED_AFTER


# --- throttling -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Throttling:
    """The throttling of a place, which is not queried before ``until``."""

    refusals: int
    until: datetime


def throttled(
    before: Throttling | None, now: datetime, retry_after: timedelta | None
) -> Throttling:
    """The next wait. It doubles with each consecutive refusal, and is at least ``retry_after``."""
    refusals = before.refusals + 1 if before else 1
    wait = min(WAIT_FIRST * 2 ** min(refusals - 1, 10), WAIT_MAX)
    if retry_after is not None:
        wait = max(wait, min(retry_after, RETRY_AFTER_MAX))
    return Throttling(refusals, now + wait)
