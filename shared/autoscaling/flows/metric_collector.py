"""metric_collector: read every source at once; one that fails never hides the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from shared.autoscaling.declaring import MetricSource, PlanCapacity, PushedMetric
from shared.autoscaling.flows.common import log_action
from shared.autoscaling.measurements import CAPACITY_METRIC, Metric
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import MetricReader

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceFailure:
    """A source that gave no value: the metric is missing, not zero."""

    resource_name: str
    metric_name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Collection:
    metrics: tuple[Metric, ...]
    failures: tuple[SourceFailure, ...]


async def run(
    resources: Iterable[Resource], reader: MetricReader, timeout_seconds: float
) -> Collection:
    """One metric per source that answered in time, and one failure per source that did not."""
    reads = [
        _read(resource.name, name, source, reader, timeout_seconds)
        for resource in resources
        for name, source in sources_of(resource).items()
    ]
    answers = await asyncio.gather(*reads)
    failures = tuple(a for a in answers if isinstance(a, SourceFailure))
    for failure in failures:
        text = f"{failure.metric_name} could not be read and is skipped: {failure.reason}"
        log_action(log, "source_failed", failure.resource_name, text, logging.WARNING)
    return Collection(tuple(a for a in answers if isinstance(a, Metric)), failures)


def sources_of(resource: Resource) -> dict[str, MetricSource]:
    """The sources that are to be read; the capacity of the target itself comes first."""
    read = {n: s for n, s in resource.metrics.items() if not isinstance(s, PushedMetric)}
    return {CAPACITY_METRIC: PlanCapacity(resource.target), **read}


async def _read(
    resource_name: str,
    name: str,
    source: MetricSource,
    reader: MetricReader,
    timeout_seconds: float,
) -> Metric | SourceFailure:
    try:
        async with asyncio.timeout(timeout_seconds):
            return Metric(resource_name, name, await reader.read(source))
    except TimeoutError:
        return SourceFailure(resource_name, name, f"no answer within {timeout_seconds:g} s")
    except Exception as error:
        return SourceFailure(resource_name, name, f"{type(error).__name__}: {error}")
