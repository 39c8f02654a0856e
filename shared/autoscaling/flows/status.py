"""status: a resource as it stands, its log, and its last hours; reads only."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from shared.autoscaling import presenting
from shared.autoscaling.messages import format_time
from shared.autoscaling.model import LogEntry, Resource
from shared.autoscaling.ports import StateStore

LINES_MAX = 20_000
"""Of one answer: a day of decisions every 15 s on three metrics."""


async def run(resources: Iterable[Resource], store: StateStore) -> list[dict[str, Any]]:
    """One line a resource."""
    return [await one(resource, store) for resource in resources]


async def one(resource: Resource, store: StateStore) -> dict[str, Any]:
    snapshot = await store.load(resource.name)
    newest = await store.log(resource.name, 1)
    return presenting.status(resource, snapshot, newest[0] if newest else None)


async def decisions(resource: Resource, store: StateStore, limit: int) -> list[dict[str, Any]]:
    """The newest lines of the log, newest first."""
    lines = await store.log(resource.name, min(limit, LINES_MAX))
    return [presenting.decision_line(line) for line in lines]


async def history(
    resource: Resource, store: StateStore, span: timedelta, points_max: int
) -> dict[str, Any]:
    """The last hours as points to draw, and the lines that changed or refused something."""
    now = (await store.load(resource.name)).read_at
    lines = await store.log(resource.name, LINES_MAX, since=now - span)
    step_seconds = max(span.total_seconds() / points_max, 1)
    return {
        "as_of": format_time(now),
        "points": presenting.points(lines, step_seconds),
        "events": [presenting.decision_line(line) for line in lines if _event(line)],
    }


def _event(line: LogEntry) -> bool:
    return line.applies or line.kind != "decision"
