"""Operators' view of a breaker, and how they close it through an approval link, or isolate it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from shared.ingestion.breaker.announcement import opening_news
from shared.ingestion.breaker.approval import TokenRefused, issue, verify
from shared.ingestion.breaker.failure_window import Tally
from shared.ingestion.breaker.state import Breaker, BreakerMode, BreakerTimes, close, isolate
from shared.ingestion.errors import (
    HubMissing,
    HubUnavailable,
    RowChanged,
    RowUnreadable,
    StoreUnavailable,
)
from shared.ingestion.events.survey import problem
from shared.ingestion.model import LONG_AGO, Stream
from shared.ingestion.ports import HubReader
from shared.ingestion.store.breakers import BreakerSnapshot, BreakerStore
from shared.ingestion.store.events import EventStore
from shared.notifications.ports import Notifier
from shared.values.concurrency import task_runner


@dataclass(frozen=True, slots=True)
class Backlog:
    """A partition's events not accounted for (None: unknown), and whether an operator must act."""

    partition_id: str
    events: int | None
    remark: str = ""
    is_held: bool = False

    @property
    def place(self) -> str:
        every = self.partition_id == ALL
        return "all partitions" if every else f"partition {self.partition_id}"


@dataclass(frozen=True, slots=True)
class BreakerView:
    """A breaker as the page and the API show it."""

    name: str
    breaker: Breaker
    read_at: datetime
    errors: tuple[Tally, ...]
    """The newest tallies with an error."""
    backlog: tuple[Backlog, ...]


ALL = "all"
NOT_BEGUN = "no event has been delivered yet"
RACES_MAX = 10
SECONDS_MAX = 4.0
"""The backlogs that are read within this time are shown. The route waits for twice as long."""
LATE = f"no answer within {SECONDS_MAX:g} s"
AT_ONCE_MAX = 8
"""The number of partitions whose backlog is read concurrently. Each of them needs a connection."""
ERRORS_SINCE = timedelta(minutes=15)
"""A breaker is shown with the errors since this time before its last change."""


@dataclass(frozen=True, slots=True)
class BreakerController:
    """Shows and changes a breaker. The first of ``keys`` signs links; all of them verify."""

    name: str
    deployment: str
    breakers: BreakerStore
    store: EventStore
    hub: HubReader
    stream_of: Callable[[str], Stream]
    keys: Sequence[bytes]
    valid_for: timedelta
    app_url: str
    times: BreakerTimes

    def link(self, breaker: Breaker, now: datetime) -> str:
        """The link that shows and closes the incident; empty if links are not configured."""
        path = self.path(breaker, now) if self.app_url else ""
        return path and f"{self.app_url}/api/{path}"

    def path(self, breaker: Breaker, now: datetime) -> str:
        """The path of the same link, for the app's own pages, which need no address of the app."""
        if not self.keys:
            return ""
        token = issue(self.keys[0], self.deployment, self.name, breaker.epoch, now, self.valid_for)
        return f"breakers/{self.name}?token={token}"

    async def announce(self, notifier: Notifier, breaker: Breaker) -> None:
        """Announce the opening. The validity of the link starts when this is due."""
        link = self.link(breaker, breaker.announce_at or breaker.changed_at)
        await notifier.tell(opening_news(self.name, breaker, link))

    async def view(self) -> BreakerView:
        seen = await self.breakers.load()
        since = max(seen.breaker.changed_at, LONG_AGO + ERRORS_SINCE) - ERRORS_SINCE
        tallies = [each for each in await self.breakers.tallies(since) if each.last_error]
        errors = sorted(tallies, key=lambda tally: tally.bucket_start, reverse=True)
        return BreakerView(
            self.name, seen.breaker, seen.read_at, tuple(errors[:10]), await self.backlogs()
        )

    async def view_with(self, token: str) -> BreakerView:
        """The breaker, for the holder of a valid link. Raises TokenRefused."""
        self._check_signature(token)
        seen = await self.breakers.load()
        verify(self.keys, token, self.deployment, self.name, seen.read_at)
        return await self.view()

    async def close(self, token: str) -> Breaker:
        """Close the incident of the link. Raises TokenRefused."""
        self._check_signature(token)
        return await self._change(partial(self._closed, token))

    def _closed(self, token: str, seen: BreakerSnapshot) -> Breaker:
        approval = verify(self.keys, token, self.deployment, self.name, seen.read_at)
        closed = close(seen.breaker, approval.epoch, "a link", seen.read_at)
        if closed is None:
            over = seen.breaker.mode is BreakerMode.CLOSED or seen.breaker.epoch > approval.epoch
            raise TokenRefused(
                "the incident of this link is over" if over else "the link belongs to no incident"
            )
        return closed

    def _check_signature(self, token: str) -> None:
        """Check the link first, so that requests without a valid one cause no load."""
        verify(self.keys, token, self.deployment, self.name, LONG_AGO)

    async def isolate(self, reason: str) -> Breaker:
        """Isolate the breaker until a person closes it."""
        return await self._change(
            lambda seen: isolate(seen.breaker, reason, seen.read_at, self.times)
        )

    async def _change(self, change: Callable[[BreakerSnapshot], Breaker | None]) -> Breaker:
        for _ in range(RACES_MAX):
            seen = await self.breakers.load()
            after = change(seen)
            if after is None:
                return seen.breaker
            with suppress(RowChanged):
                await self.breakers.replace(seen, after)
                return after
        raise RowChanged(
            f"breaker {self.name} was changed by others {RACES_MAX} times in a row; try again"
        )

    async def backlogs(self) -> tuple[Backlog, ...]:
        """The backlog of each partition, or one for all if their names are unknown."""
        backlogs = dict[str, Backlog]()

        async def ask(partition_id: str) -> None:
            backlogs[partition_id] = await self._backlog(partition_id)

        try:
            async with asyncio.timeout(SECONDS_MAX):
                for partition_id in await self.hub.partition_ids():
                    backlogs[partition_id] = Backlog(partition_id, None, LATE)
                await task_runner(AT_ONCE_MAX)([partial(ask, each) for each in list(backlogs)])
        except HubUnavailable as error:
            is_held = isinstance(error, HubMissing)
            return (Backlog(ALL, None, f"{type(error).__name__}: {error}", is_held),)
        except TimeoutError:
            return tuple(backlogs.values()) or (Backlog(ALL, None, LATE),)
        return tuple(backlogs.values())

    async def _backlog(self, partition_id: str) -> Backlog:
        try:
            stream = self.stream_of(partition_id)
            saved = await self.store.load(stream)
            hub = await self.hub.state(stream)
        except (StoreUnavailable, HubUnavailable) as error:
            return Backlog(partition_id, None, str(error), isinstance(error, HubMissing))
        except RowUnreadable as error:
            return Backlog(partition_id, None, str(error), is_held=True)
        if why := problem(saved.checkpoint, hub, saved.read_at):
            return Backlog(partition_id, None, why, is_held=True)
        if saved.checkpoint is None:
            return Backlog(partition_id, None, NOT_BEGUN)
        return Backlog(partition_id, hub.last_enqueued - saved.checkpoint.sequence)
