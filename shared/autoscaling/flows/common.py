"""Helpers of all flows: find resources, retry lost updates, read the store's clock, write logs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from shared.autoscaling.acting.activation import Standing, told
from shared.autoscaling.errors import BadMessage, StateConflict, StateUnreadable, UnknownResource
from shared.autoscaling.learning.counts import ABANDONED
from shared.autoscaling.messages import Samples, summary
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import Snapshot, StateStore
from shared.values.concurrency import task_runner
from shared.values.measurements import CAPACITY_METRIC, Metric
from shared.values.text import listed, quoted

NAMED_MAX = 20
"""The most declared resources that an error names."""


def find(resources: Mapping[str, Resource], name: str) -> Resource:
    """The declared resource of this name. Raises UnknownResource."""
    if name not in resources:
        declared = listed(sorted(resources), NAMED_MAX) or "none"
        raise UnknownResource(
            f"resource {quoted(name)} is not declared in scaling_rules.py (declared: {declared})"
        )
    return resources[name]


def check_metric_name(resource: Resource, name: str, *, sent: bool = False) -> None:
    """Raises UnknownResource if the resource does not declare the metric. If it was ``sent`` by a
    sender outside the app, only a QueueMetric is accepted, so that it cannot replace what the app
    reads itself."""
    metric = f"metric {quoted(name)} of {resource.name!r}"
    if name not in (CAPACITY_METRIC, ABANDONED) and name not in resource.metrics:
        declared = ", ".join(sorted(resource.metrics))
        raise UnknownResource(
            f"{metric} is not declared in scaling_rules.py (declared: {declared})"
        )
    source = resource.source(name)
    if sent and not source.is_sent:
        kind = "PlanCapacity" if name == CAPACITY_METRIC else type(source).__name__
        by_hub = source.pushed and source.needs_hub
        other = "send it to the event hub" if by_hub else "the app reads it itself"
        raise UnknownResource(
            f"{metric} is a {kind}, not a QueueMetric: {other}, or declare it as QueueMetric()"
        )


def declared_samples(
    samples: Samples, resource: Resource, *, sent: bool = False
) -> tuple[list[Metric], list[BadMessage]]:
    """The samples of declared metrics, and the errors of all others. See ``check_metric_name``."""
    metrics, refused = list[Metric](), list(samples.refused)
    for metric in samples.metrics:
        try:
            check_metric_name(resource, metric.name, sent=sent)
            metrics.append(metric)
        except BadMessage as error:
            refused.append(error)
    return metrics, refused


ATTEMPTS_MAX = 10
"""After this many conflicts in a row, the message goes back to the queue."""
CONCURRENT_MAX = 16

T = TypeVar("T")
R = TypeVar("R")


async def until_won(resource_name: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat ``attempt`` after each conflict. Raises StateConflict after too many."""
    for _ in range(ATTEMPTS_MAX):
        try:
            return await attempt()
        except StateConflict:
            continue
    raise StateConflict(
        f"{resource_name}: other writers changed its state during each of {ATTEMPTS_MAX} attempts"
    )


async def store_time(resource_name: str, store: StateStore) -> datetime:
    """The current time of the store's clock, even if the resource's state cannot be read."""
    try:
        return (await store.load(resource_name)).read_at
    except StateUnreadable as error:
        return error.read_at


async def work_through(
    items: Sequence[T], work: Callable[[T], Awaitable[R]], budget_seconds: float
) -> tuple[list[R], list[T], str]:
    """Work on the items concurrently. Returns the results, and the items that failed or that the
    time budget does not cover, with the reasons."""
    results, left, errors = list[R](), dict(enumerate(items)), list[str]()

    async def work_on(place: int) -> None:
        try:
            results.append(await work(items[place]))
            del left[place]
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")

    with suppress(TimeoutError):
        async with asyncio.timeout(budget_seconds):
            run_tasks = task_runner(CONCURRENT_MAX)
            await run_tasks(partial(work_on, place) for place in range(len(items)))
    if late := len(left) - len(errors):
        errors.insert(0, f"{late} not within {budget_seconds:g} s")
    return results, list(left.values()), f"{len(left)} of {len(items)}: {summary(errors)}"


def log_action(
    log: logging.Logger, action: str, name: str, text: str, level: int = logging.INFO, **more: Any
) -> None:
    """Log ``[action] resource: text``, with the action, the resource and ``more`` as fields."""
    extra = {**more, "action": action, "resource": name}
    log.log(level, "[%s] %s: %s", action, name, text, extra=extra)


def log_standing(log: logging.Logger, snapshot: Snapshot, stands: Standing) -> None:
    """Log that a version of the rules was activated, or that this copy only stores samples."""
    before, rules, name = snapshot.state.rules, stands.rules, snapshot.resource_name
    if rules is not None and not stands.decides:
        log_action(log, "samples_only", name, told(rules, snapshot.read_at), logging.WARNING)
    elif rules is not None and (before is None or before.version != rules.version):
        replaced = f"; it replaces version {before.version}" if before else ""
        text = f"version {rules.version} of the rules decides from now on{replaced}"
        log_action(log, "rules_activated", name, text)
