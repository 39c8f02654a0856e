"""news: what happened to each resource of late, and what lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime

from shared.autoscaling.flows.poison import UNATTRIBUTED
from shared.autoscaling.model import Resource
from shared.autoscaling.newsworthy import conditions, events
from shared.autoscaling.ports import StateStore
from shared.news import News

LINES_MAX = 20_000
"""An hour and a half of decisions every 15 s on fifty metrics."""


async def run(
    resources: Iterable[Resource],
    store: StateStore,
    since: datetime,
    now: datetime,
    at_maximum_minutes: float,
) -> tuple[list[News], list[News]]:
    """Events since then, and conditions; poison that names no resource included."""
    per_resource = [_one(resource, store, since, now, at_maximum_minutes) for resource in resources]
    answers = await asyncio.gather(*per_resource)
    lost = events(await store.log(UNATTRIBUTED, LINES_MAX, since=since))
    happened = [news for each, _ in answers for news in each]
    return [*happened, *lost], [news for _, each in answers for news in each]


async def _one(
    resource: Resource,
    store: StateStore,
    since: datetime,
    now: datetime,
    at_maximum_minutes: float,
) -> tuple[list[News], list[News]]:
    lines = await store.log(resource.name, LINES_MAX, since=since)
    state = (await store.load(resource.name)).state
    return list(events(lines)), conditions(resource, state, lines, now, at_maximum_minutes)
