"""What telling people needs from the outside, and no more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Protocol

from shared.notifications.news import News
from shared.notifications.telling import Key, NotificationRecord, Telling


class NotSent(Exception):
    """The news did not arrive; they are told again."""


@dataclass(frozen=True, slots=True)
class Look:
    """Up to when everything of one source was told or needs no telling; ``version`` is the mark
    of its row."""

    until: datetime
    version: str | None = None


@dataclass(frozen=True, slots=True)
class NotificationHistory:
    """What was told of every kind and subject, and how far each source was looked through, at the
    store's time."""

    memories: Mapping[Key, NotificationRecord]
    read_at: datetime
    looks: Mapping[str, Look] = field(default_factory=lambda: MappingProxyType({}))


class NotificationStore(Protocol):
    """Remembers what was told."""

    async def read(self) -> NotificationHistory: ...

    async def remember(self, telling: Telling) -> None:
        """Write the memory over the version that was read. Raises Forgotten where it is another."""
        ...

    async def looked(self, source: str, look: Look) -> None:
        """Write how far a source was looked through, over the version that was read.

        Raises Forgotten where it is another.
        """
        ...

    async def close(self) -> None: ...


class Forgotten(Exception):
    """Somebody else told of it meanwhile."""


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
