"""Reads metrics from Azure Monitor, for many resources in one request if the app's role permits it.

Azure Resource Manager returns the metrics of one resource, for which Monitoring Reader on it is
enough. The data plane returns those of up to 50 resources of a region. It requires Monitoring
Reader on the whole subscription, and otherwise answers 401 or 403. The first query for a resource
is for that resource alone, and the answer also names its region. From then on, several resources of
a region are queried as a batch, and alone again if the batch is denied.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlsplit

from azure.core.exceptions import AzureError, HttpResponseError
from azure.core.rest import HttpRequest

from shared.autoscaling.azure_monitor.queries import (
    DENIED_FOR,
    QUERY_EVERY,
    MetricPoint,
    MetricQuery,
    Taken,
    Throttling,
    combined,
    one_by_one,
    plan_queries,
    resource_key,
    take,
    throttled,
)
from shared.autoscaling.azure_monitor.source import AzureMonitorMetric, PlatformReading
from shared.autoscaling.errors import ReadDenied, ReadFailed
from shared.azure.arm import ArmClient, arm_client
from shared.azure.budget import ArmBudget
from shared.azure.refusals import Access
from shared.azure.transport import is_loopback, retry_after_seconds
from shared.values.news import stamp
from shared.values.redaction import redacting
from shared.values.text import one_line, quoted

log = logging.getLogger(__name__)

API_VERSION = "2024-02-01"
CONCURRENT_MAX = 8
DENIED = (401, 403)
THROTTLED = (429, 503, 529)
"""The data plane answers 529 where Resource Manager answers 429."""
NOT_AS_A_WHOLE = (400, 404)
"""Statuses with which a whole request may fail because of a single resource or metric."""
BATCH_HOSTS = {
    "management.azure.com": "metrics.monitor.azure.com",
    "management.chinacloudapi.cn": "metrics.monitor.azure.cn",
    "management.usgovcloudapi.net": "metrics.monitor.azure.us",
}
INSIGHTS = "/providers/microsoft.insights/"
REMEDY = (
    "[metrics_one_by_one] The app queries the metrics of subscription %s one resource at a time, "
    "because it has no permission to query the whole subscription. This works, but takes more "
    "requests (Azure allows 12,000 an hour). To query many resources in one request, assign the "
    "app the role Monitoring Reader on the subscription"
)

Answers = dict[AzureMonitorMetric, list[MetricPoint] | ReadFailed]


class QueryRefused(ReadFailed):
    """Azure Monitor answered a query with an HTTP status that is an error."""

    def __init__(self, message: str, status: int, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


@redacting
class AzurePlatformMetrics:
    """See PlatformMetrics. Each source is queried once in ``QUERY_EVERY``."""

    def __init__(
        self,
        arm_endpoint: str,
        timeout_seconds: float,
        clock: Callable[[], datetime],
        budget: ArmBudget | None = None,
    ) -> None:
        endpoint, self._budget = arm_endpoint.rstrip("/"), budget
        self._endpoint, self._timeout_seconds, self._clock = endpoint, timeout_seconds, clock
        self._clients: dict[str, ArmClient] = {}
        self._turns = asyncio.Semaphore(CONCURRENT_MAX)
        self._asked_at: dict[AzureMonitorMetric, datetime] = {}
        self._taken: dict[AzureMonitorMetric, Taken] = {}
        self._regions: dict[str, str] = {}
        self._denied_until: dict[str, datetime] = {}
        """Until when subscriptions whose batches were denied, and resources, are not queried."""
        self._denials: dict[AzureMonitorMetric, str] = {}
        self._throttling: dict[str, Throttling] = {}

    async def read(
        self, sources: Sequence[AzureMonitorMetric]
    ) -> Mapping[AzureMonitorMetric, PlatformReading]:
        now = self._clock()
        denied = {each for each, until in self._denied_until.items() if until > now}
        allowed = [s for s in dict.fromkeys(sources) if resource_key(s) not in denied]
        due = [s for s in allowed if self._is_due(s, now)]
        self._asked_at.update(dict.fromkeys(due, now))
        regions = self._regions if batch_address(self._endpoint, "") else {}
        found = await self._all(plan_queries(due, regions, denied))
        return {source: self._new(source, answer) for source, answer in found.items()}

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    def _is_due(self, source: AzureMonitorMetric, now: datetime) -> bool:
        asked_at = self._asked_at.get(source)
        return asked_at is None or not now - QUERY_EVERY < asked_at <= now

    def _new(
        self, source: AzureMonitorMetric, answer: list[MetricPoint] | ReadFailed
    ) -> PlatformReading:
        if isinstance(answer, ReadFailed):
            return answer
        samples, self._taken[source] = take(
            answer, self._taken.get(source, Taken()), source, self._clock()
        )
        return samples

    # --- one request, and what follows from its failure ---

    async def _answers(self, query: MetricQuery) -> Answers:
        try:
            return await self._asked(query)
        except QueryRefused as error:
            if query.region and error.status in DENIED:
                self._deny(query.subscription_id)
                return await self._all(one_by_one(query))
            if error.status in DENIED:
                return self._denied(query, str(error))
            if error.status in NOT_AS_A_WHOLE and query.region:
                return await self._all(one_by_one(query))
            if error.status in NOT_AS_A_WHOLE and len(query.metrics) > 1:
                return await self._all(one_by_one(query, metrics_too=True))
            return dict.fromkeys(query.sources, error)
        except ReadFailed as error:
            return dict.fromkeys(query.sources, error)

    def _denied(self, query: MetricQuery, message: str) -> Answers:
        """The error for the sources of a resource whose query was denied, which is returned only
        once. The resource is queried again after an hour."""
        self._denied_until[query.place] = self._clock() + DENIED_FOR
        new = [source for source in query.sources if self._denials.get(source) != message]
        self._denials.update(dict.fromkeys(new, message))
        return dict.fromkeys(new, ReadDenied(message))

    async def _all(self, queries: Iterable[MetricQuery]) -> Answers:
        found: Answers = {}
        for each in await asyncio.gather(*(self._answers(query) for query in queries)):
            found.update(each)
        return found

    async def _asked(self, query: MetricQuery) -> Answers:
        now, place = self._clock(), query.place
        waiting = self._throttling.get(place)
        if waiting is not None and now < waiting.until:
            raise ReadFailed(
                f"Azure Monitor throttles {place}: the next query is at "
                f"{waiting.until.isoformat(timespec='seconds')}"
            )
        try:
            async with self._turns, asyncio.timeout(self._timeout_seconds):
                found = await (self._batch(query, now) if query.region else self._one(query, now))
        except TimeoutError as error:
            message = f"{place}: no answer within {self._timeout_seconds:g} s"
            raise ReadFailed(message) from error
        except QueryRefused as error:
            if error.status in THROTTLED:
                self._throttling[place] = throttled(waiting, now, error.retry_after)
            raise
        except AzureError as error:
            raise _refused(error, query) from error
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ReadFailed(f"{place}: the answer does not describe metrics: {error}") from error
        self._throttling.pop(place, None)
        for source in found:
            self._denials.pop(source, None)
        return found

    def _deny(self, subscription_id: str) -> None:
        if subscription_id not in self._denied_until:
            log.warning(REMEDY, subscription_id, extra={"action": "metrics_one_by_one"})
        self._denied_until[subscription_id] = self._clock() + DENIED_FOR

    # --- the two interfaces ---

    async def _one(self, query: MetricQuery, now: datetime) -> Answers:
        (resource_id,) = query.resource_ids
        parameters = {
            "timespan": f"{stamp(query.start(now))}/{stamp(now)}",
            "$filter": query.filter,
            "metricnamespace": query.sources[0].namespace,
        }
        path = f"{resource_id}/providers/Microsoft.Insights/metrics"
        body = await self._sent(query, path, parameters)
        if region := str(body.get("resourceregion") or ""):
            self._regions[resource_id] = region.replace(" ", "").lower()
        return _answers(query, {(resource_id, _name(each)): each for each in body["value"]})

    async def _batch(self, query: MetricQuery, now: datetime) -> Answers:
        parameters = {
            "starttime": stamp(query.start(now)),
            "endtime": stamp(now),
            "filter": query.filter,
            "metricnamespace": query.namespace,
        }
        path = f"/subscriptions/{query.subscription_id}/metrics:getBatch"
        body = await self._sent(query, path, parameters)
        metrics = [metric for result in body["values"] for metric in result["value"]]
        found = {
            (each["id"].lower().rpartition(INSIGHTS)[0], _name(each)): each for each in metrics
        }
        return _answers(query, found)

    async def _sent(self, query: MetricQuery, path: str, parameters: Mapping[str, str]) -> Any:
        """The answer to a query. Raises QueryRefused, and the errors of the client."""
        asked = {
            "metricnames": ",".join(name.replace(",", "%2") for name in query.metrics),
            "aggregation": ",".join(query.aggregations),
            "interval": query.grain,
            **parameters,
        }
        client, ids = self._client(query.region), query.resource_ids if query.region else ()
        response = await client.send_request(request_of(client.format_url(path), asked, ids))
        if response.status_code != 200:
            raise _refused(HttpResponseError(response=response), query)
        body = response.json()
        return json.loads(body) if isinstance(body, str) else body  # the service may encode twice

    def _client(self, region: str) -> ArmClient:
        """The client of the data plane in a region, or of Resource Manager without a region."""
        if region not in self._clients:
            address = batch_address(self._endpoint, region) if region else None
            endpoint, audience = address or (self._endpoint, self._endpoint)
            budget = None if region else self._budget
            self._clients[region] = arm_client(endpoint, audience=audience, budget=budget)
        return self._clients[region]


def request_of(
    url: str, parameters: Mapping[str, str], resource_ids: Sequence[str] = ()
) -> HttpRequest:
    """The request for the metrics of one resource, or of several, without empty parameters."""
    asked = {"api-version": API_VERSION, **parameters}
    return HttpRequest(
        "POST" if resource_ids else "GET",
        url,
        params={name: quote(text, safe="/:,") for name, text in asked.items() if text},
        json={"resourceids": resource_ids} if resource_ids else None,
    )


def batch_address(arm_endpoint: str, region: str) -> tuple[str, str] | None:
    """The address of the data plane in a region, and the audience of its tokens; None for an
    unknown cloud. A loopback address belongs to a local stand-in, which serves both interfaces."""
    if is_loopback(arm_endpoint):
        return f"{arm_endpoint}/regions/{region}", arm_endpoint
    host = BATCH_HOSTS.get(urlsplit(arm_endpoint).hostname or "")
    return (f"https://{region}.{host}", f"https://{host}") if host else None


def _name(metric: Any) -> str:
    return str(metric["name"]["value"]).lower()


def _answers(query: MetricQuery, metrics: Mapping[tuple[str, str], Any]) -> Answers:
    keys = {source: (resource_key(source), source.metric.lower()) for source in query.sources}
    return {source: _points(source, metrics.get(key)) for source, key in keys.items()}


def _points(source: AzureMonitorMetric, metric: Any) -> list[MetricPoint] | ReadFailed:
    if metric is None:
        return ReadFailed(f"{source.resource_id}: no answer for {source.metric}")
    if (code := metric.get("errorCode", "Success")) != "Success":
        return ReadFailed(f"{source.metric}: {code}: {quoted(metric.get('errorMessage'))}")
    values: dict[datetime, list[float]] = {}
    for point in [point for series in metric["timeseries"] for point in series["data"]]:
        if (value := point.get(source.aggregation)) is not None:
            time = datetime.fromisoformat(point["timeStamp"])
            values.setdefault(time, []).append(float(value))
    return [MetricPoint(t, combined(v, source.aggregation)) for t, v in values.items()]


def _refused(error: AzureError, query: MetricQuery) -> ReadFailed:
    status = error.status_code if isinstance(error, HttpResponseError) else None
    message = f"{query.place}: {status or type(error).__name__}: {one_line(error.message)}"
    if status is None:
        return ReadFailed(Access(query.place, "Monitoring Reader").refusal(error) or message)
    if status in DENIED:
        message += (
            " (assign the app's identity the role Monitoring Reader on the resource; a new role "
            "takes effect within about ten minutes)"
        )
    if status == 404:
        message += " (check the resource ID in scaling_rules.py)"
    assert isinstance(error, HttpResponseError)
    seconds = retry_after_seconds(error.response)
    wait = None if seconds is None else timedelta(seconds=seconds)
    return QueryRefused(message, status, wait)
