"""news: what happened to each resource of late, and what lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta

from shared.autoscaling.flows.poison import UNATTRIBUTED
from shared.autoscaling.model import Resource
from shared.autoscaling.newsworthy import conditions, events
from shared.autoscaling.ports import StateStore
from shared.news import News

LINES_MAX = 10_000


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
    start = min(since, now - timedelta(minutes=at_maximum_minutes))
    lines = await store.log(resource.name, LINES_MAX, since=start)
    state = (await store.load(resource.name)).state
    found = list(events(line for line in lines if line.time >= since))
    return found, conditions(resource, state, lines, now, at_maximum_minutes)
