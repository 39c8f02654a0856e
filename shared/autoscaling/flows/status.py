"""status: reads the state of resources and their decision log, and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from itertools import islice

from shared.autoscaling.deciding.decide import EntryKind
from shared.autoscaling.errors import StateUnreadable
from shared.autoscaling.operating import presenting
from shared.autoscaling.operating.conditions import conditions, state_unreadable
from shared.autoscaling.operating.presenting import (
    DecisionEntry,
    ResourceStatus,
    ResourceUnreadable,
)
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import StateStore
from shared.values.concurrency import gathered

ENTRIES_MAX = 1000
"""The most entries of the decision log in one reply."""
READ_MAX = 20_000
"""The most entries that are read at a time."""
AT_ONCE_MAX = 16
"""The most resources that are read at a time."""


async def read_all(
    resources: Iterable[Resource],
    store: StateStore,
    at_maximum_minutes: float,
    price: float | None = None,
) -> list[ResourceStatus | ResourceUnreadable]:
    """The status of each resource; only the reason if its state cannot be read."""

    async def read(resource: Resource) -> ResourceStatus | ResourceUnreadable:
        try:
            return await read_one(resource, store, at_maximum_minutes, price)
        except StateUnreadable as error:
            found = state_unreadable(resource.name, str(error)).to_json()
            return {"name": resource.name, "error": str(error), "conditions": [found]}

    return await gathered(read, resources, AT_ONCE_MAX)


async def read_one(
    resource: Resource,
    store: StateStore,
    at_maximum_minutes: float,
    price: float | None = None,
) -> ResourceStatus:
    """The status of one resource, with its newest decision. ``price`` is that of an instance-hour.
    Raises StateUnreadable.
    """
    snapshot = await store.load(resource.name)
    found = conditions(resource, snapshot, at_maximum_minutes)
    return presenting.status(resource, snapshot, found, price)


async def read_decisions(
    resource: Resource,
    store: StateStore,
    limit: int,
    since: datetime | None = None,
    before: datetime | None = None,
    *,
    changes_only: bool = False,
    text: str = "",
) -> list[DecisionEntry]:
    """The newest entries of the decision log, newest first. See ``StateStore.log``. With ``text``,
    those of the newest READ_MAX that contain it.
    """
    limit = min(limit, ENTRIES_MAX)
    read = (resource.name, READ_MAX if text else limit, since)
    entries = await store.log(*read, before=before, changes_only=changes_only)
    wanted = presenting.RowFilter(presenting.EVERY, text=text)
    found = (each for each in entries if wanted.fits(each, ()))
    return [presenting.decision_entry(each) for each in islice(found, limit)]


async def read_at(resource: Resource, store: StateStore, time: datetime) -> list[DecisionEntry]:
    """The decision that applied at a time, and the newest change until then, newest first.

    The change is missing if it is no longer in the log.
    """
    before = time + timedelta(microseconds=1)
    read = partial(read_decisions, resource, store, before=before)
    (newest, changes) = await asyncio.gather(
        read(AT_ONCE_MAX), read(AT_ONCE_MAX, changes_only=True)
    )
    decided = [each for each in newest if each["kind"] == EntryKind.DECISION][:1]
    changed = [each for each in changes if each["applies"]][:1]
    return decided + [each for each in changed if each not in decided]
