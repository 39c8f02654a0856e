"""The ports of the notifier: its sources, its store, and the channel to operators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from shared.notifications.conditions import LastingCondition
from shared.notifications.selection import Key, Notification, NotificationRecord
from shared.values.news import News


class NotSent(Exception):
    """The notification did not arrive. It will be sent again."""


@dataclass(frozen=True, slots=True)
class NotificationHistory:
    """All records, at the store's time."""

    records: Mapping[Key, NotificationRecord]
    read_at: datetime


class NotificationStore(Protocol):
    """Stores which notifications were sent."""

    async def read(self) -> NotificationHistory: ...

    async def save(self, notification: Notification) -> None:
        """Raises NotificationConflict if the record has changed since it was read."""
        ...

    async def close(self) -> None: ...


class NotificationConflict(Exception):
    """Another instance has changed the row since it was read."""


class Notifier(Protocol):
    """Sends news to operators."""

    async def tell(self, news: News) -> None:
        """Raises NotSent."""
        ...


@dataclass(frozen=True, slots=True)
class Observed:
    """The news of one source: events since a given time, and the conditions that last now. Those of
    ``unread`` subjects, and of subjects below them (``plan-1/backlog``), are assumed to last."""

    events: Sequence[News] = ()
    conditions: Sequence[LastingCondition] = ()
    unread: Sequence[str] = ()


Source = Callable[[datetime, datetime], Awaitable[Observed]]
"""Reads the news of a source from the first time, at the second."""
