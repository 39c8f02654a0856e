"""Selects the notifications that are due. Each event is reported once; a new one of the same kind
and subject waits for the end of the quiet interval."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from shared.notifications.conditions import ALONE_MAX, SEVERAL, explained
from shared.values.news import OVER, News, Severity
from shared.values.text import listed

OVERDUE = timedelta(hours=1)
"""A condition that is not reported again is over this long after it was due."""
OVERLAP = timedelta(minutes=5)
"""The most by which an entry of a log may be written later than its own time."""
SEEN_MAX = 2000
"""The IDs stored for a kind and subject; there are fewer within OVERLAP."""
ALIKE_MAX = 10
"""The most notifications of one kind that are sent separately in a run."""
SUBJECTS_MAX = 50
"""The most subjects that a notification about several lists."""


@dataclass(frozen=True, slots=True)
class NotificationIntervals:
    """The least time between two of a kind and subject, and when a lasting one is repeated."""

    quiet: timedelta = timedelta(minutes=15)
    repeat: timedelta = timedelta(hours=6)

    @property
    def look_back(self) -> timedelta:
        """The age of the oldest event that is reported, after the notifier was out of order for an
        hour, too."""
        return self.quiet + OVERLAP + timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class NotificationRecord:
    """The notifications sent for one kind and subject."""

    seen: tuple[str, ...] = ()
    """Short IDs of the events that were reported last, the newest at the end."""
    seen_until: datetime | None = None
    """The time of the newest event that was reported."""
    sent_at: datetime | None = None
    lasting_since: datetime | None = None
    """When the condition that lasts now was first reported."""
    severity: str = ""
    version: str | None = None


Key = tuple[str, ...]
"""Kind and subject, and in the store the ID of the webhook; that of the log is left out."""
NEVER = NotificationRecord()


@dataclass(frozen=True, slots=True)
class Notification:
    """News to send, and the record to store afterwards."""

    key: Key
    news: News
    record: NotificationRecord


def due_events(
    events: Iterable[News],
    records: Mapping[Key, NotificationRecord],
    now: datetime,
    intervals: NotificationIntervals,
) -> list[Notification]:
    """Notifications of events: at once, or combined into one when the quiet interval is over."""
    by_key: dict[Key, list[News]] = defaultdict(list)
    for news in events:
        record = records.get((news.kind, news.subject), NEVER)
        if _is_new(news, record) and _may_send(record, now, intervals.quiet):
            by_key[news.kind, news.subject].append(news)
    return [_notification(key, new, records.get(key, NEVER), now) for key, new in by_key.items()]


def _is_new(news: News, record: NotificationRecord) -> bool:
    """Whether the event was not reported. Full records forget, so old ones count as reported."""
    if record.seen_until is None or news.time > record.seen_until:
        return True
    remembered = len(record.seen) < SEEN_MAX or news.time > record.seen_until - OVERLAP
    return remembered and _short(news) not in record.seen


def _may_send(record: NotificationRecord, now: datetime, pause: timedelta) -> bool:
    return record.sent_at is None or now >= record.sent_at + pause


def _notification(
    key: Key, new: Sequence[News], record: NotificationRecord, now: datetime
) -> Notification:
    newest = max(new, key=lambda news: news.time)
    more = f" ({len(new) - 1} more of this kind)" if len(new) > 1 else ""
    combined = replace(newest, text=f"{newest.text}{more}", data={**newest.data, "count": len(new)})
    until = max(newest.time, record.seen_until or newest.time)
    seen = (*record.seen, *map(_short, new))[-SEEN_MAX:]
    return Notification(key, combined, replace(record, seen=seen, seen_until=until, sent_at=now))


def _short(news: News) -> str:
    return hashlib.sha256(news.news_id.encode()).hexdigest()[:8]


def due_conditions(
    lasting: Iterable[News],
    records: Mapping[Key, NotificationRecord],
    now: datetime,
    intervals: NotificationIntervals,
) -> list[Notification]:
    """Conditions when they begin and after the repeat interval, once in a quiet interval."""
    notifications = []
    for key, news in _by_key(lasting).items():
        record = records.get(key, NEVER)
        pause = intervals.repeat if record.lasting_since else intervals.quiet
        if _may_send(record, now, pause):
            since = record.lasting_since or now
            news_id = f"{_began(key, since)}/{_moment(now)}"
            ends_at = now + intervals.repeat + OVERDUE
            dated = replace(news, news_id=news_id, time=now, ends_at=ends_at)
            after = replace(record, sent_at=now, lasting_since=since, severity=str(news.severity))
            notifications.append(Notification(key, dated, after))
    return notifications


def due_endings(
    lasting: Iterable[News],
    records: Mapping[Key, NotificationRecord],
    now: datetime,
    intervals: NotificationIntervals,
    unread: Sequence[str] = (),
) -> list[Notification]:
    """Notifications that a reported condition has ended: it is not among ``lasting`` and its
    subject could be read. That of several resources allows ALONE_MAX unread ones."""
    present = _by_key(lasting)
    return [
        _over(key, record, now)
        for key, record in records.items()
        if record.lasting_since
        and key not in present
        and not any(key[1] == name or key[1].startswith(f"{name}/") for name in unread)
        and not (key[1].startswith(SEVERAL) and len(unread) > ALONE_MAX)
        and _may_send(record, now, intervals.quiet)
    ]


def alike(due: Iterable[Notification]) -> Iterator[list[Notification]]:
    """The notifications, grouped by kind and severity if there are more than ALIKE_MAX of both."""
    groups: dict[Any, list[Notification]] = defaultdict(list)
    for each in due:
        groups[each.news.kind, each.news.severity, each.news.ended].append(each)
    for group in groups.values():
        yield from [group] if len(group) > ALIKE_MAX else [[each] for each in group]


def together(group: Sequence[Notification]) -> News:
    """One notification for the whole group."""
    first, others = group[0].news, [each.news.subject for each in group[1:]]
    if not others:
        return first
    return replace(
        first,
        headline=f"{first.headline} (and {len(others)} more of this kind)",
        text=explained(first.text, f"The others are {listed(others, SUBJECTS_MAX)}."),
        data={**first.data, "count": len(group)},
        others=tuple(others),
    )


def _by_key(lasting: Iterable[News]) -> dict[Key, News]:
    return {(news.kind, news.subject): news for news in lasting}


def _over(key: Key, record: NotificationRecord, now: datetime) -> Notification:
    assert record.lasting_since is not None
    kind, subject = key
    minutes = (now - record.lasting_since).total_seconds() / 60
    news = News(
        news_id=f"{_began(key, record.lasting_since)}/over",
        kind=f"{kind}{OVER}",
        subject=subject,
        time=now,
        headline=f"{subject}: no longer {kind.replace('.', ' ')}",
        text=f"It was first reported {minutes:.0f} min ago.",
        ended=next((each for each in Severity if each == record.severity), None),
    )
    return Notification(key, news, replace(record, sent_at=now, lasting_since=None, severity=""))


def _began(key: Key, since: datetime) -> str:
    return f"{'/'.join(key)}/{_moment(since)}"


def _moment(time: datetime) -> str:
    return f"{time:%Y%m%dT%H%M%S}"
