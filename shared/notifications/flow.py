"""The flow of the notifier: read every source, send due notifications, and record them.

A notification may be sent again, always under the same ID. It is not sent if sending keeps failing
until its event is too old, or until its condition has ended.
"""

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
    """Read all sources, send the notifications that are due, and return how many were sent. Each
    source is read from where the last run stopped. If a source cannot be read, the others are still
    read.
    """
    history = await store.read()
    now = history.read_at
    observed: dict[str, Observed] = {}
    for name, source in sources.items():
        progress = history.progress.get(name)
        since = read_from(progress.until if progress else None, now, intervals)
        if (reading := await _read(name, source, since, now)) is not None:
            observed[name] = reading
    due = _due(list(observed.values()), history, intervals, all_read=len(observed) == len(sources))
    sent = await _all_sent(due, store, notifier)
    for name, reading in observed.items():
        until = handled_until(reading.events, history.records, sent, now)
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
    if all_read:  # otherwise the conditions of a failed source would seem to have ended
        unread = [name for each in observed for name in each.unread]
        due += due_endings(lasting, records, now, intervals, unread)
    return due


async def _save_progress(source: str, progress: SourceProgress, store: NotificationStore) -> None:
    """Save how far the source was read.

    If this fails, the next run reads the same lines again. The records of notifications prevent it
    from sending them twice.
    """
    try:
        await store.save_progress(source, progress)
    except NotificationConflict:
        log.info("[looked_twice] %s: another instance read it, too", source)
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
    """Send the notifications and return the keys of those that were sent.

    After SENDING_SECONDS_MAX the remaining notifications are left to the next run. If a function
    exceeds its time limit, the host restarts the instance with all its functions.
    """
    sent: set[Key] = set()
    try:
        async with asyncio.timeout(SENDING_SECONDS_MAX):
            for notification in notifications:
                if await _sent(notification, store, notifier):
                    sent.add(notification.key)
    except TimeoutError:
        text = "[notifications_wait] not all were sent within %s s; the rest waits"
        log.warning(text, SENDING_SECONDS_MAX)
    return sent


async def _sent(notification: Notification, store: NotificationStore, notifier: Notifier) -> bool:
    """Send a notification and then record it.

    If the instance dies in between, the next run sends it again under the same ID.
    """
    try:
        await notifier.tell(notification.news)
        await store.save(notification)
    except NotificationConflict:
        log.info("[notified_twice] %s: another instance sent it, too", notification.news.subject)
    except Exception as error:  # a failure must not delay the other notifications
        subject, what = notification.news.subject, type(error).__name__
        log.warning("[notification_failed] %s: %s: %s", subject, what, error)
        return False
    log.info("[notified] %s: %s", notification.news.subject, notification.news.headline)
    return True
