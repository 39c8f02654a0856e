"""metric_collector: reads all sources concurrently. A failing source does not affect the others.

Plans are read once a minute. A source that several metrics name is read once, and all get its
samples. A source of the user's own class is read once for each object.
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
    PlanReadings,
    is_own,
    read_source,
)
from shared.autoscaling.messages import PLAN_FIELD
from shared.autoscaling.plan_facts import PlanFacts, PlanReading
from shared.autoscaling.policy import Resource
from shared.autoscaling.sources import PlanCapacity, Services, Source
from shared.notifications.conditions import each_cause
from shared.values.measurements import CAPACITY_METRIC, NOTHING, Metric, MetricValue
from shared.values.samples import encode_metrics, together

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceFailure:
    """A source that returned no value. Its metric is missing, not zero."""

    resource_name: str
    metric_name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Collection:
    """The samples that were read, the sources that failed, and what Azure says about the plans."""

    metrics: tuple[Metric, ...]
    failures: tuple[SourceFailure, ...]
    plans: Mapping[str, PlanFacts] = field(default_factory=lambda: NOTHING)

    def messages(self, resources_max: int = 1) -> list[str]:
        """The messages of the queue ``metrics``, for up to ``resources_max`` resources each."""
        plans = {name: {PLAN_FIELD: asdict(facts)} for name, facts in self.plans.items()}
        return together(encode_metrics(self.metrics, plans), resources_max)


async def collect(
    resources: Iterable[Resource],
    services: Services,
    timeout_seconds: float,
    counts: MessageCounts | None = None,
    own: OwnReads = OWN_READS,
    readings: PlanReadings | None = None,
) -> Collection:
    """Read all sources: the samples of each that answers in time, and a failure of each other one.

    ``counts`` turns the counts of topics into those of subscriptions. ``readings`` says which plans
    are due, by default all. A value without a time gets the time at which its plan was read, by the
    clock of Azure Resource Manager; or else the time that this clock has now, as far as it is
    known.
    """
    counts, readings, now = counts or MessageCounts(), readings or PlanReadings(), services.now()
    wanted = [(each, {**sources_of(each), **counts.sources(each)}) for each in resources]
    distinct = _due(wanted, readings, now)
    read = (read_source(source, services, timeout_seconds, own) for source in distinct.values())
    answers = dict(zip(distinct, await asyncio.gather(*read), strict=True))
    for key, answer in answers.items():
        if type(distinct[key]) is PlanCapacity:
            readings.note(key, answer, now, services.now())
    collected, shown, plans = list[Metric](), list[SourceFailure](), dict[str, PlanFacts]()
    skipped = list[tuple[str, str]]()
    for resource, named in wanted:
        keys = {name: _key(source) for name, source in named.items()}
        found = {name: answers[key] for name, key in keys.items() if key in answers}
        failures = {name: reason for name, reason in found.items() if isinstance(reason, str)}
        for each in found.get(CAPACITY_METRIC, ()):
            if isinstance(each, PlanReading):
                plans[resource.name] = each.facts
        undated = readings.server_time(services.now())
        collected += counts.adjusted(resource, list(_samples(resource, found, undated)), failures)
        texts = [
            f"{name} could not be read, so it is skipped: {failures[name]}"
            for name in failures.keys() - counts.logged(resource)
        ]
        texts += readings.unread(keys[CAPACITY_METRIC], now)
        skipped += [(resource.name, text) for text in texts]
        shown += [SourceFailure(resource.name, *each) for each in failures.items()]
    for line in each_cause(skipped):
        log_action(log, "source_failed", *line, logging.WARNING)
    visible = tuple(failure for failure in shown if failure.metric_name not in HELPERS)
    return Collection(tuple(collected), visible, plans)


def _due(
    wanted: Iterable[tuple[Resource, Mapping[str, Source]]], readings: PlanReadings, now: datetime
) -> dict[Hashable, Source]:
    """The sources to read. A plan is always read for a metric of the rules. The plans come first,
    in the order in which they may use up a limit of requests."""
    targets = {_key(named[CAPACITY_METRIC]): named[CAPACITY_METRIC] for _, named in wanted}
    due = {key: targets[key] for key in readings.due(targets, now)}
    others = (s for _, named in wanted for name, s in named.items() if name != CAPACITY_METRIC)
    return {**due, **{_key(source): source for source in others}}


def _key(source: Source) -> Hashable:
    return id(source) if is_own(source) else (type(source), source)


def _samples(
    resource: Resource, answers: Mapping[str, Answer], undated: datetime
) -> Iterator[Metric]:
    """The samples of a resource. The capacity, whose time the undated ones get, comes first."""
    capacity_at: datetime | None = None
    for name, answer in answers.items():
        for each in () if isinstance(answer, str) else answer:
            if not isinstance(each, MetricValue):
                each = MetricValue(capacity_at or undated, each.value)  # noqa: PLW2901
            if name == CAPACITY_METRIC:
                capacity_at = each.time
            yield Metric(resource.name, name, each)


def sources_of(resource: Resource) -> dict[str, Source]:
    """The sources that the collector reads. The capacity of the target comes first."""
    declared = {name: source for name, source in resource.metrics.items() if not source.pushed}
    return {CAPACITY_METRIC: PlanCapacity(resource.target), **declared}
