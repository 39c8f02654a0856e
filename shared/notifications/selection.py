"""Which news are due: each once, and at most one message of a kind within an interval. Pure."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shared.notifications.news import News

OVERLAP = timedelta(minutes=5)
"""A line of the log may be written so much later than its time says."""
SEEN_MAX = 2000
"""Ids remembered of one kind and subject: more than are told of within OVERLAP."""


@dataclass(frozen=True, slots=True)
class NotificationIntervals:
    """At most one message of a kind and subject within ``quiet``; what lasts is told again after
    ``repeat``."""

    quiet: timedelta = timedelta(minutes=15)
    repeat: timedelta = timedelta(hours=6)

    @property
    def look_back(self) -> timedelta:
        """How old events may be when they are told: the quiet time, and an hour of standstill."""
        return self.quiet + OVERLAP + timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class NotificationRecord:
    """What was sent of one kind and subject. ``version`` is the mark of its row."""

    seen: tuple[str, ...] = ()
    """Short ids of the events that were told of late, the newest last."""
    seen_until: datetime | None = None
    """The time of the newest event that was told."""
    sent_at: datetime | None = None
    lasting_since: datetime | None = None
    """When the condition was first told that still lasts."""
    version: str | None = None


Key = tuple[str, str]
"""Kind and subject."""
NEVER = NotificationRecord()


@dataclass(frozen=True, slots=True)
class Notification:
    """News to send, and what is then to be recorded."""

    key: Key
    news: News
    record: NotificationRecord


def due_events(
    found: Iterable[News],
    known: Mapping[Key, NotificationRecord],
    now: datetime,
    intervals: NotificationIntervals,
) -> list[Notification]:
    """Events: at once, or together when the quiet time is over."""
    by_key: dict[Key, list[News]] = defaultdict(list)
    for news in found:
        record = known.get((news.kind, news.subject), NEVER)
        if _is_new(news, record) and _may_send(record, now, intervals.quiet):
            by_key[news.kind, news.subject].append(news)
    return [_notification(key, new, known.get(key, NEVER), now) for key, new in by_key.items()]


def _is_new(news: News, record: NotificationRecord) -> bool:
    """By its id, as long as none was forgotten; else by its time as well."""
    if record.seen_until is None or news.time > record.seen_until:
        return True
    known = len(record.seen) < SEEN_MAX or news.time > record.seen_until - OVERLAP
    return known and _short(news) not in record.seen


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
    known: Mapping[Key, NotificationRecord],
    now: datetime,
    intervals: NotificationIntervals,
) -> list[Notification]:
    """Conditions: when they begin, and again after an interval; one that comes and goes no more
    often than the quiet time allows.

    Their ids are made from when they began and when they are told.
    """
    notifications = []
    for key, news in _by_key(lasting).items():
        record = known.get(key, NEVER)
        pause = intervals.repeat if record.lasting_since else intervals.quiet
        if _may_send(record, now, pause):
            since = record.lasting_since or now
            dated = replace(news, news_id=f"{_began(key, since)}/{_moment(now)}", time=now)
            notifications.append(
                Notification(key, dated, replace(record, sent_at=now, lasting_since=since))
            )
    return notifications


def due_endings(
    lasting: Iterable[News],
    known: Mapping[Key, NotificationRecord],
    now: datetime,
    intervals: NotificationIntervals,
    unasked: Sequence[str] = (),
) -> list[Notification]:
    """Conditions that were told and are not among ``lasting`` any more, where all were asked."""
    present = _by_key(lasting)
    return [
        _over(key, record, now)
        for key, record in known.items()
        if record.lasting_since
        and key not in present
        and not any(key[1] == name or key[1].startswith(f"{name}/") for name in unasked)
        and _may_send(record, now, intervals.quiet)
    ]


def read_from(
    looked_until: datetime | None, now: datetime, intervals: NotificationIntervals
) -> datetime:
    """From when on a source is looked through: what is new since the last look, and what may have
    been written late, but no further back than events are told.

    A look from the future was written before the store's clock was set back, and says nothing."""
    earliest = now - intervals.look_back
    if looked_until is None or not earliest < looked_until <= now:
        return earliest
    return max(earliest, looked_until - OVERLAP)


def handled_until(
    events: Iterable[News],
    known: Mapping[Key, NotificationRecord],
    sent: Collection[Key],
    now: datetime,
) -> datetime:
    """Now, or the time of the first event that is still to be told: it was held back by the quiet
    time, or could not be sent, and must be found again."""
    waiting = [
        news.time
        for news in events
        if (key := (news.kind, news.subject)) not in sent and _is_new(news, known.get(key, NEVER))
    ]
    return min([now, *waiting])


def _by_key(lasting: Iterable[News]) -> dict[Key, News]:
    return {(news.kind, news.subject): news for news in lasting}


def _over(key: Key, record: NotificationRecord, now: datetime) -> Notification:
    assert record.lasting_since is not None
    kind, subject = key
    minutes = (now - record.lasting_since).total_seconds() / 60
    news = News(
        news_id=f"{_began(key, record.lasting_since)}/over",
        kind=f"{kind}.over",
        subject=subject,
        time=now,
        headline=f"{subject}: no longer {kind.replace('.', ' ')}",
        text=f"It was first told {minutes:.0f} min ago.",
    )
    return Notification(key, news, replace(record, sent_at=now, lasting_since=None))


def _began(key: Key, since: datetime) -> str:
    return f"{'/'.join(key)}/{_moment(since)}"


def _moment(time: datetime) -> str:
    return f"{time:%Y%m%dT%H%M%S}"
