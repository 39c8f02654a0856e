"""Look everywhere, tell what is new, remember it: at least once, each time under the same id."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from datetime import datetime

from shared.notifications.ports import Forgotten, Herald, Memories, Observed, Source
from shared.notifications.telling import (
    Patience,
    Telling,
    tell_conditions,
    tell_ended,
    tell_events,
)

log = logging.getLogger(__name__)

SENDING_SECONDS_MAX = 120


async def run(
    sources: Mapping[str, Source],
    memories: Memories,
    herald: Herald,
    patience: Patience,
) -> int:
    """How many news were sent. A place that cannot be looked at hides no other."""
    known = await memories.read()
    now = known.read_at
    since = now - patience.look_back
    seen = [await _looked(name, source, since, now) for name, source in sources.items()]
    found = [observed for observed in seen if observed is not None]
    events = [news for each in found for news in each.events]
    tellings = tell_events(events, known.memories, now, patience)
    lasting = [news for each in found for news in each.conditions]
    tellings += tell_conditions(lasting, known.memories, now, patience)
    if len(found) == len(seen):  # what lasts is over only where everybody could be asked
        tellings += tell_ended(lasting, known.memories, now, patience)
    return await _all_sent(tellings, memories, herald)


async def _looked(name: str, source: Source, since: datetime, now: datetime) -> Observed | None:
    try:
        return await source(since, now)
    except Exception as error:
        log.warning("[look_failed] %s: %s: %s", name, type(error).__name__, error)
        return None


async def _all_sent(tellings: Iterable[Telling], memories: Memories, herald: Herald) -> int:
    """Where nobody answers in time the rest waits for the next look: the host ends, and starts
    anew, what takes too long, and everything else with it."""
    sent = 0
    try:
        async with asyncio.timeout(SENDING_SECONDS_MAX):
            for telling in tellings:
                sent += await _sent(telling, memories, herald)
    except TimeoutError:
        log.warning("[notifications_wait] not sent within %s s", SENDING_SECONDS_MAX)
    return sent


async def _sent(telling: Telling, memories: Memories, herald: Herald) -> bool:
    """Sent first, remembered then: who dies in between sends the same news again."""
    try:
        await herald.tell(telling.news)
        await memories.remember(telling)
    except Forgotten:
        log.info("[notified_twice] %s: somebody else told of it too", telling.news.subject)
    except Exception as error:  # one that cannot be told or remembered holds up no other
        subject, what = telling.news.subject, type(error).__name__
        log.warning("[notification_failed] %s: %s: %s", subject, what, error)
        return False
    log.info("[notified] %s: %s", telling.news.subject, telling.news.headline)
    return True
