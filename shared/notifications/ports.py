"""What notifying people needs from the outside, and no more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Protocol

from shared.notifications.news import News
from shared.notifications.selection import Key, Notification, NotificationRecord


class NotSent(Exception):
    """The news did not arrive; they are told again."""


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """Up to when everything that one source had was sent or is not to be; ``version`` is the mark
    of its row."""

    until: datetime
    version: str | None = None


@dataclass(frozen=True, slots=True)
class NotificationHistory:
    """What was sent of every kind and subject, and how far each source was read, at the store's
    time."""

    records: Mapping[Key, NotificationRecord]
    read_at: datetime
    progress: Mapping[str, SourceProgress] = field(default_factory=lambda: MappingProxyType({}))


class NotificationStore(Protocol):
    """Remembers what was sent."""

    async def read(self) -> NotificationHistory: ...

    async def save(self, notification: Notification) -> None:
        """Write the record over the version that was read.

        Raises NotificationConflict where it is another.
        """
        ...

    async def save_progress(self, source: str, progress: SourceProgress) -> None:
        """Write how far a source was read, over the version that was read.

        Raises NotificationConflict where it is another.
        """
        ...

    async def close(self) -> None: ...


class NotificationConflict(Exception):
    """Somebody else has sent it meanwhile."""


class Notifier(Protocol):
    """Reaches people."""

    async def tell(self, news: News) -> None:
        """Raises NotSent."""
        ...


@dataclass(frozen=True, slots=True)
class Observed:
    """What one place has to tell: events since a time, and what lasts now.

    ``unasked`` are subjects that could not be asked: what was told to last there goes on, and
    below them (``plan-1`` stands for ``plan-1/backlog`` too).
    """

    events: Sequence[News] = ()
    conditions: Sequence[News] = ()
    unasked: Sequence[str] = ()


Source = Callable[[datetime, datetime], Awaitable[Observed]]
"""Looks from a time on, at another, which is now."""
