"""What telling people needs from the outside, and no more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from shared.news import News
from shared.notifications.telling import Key, Memory, Telling


class NotSent(Exception):
    """The news did not arrive; they are told again."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """What was told of every kind and subject, at the store's time."""

    memories: Mapping[Key, Memory]
    read_at: datetime


class Memories(Protocol):
    """Remembers what was told."""

    async def read(self) -> Remembered: ...

    async def remember(self, telling: Telling) -> None:
        """Write the memory over the version that was read. Raises Forgotten where it is another."""
        ...

    async def close(self) -> None: ...


class Forgotten(Exception):
    """Somebody else told of it meanwhile."""


class Herald(Protocol):
    """Reaches people."""

    async def tell(self, news: News) -> None:
        """Raises NotSent."""
        ...


@dataclass(frozen=True, slots=True)
class Observed:
    """What one place has to tell: events since a time, and what lasts now."""

    events: Sequence[News] = ()
    conditions: Sequence[News] = ()


Source = Callable[[datetime, datetime], Awaitable[Observed]]
"""Looks from a time on, at another, which is now."""
