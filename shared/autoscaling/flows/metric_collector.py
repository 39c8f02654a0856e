"""metric_collector: reads all sources concurrently. A failing source does not affect the others.

A source that several metrics name is read once, and all of them get its samples.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shared.autoscaling.declaring import (
    AzureMonitorMetric,
    MetricSource,
    PlanCapacity,
    PushedMetric,
    is_pushed,
)
from shared.autoscaling.flows.common import log_action
from shared.autoscaling.flows.message_counts import HELPERS, MessageCounts
from shared.autoscaling.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import MetricReader, PlatformMetrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceFailure:
    """A source that returned no value. Its metric is missing, not zero."""

    resource_name: str
    metric_name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Collection:
    """The samples that were read, and the sources that failed."""

    metrics: tuple[Metric, ...]
    failures: tuple[SourceFailure, ...]


PLATFORM_TIMES_LONGER = 2
"""All requests to Azure Monitor together may take this many times the time-out of a source, so that
they do not delay the other sources for longer. Each single request has the time-out of a source.
"""

Answer = Sequence[MetricValue] | str
"""The samples of a source, or the reason for having none."""
Answers = Mapping[MetricSource, Answer]


async def collect(
    resources: Iterable[Resource],
    reader: MetricReader,
    timeout_seconds: float,
    platform: PlatformMetrics | None = None,
    counts: MessageCounts | None = None,
) -> Collection:
    """Read all sources: the samples of each that answers in time, and a failure of each other one.

    ``platform`` reads the metrics of Azure Monitor. Without it, they are left out. ``counts`` turns
    the counts of topics into those of subscriptions.
    """
    resources, counts = list(resources), counts or MessageCounts()
    wanted = [
        (resource.name, name, source)
        for resource in resources
        for name, source in {**_all_sources_of(resource), **counts.sources(resource)}.items()
    ]
    sources = list(dict.fromkeys(source for *_, source in wanted))
    current = [s for s in sources if not isinstance(s, PushedMetric)]
    monitored = [s for s in sources if isinstance(s, AzureMonitorMetric)]
    from_platform, read = await asyncio.gather(
        _monitored(monitored, platform, PLATFORM_TIMES_LONGER * timeout_seconds),
        asyncio.gather(*(_read(source, reader, timeout_seconds) for source in current)),
    )
    answers: Answers = {**from_platform, **dict(zip(current, read, strict=True))}
    samples = defaultdict[str, list[Metric]](list)
    for sample in _samples(wanted, answers):
        samples[sample.resource_name].append(sample)
    collected, failures = list[Metric](), list(_failures(wanted, answers))
    for resource in resources:
        own = {f.metric_name: f.reason for f in failures if f.resource_name == resource.name}
        collected += counts.adjusted(resource, samples[resource.name], own)
        for name in own.keys() - counts.logged(resource):
            text = f"{name} could not be read, so it is skipped: {own[name]}"
            log_action(log, "source_failed", resource.name, text, logging.WARNING)
    shown = tuple(failure for failure in failures if failure.metric_name not in HELPERS)
    return Collection(tuple(collected), shown)


def _samples(wanted: Iterable[tuple[str, str, MetricSource]], answers: Answers) -> Iterator[Metric]:
    for resource_name, name, source in wanted:
        answer = answers.get(source, ())
        if not isinstance(answer, str):
            yield from (Metric(resource_name, name, value) for value in answer)


def _failures(
    wanted: Iterable[tuple[str, str, MetricSource]], answers: Answers
) -> Iterator[SourceFailure]:
    for resource_name, name, source in wanted:
        answer = answers.get(source, ())
        if isinstance(answer, str):
            yield SourceFailure(resource_name, name, answer)


def sources_of(resource: Resource) -> dict[str, MetricSource]:
    """The sources with a current value that the collector reads. The capacity of the target comes
    first."""
    every = _all_sources_of(resource)
    return {n: s for n, s in every.items() if not isinstance(s, PushedMetric)}


def monitored_sources_of(resource: Resource) -> dict[str, AzureMonitorMetric]:
    """The metrics of Azure Monitor that the collector reads."""
    every = _all_sources_of(resource)
    return {n: s for n, s in every.items() if isinstance(s, AzureMonitorMetric)}


def _all_sources_of(resource: Resource) -> dict[str, MetricSource]:
    declared = {n: s for n, s in resource.metrics.items() if not is_pushed(s)}
    return {CAPACITY_METRIC: PlanCapacity(resource.target), **declared}


async def _monitored(
    sources: Sequence[AzureMonitorMetric],
    platform: PlatformMetrics | None,
    timeout_seconds: float,
) -> Answers:
    if platform is None or not sources:
        return {}
    try:
        async with asyncio.timeout(timeout_seconds):
            found = await platform.read(sources)
    except TimeoutError:
        return dict.fromkeys(sources, f"no answer within {timeout_seconds:g} s")
    except Exception as error:
        return dict.fromkeys(sources, _reason(error))
    return {
        source: _reason(answer) if isinstance(answer, Exception) else answer
        for source, answer in found.items()
    }


async def _read(source: MetricSource, reader: MetricReader, timeout_seconds: float) -> Answer:
    try:
        async with asyncio.timeout(timeout_seconds):
            return (await reader.read(source),)
    except TimeoutError:
        return f"no answer within {timeout_seconds:g} s"
    except Exception as error:
        return _reason(error)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
