"""status: a resource as it stands, and its log; reads only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from shared.autoscaling.errors import StateUnreadable
from shared.autoscaling.operating import presenting
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import StateStore

LINES_MAX = 1000
"""Of one answer."""


async def run(resources: Iterable[Resource], store: StateStore) -> list[dict[str, Any]]:
    """One line a resource; of one whose state cannot be read ``name`` and ``error``."""
    return await asyncio.gather(*(_one_or_error(resource, store) for resource in resources))


async def _one_or_error(resource: Resource, store: StateStore) -> dict[str, Any]:
    try:
        return await one(resource, store)
    except StateUnreadable as error:
        return {"name": resource.name, "error": str(error)}


async def one(resource: Resource, store: StateStore) -> dict[str, Any]:
    """Raises StateUnreadable."""
    snapshot = await store.load(resource.name)
    newest = await store.log(resource.name, 1)
    return presenting.status(resource, snapshot, newest[0] if newest else None)


async def decisions(resource: Resource, store: StateStore, limit: int) -> list[dict[str, Any]]:
    """The newest lines of the log, newest first."""
    lines = await store.log(resource.name, min(limit, LINES_MAX))
    return [presenting.decision_line(line) for line in lines]
