"""Adds the count that Azure Monitor has of the completed messages of every Service Bus queue and
topic, so that the rate is learned, or one that is set is checked, without a change of the workers.
It does not tell the subscriptions of a topic apart. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shared.autoscaling.azure_monitor.source import AzureMonitorMetric
from shared.autoscaling.policy import Resource
from shared.autoscaling.sources import MetricSeries, Source

COMPLETED = "completed-messages"
"""The name of the metric that is added to a resource."""
ABANDONED = "+abandoned"
"""The metric of abandoned deliveries, whose name no declared metric can have."""
NAMESPACES_SETTING = "ServiceBusNamespaceIds"
SOLE_CONNECTION = "ServiceBusConnection"


def namespace_ids(hosts: Mapping[str, str], ids: Sequence[str]) -> Mapping[str, str]:
    """The resource ID of the namespace of each connection, of which ``hosts`` has the host name. A
    single ID that no host name matches is that of ServiceBusConnection, whose host may be an
    alias."""
    by_name = {each.rpartition("/")[2].lower(): each for each in ids}
    names = {connection: host.partition(".")[0].lower() for connection, host in hosts.items()}
    found = {connection: by_name[name] for connection, name in names.items() if name in by_name}
    if len(ids) == 1 and not found and SOLE_CONNECTION in hosts:
        return {SOLE_CONNECTION: ids[0]}
    return found


def with_counts(resource: Resource, namespace_ids: Mapping[str, str]) -> Resource:
    """The resource, with a metric that counts its completed messages, if ``counted_backlog`` finds
    a backlog and its connection has one of the ``namespace_ids``."""
    backlog = counted_backlog(resource)
    if backlog is None or COMPLETED in resource.metrics:
        return resource
    namespace_id = namespace_ids.get(backlog.connection, "")
    if not namespace_id:
        return resource
    source = count_of(backlog, namespace_id, "CompleteMessage")
    return replace(
        resource,
        metrics={**resource.metrics, COMPLETED: source},
        throughput=replace(resource.throughput, completed_metric=COMPLETED),
    )


def count_of(backlog: Source, namespace_id: str, metric: str) -> AzureMonitorMetric:
    """The count that Azure Monitor has of the queue or topic of a backlog."""
    quoted = backlog.entity.replace("'", "''")
    return AzureMonitorMetric(namespace_id, metric, "total", filter=f"EntityName eq '{quoted}'")


def counted_backlog(resource: Resource) -> Source | None:
    """The backlog whose completed messages Azure Monitor can count; None if there is none, if the
    rate is set by hand and trusted, or if another metric counts items."""
    throughput = resource.throughput
    if throughput.rate_trusted or throughput.counted_metric not in (None, COMPLETED):
        return None
    source = resource.source(resource.backlog_metric)
    return source if source.entity else None


def counting_series(resource: Resource) -> MetricSeries | None:
    """The metric that ``with_counts`` added; None if it added none."""
    if resource.throughput.completed_metric != COMPLETED or counted_backlog(resource) is None:
        return None
    return resource.source(COMPLETED).series


def failures_metric(resource: Resource) -> str:
    """The metric of the deliveries that failed: of completed messages the abandoned ones, of
    arrivals the declared dead letters of the backlog."""
    place, metrics = resource.source(resource.backlog_metric).place, resource.metrics.items()
    here = [(name, each) for name, each in metrics if place and each.place == place]
    dead = [name for name, each in here if getattr(each, "count", "") == "dead_letter"]
    return ABANDONED if resource.throughput.completed_metric else "".join(dead[:1])


def why_not_counted(resource: Resource) -> str:
    """Why Azure Monitor does not count the completed messages, although the rate is not trusted."""
    backlog = counted_backlog(resource)
    if backlog is not None:
        return f"{NAMESPACES_SETTING} has no namespace of {backlog.connection}"
    names = [name for name, source in resource.metrics.items() if source.counts_backlog]
    if resource.backlog_metric is None and len(names) > 1:
        return f"the policy reads several backlogs ({', '.join(names)})"
    if any(resource.source(name).service == "storage" for name in names):
        return "Azure Monitor has no such counts of storage queues"
    if names:
        return f"Azure Monitor has no such counts of {type(resource.source(names[0])).__name__}"
    return "the policy reads no backlog"
