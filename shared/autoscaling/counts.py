"""Counts of finished messages that Azure Monitor has of every Service Bus queue and topic. Pure.

The throughput per instance is learned from them without a line in the workers. They have no
dimension for a subscription: those of a topic are those of its subscription only if it has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from shared.autoscaling.declaring import (
    AzureMonitorMetric,
    ServiceBusQueue,
    ServiceBusSubscription,
    StorageQueue,
)
from shared.autoscaling.measurements import MetricValue
from shared.autoscaling.policy import Resource
from shared.autoscaling.transition import backlog_name, counts_backlog

COMPLETED = "completed-messages"
"""The name of the metric that is added to a resource."""
NAMESPACES_SETTING = "ServiceBusNamespaceIds"
SOLE_CONNECTION = "ServiceBusConnection"


def namespace_ids(hosts: Mapping[str, str], ids: Sequence[str]) -> Mapping[str, str]:
    """The resource ID of the namespace of each connection, whose host names are ``hosts``.

    The name of a namespace is the first part of its host name. If the only ID belongs to none of
    them, it is that of ServiceBusConnection: an alias of a namespace has a name of its own.
    """
    by_name = {each.rpartition("/")[2].lower(): each for each in ids}
    names = {connection: host.partition(".")[0].lower() for connection, host in hosts.items()}
    found = {connection: by_name[name] for connection, name in names.items() if name in by_name}
    if len(ids) == 1 and not found and SOLE_CONNECTION in hosts:
        return {SOLE_CONNECTION: ids[0]}
    return found


def with_counts(resource: Resource, namespace_ids: Mapping[str, str]) -> Resource:
    """The resource with the count of its finished messages, if the rules leave it open.

    ``namespace_ids`` has the resource ID of the namespace of each connection. Nothing is added if
    the rate is set by hand, another metric counts, or the policy reads no backlog of Service Bus or
    several.
    """
    backlog = counted_backlog(resource)
    if backlog is None or COMPLETED in resource.metrics:
        return resource
    namespace_id = namespace_ids.get(backlog.connection, "")
    if not namespace_id:
        return resource
    entity = backlog.queue if isinstance(backlog, ServiceBusQueue) else backlog.topic
    quoted = entity.replace("'", "''")
    source = AzureMonitorMetric(
        namespace_id, "CompleteMessage", "total", filter=f"EntityName eq '{quoted}'"
    )
    return replace(
        resource,
        metrics={**resource.metrics, COMPLETED: source},
        throughput=replace(resource.throughput, completed_metric=COMPLETED),
    )


def counted_backlog(resource: Resource) -> ServiceBusQueue | ServiceBusSubscription | None:
    """The backlog whose finished messages Azure Monitor can count, if nothing else counts them."""
    throughput = resource.throughput
    declared = throughput.counted_metric
    if throughput.rate_per_instance_minute is not None or declared not in (None, COMPLETED):
        return None
    source = resource.metrics.get(backlog_name(resource) or "")
    return source if isinstance(source, ServiceBusQueue | ServiceBusSubscription) else None


def counting_source(resource: Resource) -> AzureMonitorMetric | None:
    """The metric that ``with_counts`` added; None if it added none."""
    if resource.throughput.completed_metric != COMPLETED or counted_backlog(resource) is None:
        return None
    source = resource.metrics.get(COMPLETED)
    return source if isinstance(source, AzureMonitorMetric) else None


def shared_topic(resource: Resource) -> ServiceBusSubscription | None:
    """The subscription whose topic must be asked for its number of subscriptions."""
    if counting_source(resource) is None:
        return None
    backlog = counted_backlog(resource)
    return backlog if isinstance(backlog, ServiceBusSubscription) else None


def why_not_counted(resource: Resource) -> str:
    """Why Azure Monitor counts no finished messages of a resource whose throughput is not known."""
    backlog = counted_backlog(resource)
    if backlog is not None:
        return f"{NAMESPACES_SETTING} has no namespace of {backlog.connection}"
    names = [name for name, source in resource.metrics.items() if counts_backlog(source)]
    if backlog_name(resource) is None and len(names) > 1:
        return f"the policy reads several backlogs ({', '.join(names)})"
    if any(isinstance(resource.metrics[name], StorageQueue) for name in names):
        return "Azure Monitor has no such counts of storage queues"
    return "the policy reads no backlog"


def with_finishing_workers(
    completed: Iterable[MetricValue], abandoned: Iterable[MetricValue]
) -> tuple[list[MetricValue], list[MetricValue]]:
    """The counts of minutes in which the workers finished messages, and those of the others.

    In the others they abandoned more deliveries than they completed. That happens while something
    that they depend on fails, and says nothing of what an instance finishes in a minute.
    """
    given_up = {each.time: each.value for each in abandoned}
    finishing, failing = list[MetricValue](), list[MetricValue]()
    for each in completed:
        fails = given_up.get(each.time, 0.0) > each.value
        (failing if fails else finishing).append(each)
    return finishing, failing
