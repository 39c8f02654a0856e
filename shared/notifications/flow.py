"""Reads every source, sends due notifications, and records them. One may be sent again, under the
same ID. It is lost if sending fails until its event is too old or its condition over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from shared.notifications.conditions import grouped
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
    alike,
    due_conditions,
    due_endings,
    due_events,
    handled_until,
    read_from,
    together,
)
from shared.values.news import News

log = logging.getLogger(__name__)

SENDING_SECONDS_MAX = 120


async def send_due_notifications(
    sources: Mapping[str, Source],
    store: NotificationStore,
    notifier: Notifier,
    intervals: NotificationIntervals,
    link_of: Callable[[News], str] = lambda _: "",
) -> int:
    """Read all sources on from the last run, send what is due, and return how many were sent."""
    history = await store.read()
    now = history.read_at
    observed: dict[str, Observed] = {}
    for name, source in sources.items():
        progress = history.progress.get(name)
        since = read_from(progress.until if progress else None, now, intervals)
        if (reading := await _read(name, source, since, now)) is not None:
            observed[name] = reading
    due = _due(list(observed.values()), history, intervals, all_read=len(observed) == len(sources))
    sent = await _all_sent(due, store, notifier, link_of)
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
) -> list[list[Notification]]:
    """Groups that are sent as one. A condition of several resources lasts until none has it."""
    now, records = history.read_at, history.records
    events = [news for each in observed for news in each.events]
    conditions = [found for each in observed for found in each.conditions if found.kind]
    reported = {key for key, record in records.items() if record.lasting_since}
    lasting = [found.news(now) for found in grouped(conditions, reported)]
    due = due_events(events, records, now, intervals)
    due += due_conditions(lasting, records, now, intervals)
    if all_read:  # otherwise the conditions of a failed source would seem to have ended
        unread = [name for each in observed for name in each.unread]
        lasting += [found.news(now) for found in conditions]
        due += due_endings(lasting, records, now, intervals, unread)
    return list(alike(due))


async def _save_progress(source: str, progress: SourceProgress, store: NotificationStore) -> None:
    """Save how far the source was read. If this fails, the records prevent repetitions."""
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
    due: Iterable[Sequence[Notification]],
    store: NotificationStore,
    notifier: Notifier,
    link_of: Callable[[News], str],
) -> set[Key]:
    """Send the notifications and return the keys of those that were sent. After SENDING_SECONDS_MAX
    the rest waits, because the host restarts an instance at its time limit."""
    sent: set[Key] = set()
    try:
        async with asyncio.timeout(SENDING_SECONDS_MAX):
            for group in due:
                news = together(group)
                news = replace(news, link=news.link or link_of(news))
                if await _succeeds(notifier.tell(news), news):
                    sent.update([n.key for n in group if await _succeeds(store.save(n), n.news)])
                    log.info("[notified] %s: %s", news.subject, news.headline)
    except TimeoutError:
        text = "[notifications_wait] not all were sent within %s s; the rest waits"
        log.warning(text, SENDING_SECONDS_MAX)
    return sent


async def _succeeds(step: Awaitable[None], news: News) -> bool:
    try:
        await step
    except NotificationConflict:
        log.info("[notified_twice] %s: another instance sent it, too", news.subject)
    except Exception as error:  # a failure must not delay the other notifications
        log.warning("[notification_failed] %s: %s: %s", news.subject, type(error).__name__, error)
        return False
    return True
