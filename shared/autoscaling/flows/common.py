"""What flows have in common: the declared resource, lost races, the store's clock, the log."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import TypeVar

from shared.autoscaling.errors import StateConflict, StateUnreadable, UnknownResource
from shared.autoscaling.measurements import CAPACITY_METRIC
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import StateStore
from shared.values.text import shown


def find(resources: Mapping[str, Resource], name: str) -> Resource:
    if name not in resources:
        known = ", ".join(sorted(resources)) or "none"
        raise UnknownResource(
            f"resource {shown(name)} is not declared in scaling_rules.py (known: {known})"
        )
    return resources[name]


def check_metric_name(resource: Resource, name: str) -> None:
    if name != CAPACITY_METRIC and name not in resource.metrics:
        known = ", ".join(sorted(resource.metrics))
        raise UnknownResource(
            f"metric {shown(name)} of {resource.name!r} is not declared in scaling_rules.py "
            f"(known: {known})"
        )


ATTEMPTS_MAX = 10
"""Races lost in a row before the message goes back to the queue."""

T = TypeVar("T")


async def until_won(resource_name: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """The first attempt's answer that is not a StateConflict; the last one's StateConflict else."""
    for _ in range(ATTEMPTS_MAX):
        try:
            return await attempt()
        except StateConflict:
            continue
    raise StateConflict(f"{resource_name}: lost {ATTEMPTS_MAX} races for its state in a row")


async def store_time(resource_name: str, store: StateStore) -> datetime:
    """The time of a read, whether or not what was read can be understood."""
    try:
        return (await store.load(resource_name)).read_at
    except StateUnreadable as error:
        return error.read_at


def log_action(
    log: logging.Logger, action: str, resource_name: str, text: str, level: int = logging.INFO
) -> None:
    """``[action] resource: text``."""
    fields = {"action": action, "resource": resource_name}
    log.log(level, "[%s] %s: %s", action, resource_name, text, extra=fields)
