"""status: reads the state of resources and their decision log, and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime

from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.errors import StateUnreadable
from shared.autoscaling.operating import presenting
from shared.autoscaling.operating.shown import (
    DecisionEntry,
    ResourceStatus,
    ResourceUnreadable,
)
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import StateStore

LINES_MAX = 1000
"""The most entries of the decision log in one reply."""
NEWEST_LINES = 10
"""The number of newest entries among which the status looks for a decision. The status does not
show the outcome of an action in its place, because that may be the text of Azure's answer.
"""


async def read_all(
    resources: Iterable[Resource], store: StateStore
) -> list[ResourceStatus | ResourceUnreadable]:
    """The status of each resource; only ``name`` and ``error`` if its state cannot be read."""
    return await asyncio.gather(*(_one_or_error(resource, store) for resource in resources))


async def _one_or_error(
    resource: Resource, store: StateStore
) -> ResourceStatus | ResourceUnreadable:
    try:
        return await read_one(resource, store)
    except StateUnreadable as error:
        return {"name": resource.name, "error": str(error)}


async def read_one(resource: Resource, store: StateStore) -> ResourceStatus:
    """The status of one resource, with its newest decision. Raises StateUnreadable."""
    lines = await store.log(resource.name, NEWEST_LINES)
    snapshot = await store.load(resource.name)
    if lines and lines[0].time > snapshot.read_at:  # written before the store's clock was set back
        lines = await store.log(resource.name, LINES_MAX)
    return presenting.status(resource, snapshot, newest(lines, snapshot.read_at))


def newest(lines: Sequence[LogEntry], now: datetime) -> LogEntry | None:
    """The newest decision until ``now``, or else the newest entry. The lines are newest first."""
    shown = ([line for line in lines if line.time <= now] or lines)[:NEWEST_LINES]
    decisions = (line for line in shown if line.kind is EntryKind.DECISION)
    return next(decisions, next(iter(shown), None))


async def read_decisions(resource: Resource, store: StateStore, limit: int) -> list[DecisionEntry]:
    """The newest entries of the decision log, newest first."""
    lines = await store.log(resource.name, min(limit, LINES_MAX))
    return [presenting.decision_line(line) for line in lines]
