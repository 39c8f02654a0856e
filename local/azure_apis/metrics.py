"""The metrics of Azure Monitor: the query of one resource, and the batch query of a region.

Values are recorded per minute, and published `lag_seconds` after their minute is over. Until then,
a point has a `timeStamp` and no value. The same holds for a minute without any data, unless the
metric is zero-filled. A dimension value without any data has no series. When a
minute is first published, its sum may be incomplete: in the newest published minute, the share
`late_share` of the values is still missing.

Values are kept for 93 days, and a query gets at most the last 30 days of its time, without a word
about the rest (azure-sdk-for-python#13547). A query that is divided by a dimension gets ten series,
unless `top` says more.

Sources: "Migrate from the metrics API to the getBatch API" and "Azure Monitor REST API, Metrics -
List", both on learn.microsoft.com.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from local.azure_apis import arm_errors
from local.azure_apis.loopback_server import Reply, Request

API_VERSION = "2024-02-01"
RESOURCES_MAX, METRICS_MAX = 50, 20
MINUTE = timedelta(minutes=1)
KEPT, QUERIED_MAX = timedelta(days=93), timedelta(days=30)
SERIES_USUAL = 10
GRAINS = {"PT1M": 1, "PT5M": 5, "PT15M": 15, "PT30M": 30, "PT1H": 60, "PT6H": 360, "P1D": 1440}
AGGREGATIONS = ("average", "total", "minimum", "maximum", "count")

_RESOURCE = r"/subscriptions/([^/]+)/resourceGroups/[^/]+/providers/([^/]+(?:/[^/]+/[^/]+)+)"
_ONE = re.compile(rf"({_RESOURCE})/providers/Microsoft\.Insights/metrics", re.IGNORECASE)
_BATCH = re.compile(r"/regions/([^/]+)/subscriptions/([^/]+)/metrics:getBatch", re.IGNORECASE)
_CONDITION = re.compile(r"(\w+) eq '((?:[^']|'')*)'")


@dataclass(slots=True)
class MonitoredResource:
    """A resource with metrics. `values` maps a metric and a dimension value to the values that were
    recorded in each minute.
    """

    id: str
    region: str = "westeurope"
    metrics: dict[str, bool] = field(default_factory=dict)
    """The metrics that it has; true if a minute without data is published as zero."""
    values: dict[tuple[str, str], dict[datetime, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    unpublished: set[datetime] = field(default_factory=set)
    """Minutes whose values are never published."""
    throttled_seconds: int | None = None
    """If it is not None, queries of this resource get the answer 429 with this `Retry-After`."""
    readable: bool = True
    dimension: str = ""
    """Its only dimension; empty for that of the stand-in."""


class MetricsStandIn:
    """Answers metric queries. `dimension` is the only dimension, and all metrics have it."""

    def __init__(self) -> None:
        self.resources: dict[str, MonitoredResource] = {}
        self.dimension = "EntityName"
        self.lag_seconds = 0.0
        self.late_share = 0.0
        self.subscription_readable = False
        """Whether the caller has Monitoring Reader on the subscription, which batches need."""
        self.batch_throttled_seconds: int | None = None

    def add(self, resource_id: str, *metrics: str, zero_filled: bool = False) -> MonitoredResource:
        """Add a resource with these metrics."""
        resource = MonitoredResource(resource_id, metrics=dict.fromkeys(metrics, zero_filled))
        self.resources[resource_id.lower()] = resource
        return resource

    def record(
        self, resource_id: str, metric: str, time: datetime, value: float, entity: str = ""
    ) -> None:
        """Add a measurement. A minute may have several."""
        minute = time.replace(second=0, microsecond=0)
        self.resources[resource_id.lower()].values[metric, entity][minute].append(value)

    def reply(self, request: Request) -> Reply | None:
        """The answer to a metric query; None if the request is another one."""
        if match := _ONE.fullmatch(request.path):
            return self._one(request, match[1])
        if match := _BATCH.fullmatch(request.path):
            return self._batch(request, match[1], match[2])
        return None

    # --- one resource ---

    def _one(self, request: Request, resource_id: str) -> Reply:
        resource = self.resources.get(resource_id.lower())
        if request.method != "GET":
            return arm_errors.front_door_error(405, "MethodNotAllowed", request.method)
        if resource is None:
            return arm_errors.front_door_error(
                404, "ResourceNotFound", "The Resource was not found."
            )
        if not resource.readable:
            return arm_errors.front_door_error(403, "AuthorizationFailed", "no metrics/read")
        if resource.throttled_seconds is not None:
            wait = str(resource.throttled_seconds)
            headers = {"Retry-After": wait}
            return arm_errors.front_door_error(429, "TooManyRequests", "Slow down.", headers)
        start, _, end = request.query.get("timespan", "").partition("/")
        try:
            asked = _Asked.of(request.query, start, end, request.query.get("$filter", ""))
            if asked.end < request.time - KEPT:
                raise _Invalid(
                    f"Query endTime: {_text(asked.end)} is out of the Max metrics retention "
                    "period: 93.00:00:00"
                )
            return Reply(200, json.dumps(self._result(resource, asked, request.time)))
        except _Invalid as error:
            return Reply(400, json.dumps({"code": "BadRequest", "message": str(error)}))

    # --- many resources ---

    def _batch(self, request: Request, region: str, subscription: str) -> Reply:
        if request.method != "POST":
            return arm_errors.front_door_error(405, "MethodNotAllowed", request.method)
        if not self.subscription_readable:
            return arm_errors.front_door_error(
                401, "AuthorizationFailed", "The client may not read metrics of the subscription."
            )
        if self.batch_throttled_seconds is not None:
            headers = {"Retry-After": str(self.batch_throttled_seconds)}
            return arm_errors.front_door_error(529, "TooManyRequests", "Slow down.", headers)
        query = request.query
        try:
            ids = _listed(request.body)
            start, end = query.get("starttime", ""), query.get("endtime", "")
            asked = _Asked.of(query, start, end, query.get("filter", ""))
            resources = list(self._checked(ids, region, subscription, query))
            results = [
                {**self._result(each, asked, request.time), "resourceid": each.id}
                for each in resources
            ]
            return Reply(200, json.dumps({"values": results}))
        except _Invalid as error:
            return arm_errors.front_door_error(400, "BadRequest", str(error))

    def _checked(
        self, ids: Sequence[str], region: str, subscription: str, query: Mapping[str, str]
    ) -> Iterator[MonitoredResource]:
        namespace = query.get("metricnamespace", "").lower()
        for each in ids:
            match = re.fullmatch(_RESOURCE, each, re.IGNORECASE)
            resource = self.resources.get(each.lower())
            if match is None or match[1].lower() != subscription.lower():
                raise _Invalid(f"{each} is not in subscription {subscription}")
            if _type_of(match[2]) != namespace:
                raise _Invalid(f"{each} is not of the type {namespace!r}")
            if resource is None or resource.region.replace(" ", "").lower() != region:
                raise _Invalid(f"{each} was not found in region {region}")
            yield resource

    # --- values ---

    def _result(
        self, resource: MonitoredResource, asked: "_Asked", now: datetime
    ) -> dict[str, Any]:
        known = {name.lower(): name for name in resource.metrics}
        if unknown := [name for name in asked.metrics if name.lower() not in known]:
            valid = ", ".join(resource.metrics)
            raise _Invalid(
                f"Failed to find metric configuration for metric: {unknown[0]}. "
                f"Valid metrics: {valid}"
            )
        dimension = resource.dimension or self.dimension
        if any(name.lower() != dimension.lower() for name, _ in asked.conditions):
            raise _Invalid(
                f"Metric: {asked.metrics[0]} does not support requested dimension combination: "
                f"{asked.conditions[0][0]}, supported ones are: {dimension}"
            )
        return {
            "cost": len(asked.metrics),
            "timespan": f"{_text(asked.start)}/{_text(asked.end)}",
            "interval": asked.grain,
            "namespace": _type_of(resource.id.split("/providers/", 1)[1]),
            "resourceregion": resource.region,
            "value": [
                self._metric(resource, known[name.lower()], asked, now) for name in asked.metrics
            ],
        }

    def _metric(
        self, resource: MonitoredResource, name: str, asked: "_Asked", now: datetime
    ) -> dict[str, Any]:
        recorded = {entity: v for (metric, entity), v in resource.values.items() if metric == name}
        wanted = [value for _, value in asked.conditions]
        dimension = resource.dimension or self.dimension
        if wanted and wanted != ["*"]:
            recorded = {e: v for e, v in recorded.items() if e in wanted}
        some = dict(list(recorded.items())[: asked.series])
        groups = some if wanted else {"": _merged(list(recorded.values()))}
        return {
            "id": f"{resource.id}/providers/Microsoft.Insights/metrics/{name}",
            "type": "Microsoft.Insights/metrics",
            "name": {"value": name, "localizedValue": name},
            "displayDescription": name,
            "unit": "Count",
            "timeseries": [
                {
                    "metadatavalues": [
                        {"name": {"value": dimension.lower()}, "value": entity}
                        for entity in [entity]
                        if wanted
                    ],
                    "data": list(self._data(resource, name, values, asked, now)),
                }
                for entity, values in groups.items()
            ],
            "errorCode": "Success",
        }

    def _data(
        self,
        resource: MonitoredResource,
        name: str,
        values: Mapping[datetime, Sequence[float]],
        asked: "_Asked",
        now: datetime,
    ) -> Iterator[dict[str, Any]]:
        newest = _minute(now - timedelta(seconds=self.lag_seconds)) - MINUTE
        time = asked.start
        while time < asked.end:
            minutes = [time + n * MINUTE for n in range(GRAINS[asked.grain])]
            published = [m for m in minutes if m <= newest and m not in resource.unpublished]
            some = [v for m in published for v in self._known(values.get(m, ()), m == newest)]
            point: dict[str, Any] = {"timeStamp": _text(time)}
            if published and (some or resource.metrics[name]):
                point |= {each: _aggregate(some, each) for each in asked.aggregations}
            yield point
            time += GRAINS[asked.grain] * MINUTE

    def _known(self, values: Sequence[float], is_newest: bool) -> Sequence[float]:
        return values[: len(values) - int(len(values) * self.late_share)] if is_newest else values


class _Invalid(Exception):
    """A parameter that Azure refuses. The text of the exception is Azure's error message."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """The valid parameters of a query."""

    start: datetime
    end: datetime
    grain: str
    metrics: tuple[str, ...]
    aggregations: tuple[str, ...]
    conditions: tuple[tuple[str, str], ...]
    series: int
    """The most series of a query that is divided by a dimension."""

    @classmethod
    def of(cls, query: Mapping[str, str], start: str, end: str, condition: str) -> "_Asked":
        if query.get("api-version") != API_VERSION:
            raise _Invalid(f"api-version {query.get('api-version')!r} is not supported")
        grain = query.get("interval", "PT1M")
        if grain not in GRAINS:
            raise _Invalid(f"Detected invalid time grain input: {grain}")
        metrics = tuple(filter(None, query.get("metricnames", "").split(",")))
        if not 1 <= len(metrics) <= METRICS_MAX:
            raise _Invalid(f"{len(metrics)} metrics: a query may have 1 to {METRICS_MAX}")
        aggregations = tuple(query.get("aggregation", "average").lower().split(","))
        if wrong := [each for each in aggregations if each not in AGGREGATIONS]:
            raise _Invalid(f"aggregation {wrong[0]!r} is not supported")
        begin, until = _minute(_time(start)), _time(end)
        if not begin < until:
            raise _Invalid(f"The start time {start} must be before the end time {end}")
        begin = max(begin, _minute(until - QUERIED_MAX))
        series = int(query.get("top") or SERIES_USUAL)
        chosen = tuple(_conditions(condition))
        return cls(begin, until, grain, metrics, aggregations, chosen, series)


