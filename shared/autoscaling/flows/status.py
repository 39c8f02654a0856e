"""status: a resource as it stands, and its log; reads only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from shared.autoscaling import presenting
from shared.autoscaling.model import Resource
from shared.autoscaling.ports import StateStore

LINES_MAX = 1000
"""Of one answer."""


async def run(resources: Iterable[Resource], store: StateStore) -> list[dict[str, Any]]:
    """One line a resource."""
    return await asyncio.gather(*(one(resource, store) for resource in resources))


async def one(resource: Resource, store: StateStore) -> dict[str, Any]:
    snapshot = await store.load(resource.name)
    newest = await store.log(resource.name, 1)
    return presenting.status(resource, snapshot, newest[0] if newest else None)


async def decisions(resource: Resource, store: StateStore, limit: int) -> list[dict[str, Any]]:
    """The newest lines of the log, newest first."""
    lines = await store.log(resource.name, min(limit, LINES_MAX))
    return [presenting.decision_line(line) for line in lines]
