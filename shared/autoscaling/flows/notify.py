"""Collects the news of all resources for the notifier: recent events and lasting conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from shared.autoscaling.deciding.decide import EntryKind
from shared.autoscaling.errors import StateUnreadable
from shared.autoscaling.flows.poison import UNATTRIBUTED
from shared.autoscaling.operating.conditions import ENTRIES, conditions, state_unreadable
from shared.autoscaling.operating.log_news import events
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import StateStore
from shared.notifications.ports import Observed

ENTRIES_MAX = 20_000
"""The most log entries that are read. Fifty metrics with a decision every 15 s write as many in an
hour and a half.
"""


async def collect_news(
    resources: Iterable[Resource],
    store: StateStore,
    since: datetime,
    now: datetime,
    at_maximum_minutes: float,
) -> Observed:
    """The events since ``since`` and the conditions at ``now``.

    Poison messages that name no declared resource are included.
    """

    async def observed(resource: Resource) -> Observed:
        entries = await store.log(resource.name, ENTRIES_MAX, since=since)
        recent = list(events(entries))
        try:
            snapshot = replace(await store.load(resource.name), read_at=now)
        except StateUnreadable as error:
            return Observed(recent, [state_unreadable(resource.name, str(error))], [resource.name])
        if not any(each.kind is EntryKind.DECISION for each in entries):
            entries = await store.log(resource.name, ENTRIES)
        return Observed(recent, conditions(resource, snapshot, entries, at_maximum_minutes))

    answers = await asyncio.gather(*map(observed, resources))
    unattributed = events(await store.log(UNATTRIBUTED, ENTRIES_MAX, since=since))
    return Observed(
        [*[news for answer in answers for news in answer.events], *unattributed],
        [found for answer in answers for found in answer.conditions],
        [name for answer in answers for name in answer.unread],
    )
