"""status: reads the state of resources and their decision log, and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from shared.autoscaling.errors import StateUnreadable
from shared.autoscaling.operating import presenting
from shared.autoscaling.operating.conditions import conditions, state_unreadable
from shared.autoscaling.operating.shown import (
    DecisionEntry,
    ResourceStatus,
    ResourceUnreadable,
)
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import StateStore

ENTRIES_MAX = 1000
"""The most entries of the decision log in one reply."""
AT_ONCE_MAX = 16
"""The most resources that are read at a time."""


async def read_all(
    resources: Iterable[Resource], store: StateStore, at_maximum_minutes: float
) -> list[ResourceStatus | ResourceUnreadable]:
    """The status of each resource; only the reason if its state cannot be read."""
    free = asyncio.Semaphore(AT_ONCE_MAX)

    async def read(resource: Resource) -> ResourceStatus | ResourceUnreadable:
        try:
            async with free:
                return await read_one(resource, store, at_maximum_minutes)
        except StateUnreadable as error:
            found = state_unreadable(resource.name, str(error)).to_json()
            return {"name": resource.name, "error": str(error), "conditions": [found]}

    return await asyncio.gather(*map(read, resources))


async def read_one(
    resource: Resource, store: StateStore, at_maximum_minutes: float
) -> ResourceStatus:
    """The status of one resource, with its newest decision. Raises StateUnreadable."""
    snapshot = await store.load(resource.name)
    found = conditions(resource, snapshot, at_maximum_minutes)
    return presenting.status(resource, snapshot, found)


async def read_decisions(resource: Resource, store: StateStore, limit: int) -> list[DecisionEntry]:
    """The newest entries of the decision log, newest first."""
    entries = await store.log(resource.name, min(limit, ENTRIES_MAX))
    return [presenting.decision_entry(each) for each in entries]
