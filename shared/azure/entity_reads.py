"""Reads entities of a Service Bus namespace with few requests, which are spread over time."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, TypeVar

from azure.core.exceptions import AzureError, HttpResponseError

from shared.azure.refusals import REFUSED
from shared.azure.transport import retry_after_seconds
from shared.values.concurrency import AskedTogether
from shared.values.redaction import redacting

if TYPE_CHECKING:
    from shared.azure.service_bus import ArmEntities, Entity, NamespaceEntities

T = TypeVar("T")
Key = tuple[str, ...]
"""The kind and the path of an entity; without its name, all that one list names."""
Wanted = tuple[str, str]
"""The name of an entity, and a count of it."""

CREDITS_OF_A_REQUEST = 10
PAGE_SIZE, PAGES_MAX = 100, 100
LISTED_AGAIN_SECONDS = 3600.0
THROTTLED, THROTTLED_SECONDS = 429, 2.0
"""The status of a request that came too soon, and how long to wait if the answer does not say."""
ADVISED_FROM = 10


class NotNow(Exception):
    """The entity is not asked for now. The text has {where} for its place, {name} for itself."""


UNREADABLE = AzureError, AttributeError, LookupError, TypeError, ValueError, TimeoutError, NotNow


@redacting
class Turns:
    """Spaces the requests to one namespace evenly. Who was served longest ago comes first, and a
    request that serves many, of the key (), before all."""

    def __init__(self, credits_per_second: float = 500.0, seconds: float = 8.0) -> None:
        self.seconds = seconds
        self._spacing = CREDITS_OF_A_REQUEST / credits_per_second
        self._free_at = 0.0
        self._served: dict[Key, float] = {}
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._giving: asyncio.Task[None] | None = None

    async def take(self, of: Key = (), until: float | None = None) -> None:
        """Raises NotNow if there is no turn ``until`` this time of the event loop."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        heappush(self._waiting, (self._served.get(of, 0.0), next(self._order), turn))
        if self._giving is None or self._giving.done():
            self._giving = loop.create_task(self._give())
        try:
            async with asyncio.timeout_at(until):
                await turn
        except TimeoutError:
            share = "the app's share of the credits of {where} is used up"
            raise NotNow(f"{share}: {{name}} comes first in the next run") from None
        finally:
            turn.cancel()
        if of:
            self._served[of] = loop.time()

    async def _give(self) -> None:
        now = asyncio.get_running_loop().time
        while self._waiting:
            await asyncio.sleep(max(0.0, self._free_at - now()))
            *_, turn = heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                self._free_at = now() + self._spacing


@redacting
class EntityReads:
    """Reads entities of one namespace. While the service asks to wait, nothing is read."""

    def __init__(
        self,
        entities: ArmEntities | NamespaceEntities,
        turns: Turns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entities, self._turns, self._monotonic = entities, turns, monotonic
        self._waits_until = monotonic()
        self._lists: dict[Key, AskedTogether[Wanted, Entity]] = {}
        self._single_until: dict[Key, float] = {}
        self._refused: dict[Key, int] = {}

    async def read(self, kind: str, path: Sequence[str], count: str) -> Entity:
        """The entity with this count. Raises NotNow and the errors of the service."""
        *above, name = (each.lower() for each in path)
        group = kind, *above
        until = asyncio.get_running_loop().time() + self._turns.seconds
        if self._monotonic() >= self._single_until.get(group, 0.0):
            lists = self._lists.setdefault(group, AskedTogether(partial(self._list, group)))
            if listed := await lists.ask((name, count)):
                return listed
        return await self._ask(lambda: self._entities.read(kind, path), (*group, name), until)

    def advice(self) -> str:
        """What a right to list would save; empty if that is little."""
        singles = sum(self._refused.values())
        saved = singles - sum(-(-count // PAGE_SIZE) for count in self._refused.values())
        role = f"the role {self._entities.access('').role} on the namespace"
        text = f"{singles} entities are read one by one, because they may not be listed: {role}"
        return f"{text} would save {saved} requests a run" if singles >= ADVISED_FROM else ""

    async def _list(self, group: Key, asked: Sequence[Wanted]) -> Mapping[Wanted, Entity]:
        """What a list has of the entities, if it saves requests. Raises nothing: what it does not
        name is read by itself."""
        found: dict[Wanted, Entity] = {}
        wanted, pages = set(asked), 0
        names = {name for name, _ in wanted}
        if len(names) == 1:
            return found
        until = asyncio.get_running_loop().time() + self._turns.seconds / 2
        most = min(len(names) // 2, PAGES_MAX)
        self._refused.pop(group, None)
        try:
            async with asyncio.timeout_at(until), aclosing(self._entities.pages(*group)) as all_:
                while len(found) < len(wanted) and pages < most:
                    page = await self._ask(lambda: anext(all_, None), (), until)
                    if page is None:
                        break
                    pages += 1
                    found |= {
                        (name, count): page[name]
                        for name, count in wanted
                        if name in page and count in page[name].counts
                    }
        except UNREADABLE as error:
            if getattr(error, "status_code", None) not in REFUSED:
                return found
            self._refused[group] = len(names)
        if len({name for name, _ in found}) <= pages:
            self._single_until[group] = self._monotonic() + LISTED_AGAIN_SECONDS
        return found

    async def _ask(self, ask: Callable[[], Awaitable[T]], of: Key, until: float) -> T:
        self._check_throttled()
        await self._turns.take(of, until)
        self._check_throttled()
        try:
            return await ask()
        except HttpResponseError as error:
            usual = THROTTLED_SECONDS if error.status_code == THROTTLED else 0.0
            wait = retry_after_seconds(error.response)
            ends = self._monotonic() + (usual if wait is None else wait)
            self._waits_until = max(self._waits_until, ends)
            raise

    def _check_throttled(self) -> None:
        if (seconds := self._waits_until - self._monotonic()) > 0:
            raise NotNow(f"{{where}} throttles requests: {{name}} is read in {seconds:.0f} s")