def _conditions(text: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r" or | and ", text) if text else ():
        match = _CONDITION.fullmatch(part.strip())
        if match is None:
            raise _Invalid(f"Invalid filter: {text}")
        yield match[1], match[2].replace("''", "'")


def _listed(body: bytes) -> Sequence[str]:
    try:
        ids = json.loads(body)["resourceids"]
    except (ValueError, LookupError, TypeError) as error:
        raise _Invalid("resourceids is missing") from error
    if not isinstance(ids, list) or not 1 <= len(ids) <= RESOURCES_MAX:
        raise _Invalid(f"resourceids: 1 to {RESOURCES_MAX} resources are allowed")
    return ids


def _type_of(path: str) -> str:
    provider, *rest = path.split("/")
    return "/".join([provider, *rest[::2]]).lower()


def _merged(
    series: Sequence[Mapping[datetime, Sequence[float]]],
) -> Mapping[datetime, Sequence[float]]:
    together: dict[datetime, list[float]] = defaultdict(list)
    for each in series:
        for time, values in each.items():
            together[time] += values
    return together


def _aggregate(values: Sequence[float], name: str) -> float:
    if name == "count":
        return float(len(values))
    if name == "total" or not values:
        return float(sum(values))
    if name == "average":
        return sum(values) / len(values)
    return max(values) if name == "maximum" else min(values)


def _minute(time: datetime) -> datetime:
    return time.replace(second=0, microsecond=0)


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError as error:
        raise _Invalid(f"Invalid time: {text!r}") from error


def _text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
