"""metric_collector: reads all sources concurrently. A failing source does not affect the others.

A source that several metrics name is read once, and all of them get its samples. A source of the
user's own class is read once for each object, because only its class knows what makes two equal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime

from shared.autoscaling.flows.common import log_action
from shared.autoscaling.flows.message_counts import HELPERS, MessageCounts
from shared.autoscaling.flows.reading import (
    OWN_READS,
    Answer,
    OwnReads,
    is_own,
    read_source,
)
from shared.autoscaling.messages import PLAN_FIELD
from shared.autoscaling.plan_facts import PlanFacts, PlanReading
from shared.autoscaling.policy import Resource
from shared.autoscaling.sources import PlanCapacity, Services, Source
from shared.notifications.conditions import each_cause
from shared.values.measurements import CAPACITY_METRIC, NOTHING, Metric, MetricValue
from shared.values.samples import encode_metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceFailure:
    """A source that returned no value. Its metric is missing, not zero."""

    resource_name: str
    metric_name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Collection:
    """The samples that were read, the sources that failed, and what Azure says about the plan of
    each resource."""

    metrics: tuple[Metric, ...]
    failures: tuple[SourceFailure, ...]
    plans: Mapping[str, PlanFacts] = field(default_factory=lambda: NOTHING)

    def messages(self) -> list[str]:
        """The messages of the queue ``metrics``."""
        plans = {name: {PLAN_FIELD: asdict(facts)} for name, facts in self.plans.items()}
        return encode_metrics(self.metrics, plans)


async def collect(
    resources: Iterable[Resource],
    services: Services,
    timeout_seconds: float,
    counts: MessageCounts | None = None,
    own: OwnReads = OWN_READS,
) -> Collection:
    """Read all sources: the samples of each that answers in time, and a failure of each other one.

    ``counts`` turns the counts of topics into those of subscriptions. A value without a time gets
    the time at which the capacity of its plan was read, by the clock of Azure Resource Manager; if
    the capacity could not be read either, that of the app's own clock.
    """
    counts = counts or MessageCounts()
    wanted = [(each, {**sources_of(each), **counts.sources(each)}) for each in resources]
    distinct = {_key(source): source for _, named in wanted for source in named.values()}
    read = (read_source(source, services, timeout_seconds, own) for source in distinct.values())
    answers = dict(zip(distinct, await asyncio.gather(*read), strict=True))
    collected, shown, plans = list[Metric](), list[SourceFailure](), dict[str, PlanFacts]()
    skipped = list[tuple[str, str]]()
    for resource, named in wanted:
        found = {name: answers[_key(source)] for name, source in named.items()}
        failures = {name: reason for name, reason in found.items() if isinstance(reason, str)}
        for each in found[CAPACITY_METRIC]:
            if isinstance(each, PlanReading):
                plans[resource.name] = each.facts
        collected += counts.adjusted(resource, list(_samples(resource, found, services)), failures)
        for name in failures.keys() - counts.logged(resource):
            text = f"{name} could not be read, so it is skipped: {failures[name]}"
            skipped.append((resource.name, text))
        shown += [SourceFailure(resource.name, *each) for each in failures.items()]
    for line in each_cause(skipped):
        log_action(log, "source_failed", *line, logging.WARNING)
    visible = tuple(failure for failure in shown if failure.metric_name not in HELPERS)
    return Collection(tuple(collected), visible, plans)


def _key(source: Source) -> Hashable:
    return id(source) if is_own(source) else (type(source), source)


def _samples(
    resource: Resource, answers: Mapping[str, Answer], services: Services
) -> Iterator[Metric]:
    """The samples of a resource. The capacity, whose time the undated ones get, comes first."""
    capacity_at: datetime | None = None
    for name, answer in answers.items():
        for each in () if isinstance(answer, str) else answer:
            if not isinstance(each, MetricValue):
                each = MetricValue(capacity_at or services.now(), each.value)  # noqa: PLW2901
            if name == CAPACITY_METRIC:
                capacity_at = each.time
            yield Metric(resource.name, name, each)


def sources_of(resource: Resource) -> dict[str, Source]:
    """The sources that the collector reads. The capacity of the target comes first."""
    declared = {name: source for name, source in resource.metrics.items() if not source.pushed}
    return {CAPACITY_METRIC: PlanCapacity(resource.target), **declared}
