"""Counts of finished messages that Azure Monitor has of every Service Bus queue and topic. Pure.

The throughput per instance is learned from them without a line in the workers. They have no
dimension for a subscription: those of a topic are those of its subscription only if it has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shared.autoscaling.declaring import (
    AzureMonitorMetric,
    ServiceBusQueue,
    ServiceBusSubscription,
)
from shared.autoscaling.policy import Resource
from shared.autoscaling.transition import backlog_name

COMPLETED = "completed-messages"
"""The name of the metric that is added to a resource."""


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


def shared_topic(resource: Resource) -> ServiceBusSubscription | None:
    """The subscription whose topic must be asked for its number of subscriptions."""
    if COMPLETED not in resource.metrics:
        return None
    backlog = counted_backlog(resource)
    return backlog if isinstance(backlog, ServiceBusSubscription) else None
