"""Look everywhere, tell what is new, remember it: at least once, each time under the same id."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from shared.notifications.ports import (
    Forgotten,
    Look,
    NotificationHistory,
    NotificationStore,
    Notifier,
    Observed,
    Source,
)
from shared.notifications.telling import (
    Key,
    NotificationIntervals,
    Telling,
    looks_from,
    settled_until,
    tell_conditions,
    tell_ended,
    tell_events,
)

log = logging.getLogger(__name__)

SENDING_SECONDS_MAX = 120


async def run(
    sources: Mapping[str, Source],
    memories: NotificationStore,
    notifier: Notifier,
    patience: NotificationIntervals,
) -> int:
    """How many news were sent. A place that cannot be looked at hides no other.

    Each place is looked through from where the last look has left off.
    """
    known = await memories.read()
    now, looks = known.read_at, known.looks
    found: dict[str, Observed] = {}
    for name, source in sources.items():
        since = looks_from(looks[name].until if name in looks else None, now, patience)
        if (observed := await _looked(name, source, since, now)) is not None:
            found[name] = observed
    tellings = _tellings(
        list(found.values()), known, patience, all_asked=len(found) == len(sources)
    )
    told = await _all_sent(tellings, memories, notifier)
    for name, observed in found.items():
        until = settled_until(observed.events, known.memories, told, now)
        await _left_off(name, Look(until, looks[name].version if name in looks else None), memories)
    return len(told)


def _tellings(
    found: Sequence[Observed],
    known: NotificationHistory,
    patience: NotificationIntervals,
    *,
    all_asked: bool,
) -> list[Telling]:
    now, memories = known.read_at, known.memories
    events = [news for each in found for news in each.events]
    lasting = [news for each in found for news in each.conditions]
    tellings = tell_events(events, memories, now, patience)
    tellings += tell_conditions(lasting, memories, now, patience)
    if all_asked:  # what lasts is over only where everybody could be asked
        unasked = [name for each in found for name in each.unasked]
        tellings += tell_ended(lasting, memories, now, patience, unasked)
    return tellings


async def _left_off(source: str, look: Look, memories: NotificationStore) -> None:
    """What is not remembered is looked through again: told it is once all the same."""
    try:
        await memories.looked(source, look)
    except Forgotten:
        log.info("[looked_twice] %s: another instance looked at it too", source)
    except Exception as error:
        log.warning("[look_not_remembered] %s: %s: %s", source, type(error).__name__, error)


async def _looked(name: str, source: Source, since: datetime, now: datetime) -> Observed | None:
    try:
        return await source(since, now)
    except Exception as error:
        log.warning("[look_failed] %s: %s: %s", name, type(error).__name__, error)
        return None


async def _all_sent(
    tellings: Iterable[Telling], memories: NotificationStore, notifier: Notifier
) -> set[Key]:
    """The keys of what was sent. Where nobody answers in time the rest waits for the next look:
    the host ends, and starts anew, what takes too long, and everything else with it."""
    sent: set[Key] = set()
    try:
        async with asyncio.timeout(SENDING_SECONDS_MAX):
            for telling in tellings:
                if await _sent(telling, memories, notifier):
                    sent.add(telling.key)
    except TimeoutError:
        log.warning("[notifications_wait] not sent within %s s", SENDING_SECONDS_MAX)
    return sent


async def _sent(telling: Telling, memories: NotificationStore, notifier: Notifier) -> bool:
    """Sent first, remembered then: who dies in between sends the same news again."""
    try:
        await notifier.tell(telling.news)
        await memories.remember(telling)
    except Forgotten:
        log.info("[notified_twice] %s: somebody else told of it too", telling.news.subject)
    except Exception as error:  # one that cannot be told or remembered holds up no other
        subject, what = telling.news.subject, type(error).__name__
        log.warning("[notification_failed] %s: %s: %s", subject, what, error)
        return False
    log.info("[notified] %s: %s", telling.news.subject, telling.news.headline)
    return True
