"""Turns the counts of a topic into those of the one subscription that a resource works off."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from shared.autoscaling.counts import COMPLETED, counted_backlog, shared_topic
from shared.autoscaling.declaring import AzureMonitorMetric, MetricSource, TopicSubscriptions
from shared.autoscaling.flows.common import log_action
from shared.autoscaling.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.autoscaling.policy import Resource
from shared.autoscaling.subscription_share import ShareHistory, finished, with_readings
from shared.autoscaling.transition import backlog_name

log = logging.getLogger(__name__)

INCOMING, SUBSCRIPTIONS = "+incoming", "+subscriptions"
"""Readings that only the collector needs. No declared metric may have such a name."""


class MessageCounts:
    """Remembers, for each resource on a topic, what the share of its subscription is learned from.

    It lives as long as the process. After a restart, the share is learned again.
    """

    def __init__(self) -> None:
        self._histories: dict[str, ShareHistory] = {}
        self._told: set[str] = set()

    def sources(self, resource: Resource) -> Mapping[str, MetricSource]:
        """What must be read besides the metrics of the resource."""
        backlog = shared_topic(resource)
        if backlog is None:
            return {}
        completed = resource.metrics[COMPLETED]
        assert isinstance(completed, AzureMonitorMetric)
        return {
            INCOMING: replace(completed, metric="IncomingMessages"),
            SUBSCRIPTIONS: TopicSubscriptions(backlog.topic, backlog.connection),
        }

    def adjusted(self, resource: Resource, metrics: Sequence[Metric]) -> Iterable[Metric]:
        """The samples of the resource, with finished messages of its subscription alone.

        Those of a topic with one subscription stay as they are.
        """
        if COMPLETED not in resource.metrics and counted_backlog(resource) is not None:
            self._tell(
                resource,
                "counts_unavailable",
                "finished messages are not counted, so the throughput is learned from the backlog, "
                "which is slow: set ServiceBusNamespaceId, and assign Monitoring Reader on it",
            )
        if shared_topic(resource) is None:
            return metrics
        by_name: dict[str, list[MetricValue]] = {}
        for metric in metrics:
            by_name.setdefault(metric.name, []).append(metric.value)
        others = [m for m in metrics if m.name not in (INCOMING, SUBSCRIPTIONS, COMPLETED)]
        count = by_name.get(SUBSCRIPTIONS)
        if count and count[-1].value == 1:
            return [*others, *_metrics(resource, by_name.get(COMPLETED, ()))]
        history = with_readings(
            self._histories.get(resource.name, ShareHistory()),
            _last(by_name.get(backlog_name(resource) or "")),
            _last(by_name.get(CAPACITY_METRIC)),
        )
        self._histories[resource.name], values = finished(history, by_name.get(INCOMING, ()))
        if count and not values:
            self._tell(
                resource,
                "counts_shared",
                f"the topic has {count[-1].value:g} subscriptions, which Azure Monitor counts "
                "together: finished messages count once the share of this one is learned from its "
                "backlog",
            )
        return [*others, *_metrics(resource, values)]

    def _tell(self, resource: Resource, action: str, text: str) -> None:
        if resource.name not in self._told:
            self._told.add(resource.name)
            log_action(log, action, resource.name, text)


def _metrics(resource: Resource, values: Iterable[MetricValue]) -> list[Metric]:
    return [Metric(resource.name, COMPLETED, value) for value in values]


def _last(values: Sequence[MetricValue] | None) -> MetricValue | None:
    return values[-1] if values else None
