"""Where the notifier looks, and what it remembers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from shared import wiring
from shared.autoscaling.flows import news
from shared.ingestion.announcement import closing
from shared.notifications import flow
from shared.notifications.ports import Observed, Source
from shared.notifications.telling import Patience


async def notify() -> int:
    """Tell what is new; answers how many news were sent."""
    found = wiring.settings().notifications
    return await flow.run(
        sources(),
        wiring.memories(),
        wiring.herald(),
        Patience(found.quiet, found.repeat),
        found.kinds,
        timedelta(minutes=found.at_maximum_minutes),
    )


def sources() -> Mapping[str, Source]:
    listened = {"breaker": _breaker} if wiring.settings().ingestion.hub else {}
    return {"resources": _resources, **listened}


async def _resources(since: datetime, now: datetime) -> Observed:
    minutes = wiring.settings().notifications.at_maximum_minutes
    declared = wiring.resources().values()
    return Observed(*await news.run(declared, wiring.store(), since, now, minutes))


async def _breaker(_since: datetime, _now: datetime) -> Observed:
    told = closing(wiring.BREAKER, (await wiring.breaker_store().load()).breaker)
    return Observed([told] if told else [])
