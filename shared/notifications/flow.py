"""Reads every source, sends due notifications to each receiver, and records them for it. One may be
sent again, under the same ID. It is lost for a receiver to which sending fails until its event is
too old or its condition over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from shared.notifications.conditions import grouped
from shared.notifications.ports import (
    NotificationConflict,
    NotificationStore,
    Notifier,
    Observed,
    Source,
)
from shared.notifications.selection import (
    Key,
    Notification,
    NotificationIntervals,
    NotificationRecord,
    alike,
    due_conditions,
    due_endings,
    due_events,
    together,
)
from shared.values.news import News

log = logging.getLogger(__name__)

SENDING_SECONDS_MAX = 120


async def send_due_notifications(
    sources: Mapping[str, Source],
    store: NotificationStore,
    receivers: Mapping[str, Notifier],
    intervals: NotificationIntervals,
    link_of: Callable[[News], str] = lambda _: "",
) -> int:
    """Read all sources, send what is due to each receiver, and return how many were sent. The
    records tell which of the events were reported to it before."""
    history = await store.read()
    now = history.read_at
    answers = [
        await _read(name, source, now - intervals.look_back, now)
        for name, source in sources.items()
    ]
    observed = [each for each in answers if each is not None]
    all_read, sending = len(observed) == len(sources), []
    for name, receiver in receivers.items():
        end = (name,) if name else ()
        records = {key[:2]: each for key, each in history.records.items() if key[2:] == end}
        due = _due(observed, records, now, intervals, all_read=all_read)
        stored = [[replace(each, key=(*each.key, *end)) for each in group] for group in due]
        sending.append(_send_all(stored, store, receiver, link_of))
    return sum(await asyncio.gather(*sending))


def _due(
    observed: Sequence[Observed],
    records: Mapping[Key, NotificationRecord],
    now: datetime,
    intervals: NotificationIntervals,
    *,
    all_read: bool,
) -> list[list[Notification]]:
    """Groups that are sent as one. A condition of several resources lasts until none has it."""
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


async def _read(name: str, source: Source, since: datetime, now: datetime) -> Observed | None:
    try:
        return await source(since, now)
    except Exception as error:
        log.warning("[look_failed] %s: %s: %s", name, type(error).__name__, error)
        return None


async def _send_all(
    due: Iterable[Sequence[Notification]],
    store: NotificationStore,
    notifier: Notifier,
    link_of: Callable[[News], str],
) -> int:
    """Send the notifications and return how many were sent. After SENDING_SECONDS_MAX the rest
    waits, because the host restarts an instance at its time limit."""
    sent = 0
    try:
        async with asyncio.timeout(SENDING_SECONDS_MAX):
            for group in due:
                news = together(group)
                news = replace(news, link=news.link or link_of(news))
                if await _succeeds(notifier.tell(news), news):
                    sent += sum([await _succeeds(store.save(each), each.news) for each in group])
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
