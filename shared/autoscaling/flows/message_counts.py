"""Converts the counts of Azure Monitor to the completed messages from which a resource learns."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from shared.autoscaling.flows.common import log_action
from shared.autoscaling.learning.counts import (
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

INCOMING, ABANDONED, SUBSCRIPTIONS = "+incoming", "+abandoned", "+subscriptions"
"""The names of readings that only the collector needs. Declared metrics cannot have such names."""
HELPERS = (INCOMING, ABANDONED, SUBSCRIPTIONS)
READINGS = {
    COMPLETED: "completed messages",
    INCOMING: "incoming messages",
    SUBSCRIPTIONS: "the number of subscriptions of the topic",
    ABANDONED: "abandoned deliveries",
}
REMEMBERED = timedelta(minutes=30)
"""How long counts of abandoned deliveries are kept, and not logged again."""
NEVER = datetime.max.replace(tzinfo=UTC)

ESTIMATED = "estimated from the backlog, and the default policy plans with the low end of it"
MEANWHILE = f"Meanwhile the rate per instance stays as it was counted, or is {ESTIMATED}"


class MessageCounts:
    """Adjusts the counts of each resource, and logs why counts are missing. After a restart, the
    share of a subscription is learned again, and missing counts are logged again."""

    def __init__(self) -> None:
        self._histories: dict[str, ShareHistory] = {}
        self._abandoned: dict[str, tuple[MetricValue, ...]] = {}
        self._failing_at: dict[str, datetime] = {}
        self._told = defaultdict[str, set[str]](set)

    def sources(self, resource: Resource) -> Mapping[str, Source]:
        """The sources that must be read in addition to the metrics of the resource."""
        completed, backlog = counting_series(resource), counted_backlog(resource)
        if completed is None or backlog is None:
            return NOTHING
        namespace_id = completed.resource_id
        abandoned = {ABANDONED: count_of(backlog, namespace_id, "AbandonMessage")}
        if backlog.siblings is None:
            return abandoned
        return {
            **abandoned,
            INCOMING: count_of(backlog, namespace_id, "IncomingMessages"),
            SUBSCRIPTIONS: backlog.siblings,
        }

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
            values = self._finishing(resource, by_name)
        else:
            values = self._of_subscription(resource, by_name)
        return [*others, *(Metric(resource.name, COMPLETED, value) for value in values)]

    def _finishing(
        self, resource: Resource, by_name: Mapping[str, Sequence[MetricValue]]
    ) -> Sequence[MetricValue]:
        """The counts with abandoned deliveries, which are work, too. Left out are the minutes with
        more of them than completed messages, because something failed that the workers depend
        on."""
        kept = (*self._abandoned.get(resource.name, ()), *by_name.get(ABANDONED, ()))
        start = max((each.time for each in kept), default=NEVER) - REMEMBERED
        self._abandoned[resource.name] = tuple(each for each in kept if each.time >= start)
        abandoned = {each.time: each.value for each in kept}
        completed = by_name.get(COMPLETED, ())
        failing = [each for each in completed if abandoned.get(each.time, 0.0) > each.value]
        if failing:
            self._tell_failing(resource, failing[-1].time)
        return [
            replace(each, value=each.value + abandoned.get(each.time, 0.0))
            for each in completed
            if each not in failing
        ]

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
            self._told[resource.name] &= {"counts_shared"}
        for name, what in READINGS.items():
            if reason := failures.get(name):
                text = f"{what} cannot be read: {reason}"
                if name != ABANDONED:
                    text = f"{text}. {MEANWHILE}"
                self._tell(resource, "counts_unavailable", text, reason.partition(":")[0])
                return

    def _tell_failing(self, resource: Resource, minute: datetime) -> None:
        before = self._failing_at.get(resource.name)
        self._failing_at[resource.name] = minute
        if before is None or minute > before + REMEMBERED:
            text = (
                "the workers abandoned more deliveries than they completed in the minute up to "
                f"{minute:%H:%M} UTC: the rate per instance is not learned from such minutes. "
                "Check the workers and what they depend on"
            )
            log_action(log, "counts_abandoned", resource.name, text)

    def _tell(self, resource: Resource, action: str, text: str, cause: str = "") -> None:
        told = self._told[resource.name]
        if action + cause not in told:
            told.add(action + cause)
            log_action(log, action, resource.name, text)


def _last(values: Sequence[MetricValue] | None) -> MetricValue | None:
    return values[-1] if values else None
