"""Read every source, send what is due, record it: at least once, always under the same id."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from shared.notifications.ports import (
    NotificationConflict,
    NotificationHistory,
    NotificationStore,
    Notifier,
    Observed,
    Source,
    SourceProgress,
)
from shared.notifications.selection import (
    Key,
    Notification,
    NotificationIntervals,
    due_conditions,
    due_endings,
    due_events,
    handled_until,
    read_from,
)

log = logging.getLogger(__name__)

SENDING_SECONDS_MAX = 120


async def run(
    sources: Mapping[str, Source],
    store: NotificationStore,
    notifier: Notifier,
    intervals: NotificationIntervals,
) -> int:
    """How many notifications were sent. A source that cannot be read hides no other.

    Each source is read from where it was left off.
    """
    history = await store.read()
    now = history.read_at
    observed: dict[str, Observed] = {}
    for name, source in sources.items():
        progress = history.progress.get(name)
        since = read_from(progress.until if progress else None, now, intervals)
        if (found := await _read(name, source, since, now)) is not None:
            observed[name] = found
    due = _due(list(observed.values()), history, intervals, all_read=len(observed) == len(sources))
    sent = await _all_sent(due, store, notifier)
    for name, found in observed.items():
        until = handled_until(found.events, history.records, sent, now)
        progress = replace(history.progress.get(name, SourceProgress(until)), until=until)
        await _save_progress(name, progress, store)
    return len(sent)


def _due(
    observed: Sequence[Observed],
    history: NotificationHistory,
    intervals: NotificationIntervals,
    *,
    all_read: bool,
) -> list[Notification]:
    now, records = history.read_at, history.records
    events = [news for each in observed for news in each.events]
    lasting = [news for each in observed for news in each.conditions]
    due = due_events(events, records, now, intervals)
    due += due_conditions(lasting, records, now, intervals)
    if all_read:  # a condition is over only where every source could be read
        unasked = [name for each in observed for name in each.unasked]
        due += due_endings(lasting, records, now, intervals, unasked)
    return due


async def _save_progress(source: str, progress: SourceProgress, store: NotificationStore) -> None:
    """Where this fails the source is read again, and nothing is sent twice."""
    try:
        await store.save_progress(source, progress)
    except NotificationConflict:
        log.info("[looked_twice] %s: another instance looked at it too", source)
    except Exception as error:
        log.warning("[look_not_remembered] %s: %s: %s", source, type(error).__name__, error)


async def _read(name: str, source: Source, since: datetime, now: datetime) -> Observed | None:
    try:
        return await source(since, now)
    except Exception as error:
        log.warning("[look_failed] %s: %s: %s", name, type(error).__name__, error)
        return None


async def _all_sent(
    notifications: Iterable[Notification], store: NotificationStore, notifier: Notifier
) -> set[Key]:
    """The keys of what was sent. Where nobody answers in time the rest waits for the next run:
    the host ends, and starts anew, what takes too long, and everything else with it."""
    sent: set[Key] = set()
    try:
        async with asyncio.timeout(SENDING_SECONDS_MAX):
            for notification in notifications:
                if await _sent(notification, store, notifier):
                    sent.add(notification.key)
    except TimeoutError:
        log.warning("[notifications_wait] not sent within %s s", SENDING_SECONDS_MAX)
    return sent


async def _sent(notification: Notification, store: NotificationStore, notifier: Notifier) -> bool:
    """Sent first, saved then: who dies in between sends the same news again."""
    try:
        await notifier.tell(notification.news)
        await store.save(notification)
    except NotificationConflict:
        log.info("[notified_twice] %s: somebody else told of it too", notification.news.subject)
    except Exception as error:  # one that fails holds up no other
        subject, what = notification.news.subject, type(error).__name__
        log.warning("[notification_failed] %s: %s: %s", subject, what, error)
        return False
    log.info("[notified] %s: %s", notification.news.subject, notification.news.headline)
    return True
