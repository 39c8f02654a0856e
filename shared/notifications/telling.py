"""Which news are sent now: each once, and no more than one message of a kind in a while. Pure."""

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
    """What was told of one kind and subject. ``version`` is the mark of its row."""

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
class Telling:
    """News to send, and what to remember then."""

    key: Key
    news: News
    memory: NotificationRecord


def tell_events(
    found: Iterable[News],
    known: Mapping[Key, NotificationRecord],
    now: datetime,
    patience: NotificationIntervals,
) -> list[Telling]:
    """Events: at once, or together when the quiet time is over."""
    by_key: dict[Key, list[News]] = defaultdict(list)
    for news in found:
        memory = known.get((news.kind, news.subject), NEVER)
        if _is_new(news, memory) and _may_speak(memory, now, patience.quiet):
            by_key[news.kind, news.subject].append(news)
    return [_told(key, new, known.get(key, NEVER), now) for key, new in by_key.items()]


def _is_new(news: News, memory: NotificationRecord) -> bool:
    """By its id, as long as none was forgotten; else by its time as well."""
    if memory.seen_until is None or news.time > memory.seen_until:
        return True
    known = len(memory.seen) < SEEN_MAX or news.time > memory.seen_until - OVERLAP
    return known and _short(news) not in memory.seen


def _may_speak(memory: NotificationRecord, now: datetime, pause: timedelta) -> bool:
    return memory.sent_at is None or now >= memory.sent_at + pause


def _told(key: Key, new: Sequence[News], memory: NotificationRecord, now: datetime) -> Telling:
    newest = max(new, key=lambda news: news.time)
    more = f" ({len(new) - 1} more of this kind)" if len(new) > 1 else ""
    told = replace(newest, text=f"{newest.text}{more}", data={**newest.data, "count": len(new)})
    until = max(newest.time, memory.seen_until or newest.time)
    seen = (*memory.seen, *map(_short, new))[-SEEN_MAX:]
    return Telling(key, told, replace(memory, seen=seen, seen_until=until, sent_at=now))


def _short(news: News) -> str:
    return hashlib.sha256(news.news_id.encode()).hexdigest()[:8]


def tell_conditions(
    lasting: Iterable[News],
    known: Mapping[Key, NotificationRecord],
    now: datetime,
    patience: NotificationIntervals,
) -> list[Telling]:
    """Conditions: when they begin, and again after a while; one that comes and goes is told of no
    more often than the quiet time allows.

    Their ids are made from when they began and when they are told.
    """
    tellings = []
    for key, news in _by_key(lasting).items():
        memory = known.get(key, NEVER)
        pause = patience.repeat if memory.lasting_since else patience.quiet
        if _may_speak(memory, now, pause):
            since = memory.lasting_since or now
            told = replace(news, news_id=f"{_began(key, since)}/{_moment(now)}", time=now)
            tellings.append(Telling(key, told, replace(memory, sent_at=now, lasting_since=since)))
    return tellings


def tell_ended(
    lasting: Iterable[News],
    known: Mapping[Key, NotificationRecord],
    now: datetime,
    patience: NotificationIntervals,
    unasked: Sequence[str] = (),
) -> list[Telling]:
    """Conditions that were told and are not among ``lasting`` any more, where all were asked."""
    present = _by_key(lasting)
    return [
        _over(key, memory, now)
        for key, memory in known.items()
        if memory.lasting_since
        and key not in present
        and not any(key[1] == name or key[1].startswith(f"{name}/") for name in unasked)
        and _may_speak(memory, now, patience.quiet)
    ]


def looks_from(
    looked_until: datetime | None, now: datetime, patience: NotificationIntervals
) -> datetime:
    """From when on a source is looked through: what is new since the last look, and what may have
    been written late, but no further back than events are told.

    A look from the future was written before the store's clock was set back, and says nothing."""
    earliest = now - patience.look_back
    if looked_until is None or not earliest < looked_until <= now:
        return earliest
    return max(earliest, looked_until - OVERLAP)


def settled_until(
    events: Iterable[News],
    known: Mapping[Key, NotificationRecord],
    told: Collection[Key],
    now: datetime,
) -> datetime:
    """Now, or the time of the first event that is still to be told: it was held back by the quiet
    time, or could not be sent, and must be found again."""
    waiting = [
        news.time
        for news in events
        if (key := (news.kind, news.subject)) not in told and _is_new(news, known.get(key, NEVER))
    ]
    return min([now, *waiting])


def _by_key(lasting: Iterable[News]) -> dict[Key, News]:
    return {(news.kind, news.subject): news for news in lasting}


def _over(key: Key, memory: NotificationRecord, now: datetime) -> Telling:
    assert memory.lasting_since is not None
    kind, subject = key
    minutes = (now - memory.lasting_since).total_seconds() / 60
    news = News(
        news_id=f"{_began(key, memory.lasting_since)}/over",
        kind=f"{kind}.over",
        subject=subject,
        time=now,
        headline=f"{subject}: no longer {kind.replace('.', ' ')}",
        text=f"It was first told {minutes:.0f} min ago.",
    )
    return Telling(key, news, replace(memory, sent_at=now, lasting_since=None))


def _began(key: Key, since: datetime) -> str:
    return f"{'/'.join(key)}/{_moment(since)}"


def _moment(time: datetime) -> str:
    return f"{time:%Y%m%dT%H%M%S}"
