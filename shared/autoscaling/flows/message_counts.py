"""Converts the counts of Azure Monitor to the completed messages from which a resource learns."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set

from shared.autoscaling.flows.common import log_action
from shared.autoscaling.learning.counts import (
    ABANDONED,
    COMPLETED,
    NAMESPACES_SETTING,
    count_of,
    counted_backlog,
    counting_series,
    why_not_counted,
)
from shared.autoscaling.learning.subscription_share import ShareHistory, finished, with_readings
from shared.autoscaling.policy import Resource
from shared.autoscaling.sources import Source
from shared.values.measurements import (
    CAPACITY_METRIC,
    NOTHING,
    Metric,
    MetricValue,
)

log = logging.getLogger(__name__)

INCOMING, SUBSCRIPTIONS = "+incoming", "+subscriptions"
"""The names of readings that only the collector needs. Declared metrics cannot have such names."""
HELPERS = (INCOMING, ABANDONED, SUBSCRIPTIONS)
"""The readings in addition to the metrics of a resource."""
READINGS = {
    COMPLETED: "completed messages",
    INCOMING: "incoming messages",
    SUBSCRIPTIONS: "the number of subscriptions of the topic",
    ABANDONED: "abandoned deliveries",
}

ESTIMATED = "estimated from the backlog, and the default policy plans with the low end of it"


class MessageCounts:
    """Adjusts the counts of each resource, and logs why counts are missing. After a restart, the
    share of a subscription is learned again, and missing counts are logged again."""

    def __init__(self) -> None:
        self._histories: dict[str, ShareHistory] = {}
        self._told = defaultdict[str, set[str]](set)

    def sources(self, resource: Resource) -> Mapping[str, Source]:
        """The sources that must be read in addition to the metrics of the resource."""
        completed, backlog = counting_series(resource), counted_backlog(resource)
        if completed is None or backlog is None:
            return NOTHING
        namespace_id = completed.resource_id
        found: dict[str, Source] = {ABANDONED: count_of(backlog, namespace_id, "AbandonMessage")}
        if backlog.siblings is not None:
            found[SUBSCRIPTIONS] = backlog.siblings
            if resource.throughput.rate_per_instance_minute is None:
                found[INCOMING] = count_of(backlog, namespace_id, "IncomingMessages")
        return found

    def logged(self, resource: Resource) -> Set[str]:
        """The readings of the resource whose failures this class logs."""
        return READINGS.keys() if counting_series(resource) else frozenset()

    def adjusted(
        self,
        resource: Resource,
        metrics: Sequence[Metric],
        failures: Mapping[str, str] = NOTHING,
    ) -> Iterable[Metric]:
        """The samples of the resource, with the completed messages from which it can learn.
        ``failures`` maps the name of each failed reading to the reason."""
        backlog = counted_backlog(resource)
        if backlog is None or counting_series(resource) is None:
            self._tell_if_uncounted(resource)
            return metrics
        by_name = defaultdict[str, list[MetricValue]](list)
        for metric in metrics:
            by_name[metric.name].append(metric.value)
        self._tell_failures(resource, failures, worked=COMPLETED in by_name or INCOMING in by_name)
        others = [m for m in metrics if m.name not in (COMPLETED, *HELPERS)]
        count = by_name.get(SUBSCRIPTIONS)
        if backlog.siblings is None or (count and count[-1].value == 1):
            self._tell_if_failing(resource, by_name)
            return [m for m in metrics if m.name not in (INCOMING, SUBSCRIPTIONS)]
        if resource.throughput.rate_per_instance_minute is not None:
            return others  # an estimated share can contradict no setting
        values = self._of_subscription(resource, by_name)
        return [*others, *(Metric(resource.name, COMPLETED, value) for value in values)]

    def _of_subscription(
        self, resource: Resource, by_name: Mapping[str, Sequence[MetricValue]]
    ) -> Sequence[MetricValue]:
        """The completed messages of one of several subscriptions."""
        history = with_readings(
            self._histories.get(resource.name, ShareHistory()),
            _last(by_name.get(resource.backlog_metric or "")),
            _last(by_name.get(CAPACITY_METRIC)),
        )
        self._histories[resource.name], values = finished(history, by_name.get(INCOMING, ()))
        count = by_name.get(SUBSCRIPTIONS)
        if count and not values:
            self._tell(
                resource,
                "counts_shared",
                f"the topic has {count[-1].value:g} subscriptions, which Azure Monitor counts "
                "together: completed messages count once the share of this one is learned from its "
                f"backlog. Until then the rate per instance is {ESTIMATED}",
            )
        return values

    # --- log entries: each cause once, and again only if it ended in between ---

    def _tell_if_uncounted(self, resource: Resource) -> None:
        if resource.throughput.rate_per_instance_minute is not None:
            return
        if counted_backlog(resource) is not None and COMPLETED not in resource.metrics:
            self._tell(
                resource,
                "counts_unavailable",
                f"completed messages are not counted, because {why_not_counted(resource)}. "
                f"The rate per instance is {ESTIMATED}. To count them, add the resource "
                f"ID of the namespace to {NAMESPACES_SETTING}, and assign the app the role "
                "Monitoring Reader on it",
            )

    def _tell_failures(
        self, resource: Resource, failures: Mapping[str, str], *, worked: bool
    ) -> None:
        if worked:
            self._told[resource.name] &= {"counts_shared", "counts_abandoned"}
        for name, what in READINGS.items():
            if reason := failures.get(name):
                text = f"{what} cannot be read: {reason}"
                if name != ABANDONED:
                    text = f"{text}. {_meanwhile(resource)}"
                self._tell(resource, "counts_unavailable", text, reason.partition(":")[0])
                return

    def _tell_if_failing(
        self, resource: Resource, by_name: Mapping[str, Sequence[MetricValue]]
    ) -> None:
        abandoned = {each.time: each.value for each in by_name[ABANDONED]}
        for each in by_name[COMPLETED]:
            if abandoned.get(each.time, 0.0) <= each.value:
                self._told[resource.name].discard("counts_abandoned")
                continue
            text = (
                "the workers abandoned more deliveries than they completed in the minute up to "
                f"{each.time:%H:%M} UTC: the rate per instance is not learned from such minutes. "
                "Check the workers and what they depend on"
            )
            self._tell(resource, "counts_abandoned", text)

    def _tell(self, resource: Resource, action: str, text: str, cause: str = "") -> None:
        told = self._told[resource.name]
        if action + cause not in told:
            told.add(action + cause)
            log_action(log, action, resource.name, text)


def _meanwhile(resource: Resource) -> str:
    if resource.throughput.rate_per_instance_minute is not None:
        return "After an hour, the rate that is set is compared with the backlog alone"
    return f"Meanwhile the rate per instance stays as it was counted, or is {ESTIMATED}"


def _last(values: Sequence[MetricValue] | None) -> MetricValue | None:
    return values[-1] if values else None
