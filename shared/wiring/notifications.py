"""Where the notifier looks, and what it remembers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from datetime import datetime, timedelta

from shared.autoscaling.flows import notify as news
from shared.ingestion.breaker.announcement import closing_news
from shared.ingestion.operating import notices as failed_events
from shared.nightly.alarms import alarms
from shared.notifications import flow
from shared.notifications.ports import Observed, Source
from shared.notifications.telling import NotificationIntervals
from shared.sampling.verdict import LOST
from shared.wiring import autoscaling as wiring
from shared.wiring import ingestion_state as state

TREND_DAYS = timedelta(days=7)


async def notify() -> int:
    """Tell what is new; answers how many news were sent."""
    found = wiring.settings().notifications
    patience = NotificationIntervals(found.quiet, found.repeat)
    return await flow.run(sources(), wiring.notification_store(), wiring.notifier(), patience)


def sources() -> Mapping[str, Source]:
    found: dict[str, Source] = {"resources": _resources, "trends": _trends}
    if wiring.settings().ingestion.hub:
        found |= {"breaker": _breaker, "dead letters": _dead_letters}
    return found


async def _resources(since: datetime, now: datetime) -> Observed:
    minutes = wiring.settings().notifications.at_maximum_minutes
    declared = wiring.resources().values()
    found = await news.run(declared, wiring.store(), since, now, minutes)
    return Observed(found.events, found.conditions, found.unasked)


async def _breaker(_since: datetime, _now: datetime) -> Observed:
    told = closing_news(state.BREAKER, (await state.breaker_store().load()).breaker)
    return Observed([told] if told else [])


async def _dead_letters(since: datetime, _now: datetime) -> Observed:
    store = state.store()
    return Observed(await failed_events.run(store, store, since))


async def _trends(_since: datetime, now: datetime) -> Observed:
    """Days are judged a night later, or when late data have come."""
    from shared.adapters.tables.trends import TableTrends  # noqa: PLC0415  heavy to import

    async with aclosing(TableTrends(wiring.settings().storage("AzureWebJobsStorage"))) as table:
        lost = await table.since((now - TREND_DAYS).date(), LOST)
    return Observed(list(alarms(lost)))
