"""What happened to each resource since a time, and what lasts, for the notifier."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime

from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.errors import StateUnreadable
from shared.autoscaling.flows.poison import UNATTRIBUTED
from shared.autoscaling.operating.notices import (
    conditions,
    events,
    long_at_maximum,
    unreadable_rows,
    unreadable_state,
)
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import StateStore
from shared.notifications.ports import Observed

LINES_MAX = 20_000
"""An hour and a half of decisions every 15 s on fifty metrics."""
NEWEST_LINES = 50
"""Among so many of the newest there is a decision, unless none was made for long."""


async def run(
    resources: Iterable[Resource],
    store: StateStore,
    since: datetime,
    now: datetime,
    at_maximum_minutes: float,
) -> Observed:
    """Events since then, and conditions; poison that names no resource included."""
    per_resource = [_one(resource, store, since, now, at_maximum_minutes) for resource in resources]
    answers = await asyncio.gather(*per_resource)
    lost = events(await store.log(UNATTRIBUTED, LINES_MAX, since=since))
    return Observed(
        [*[news for answer in answers for news in answer.events], *lost],
        [news for answer in answers for news in answer.conditions],
        [name for answer in answers for name in answer.unasked],
    )


async def _one(
    resource: Resource,
    store: StateStore,
    since: datetime,
    now: datetime,
    at_maximum_minutes: float,
) -> Observed:
    lines = await store.log(resource.name, LINES_MAX, since=since)
    happened = list(events(lines))
    try:
        snapshot = await store.load(resource.name)
    except StateUnreadable as error:
        return Observed(happened, [unreadable_state(resource, str(error), now)], [resource.name])
    state = snapshot.state
    decided = any(line.kind is EntryKind.DECISION for line in lines)
    if not decided and long_at_maximum(resource, state, now, at_maximum_minutes):
        lines = await _newest(resource, store)
    lasting = conditions(resource, state, lines, now, at_maximum_minutes)
    return Observed(happened, [*lasting, *unreadable_rows(resource, snapshot.unreadable, now)], [])


async def _newest(resource: Resource, store: StateStore) -> list[LogEntry]:
    """What was decided last, though that may be long ago."""
    return await store.log(resource.name, NEWEST_LINES)
