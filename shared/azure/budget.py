"""Limits the requests to Azure Resource Manager, before Azure refuses them with 429.

Azure has a bucket of reads and one of writes for each subscription and identity.
https://learn.microsoft.com/azure/azure-resource-manager/management/request-limits-and-throttling
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any
from urllib.parse import urlsplit

from azure.core.exceptions import AzureError
from azure.core.pipeline.policies import AsyncHTTPPolicy

from shared.azure.transport import retry_after_seconds
from shared.values.urgency import URGENT_SECONDS_MAX, urgent_seconds

SIZES = {"reads": (250.0, 25.0), "writes": (200.0, 10.0)}
"""The requests that each bucket holds, and those with which it is refilled a second. Each answer
states what is left, because other processes with the same identity take from it, too."""
ROUTINE_SHARE, KEPT, RESERVED = 0.36, 0.34, 0.36
"""Urgent requests leave to routine ones this share of what is refilled, until this share of the
bucket is kept for them: 1,000 plans are read in about two minutes. Routine requests leave the
reserve to urgent ones, beyond what is kept. It is larger, so that urgent requests of one process
pass the routine ones of another."""
ROUTINE_SECONDS_MAX, PAUSE_SECONDS_MAX = 5.0, 600.0
STEP_SECONDS = 0.1
ROUNDING = 1e-6

SUBSCRIPTION = re.compile(r"/subscriptions/([^/?]+)", re.IGNORECASE)
THROTTLED = re.compile(rb"(?<!resourcerequests)throttled", re.IGNORECASE)
"""Other answers with 429 concern one plan, or one kind of resource (ResourceRequestsThrottled)."""


class BudgetSpent(AzureError):
    """The request was not sent: the subscription's limit of Azure Resource Manager is used up."""

    def __init__(self, wait_seconds: float) -> None:
        super().__init__(self.__doc__)
        self.wait_seconds = wait_seconds


@dataclass(slots=True)
class Bucket:
    """The tokens of one kind of request: ``level`` at the time ``at``, which may be the end of a
    pause."""

    size: float
    per_second: float
    level: float
    at: float
    taken: int = 0
    kept: float = 0.0

    def turn(self, now: float, *, urgent: bool, routine: bool) -> tuple[bool, float]:
        """Whether the next request is urgent, and the seconds until it may be sent."""
        if now > self.at:
            refill = (now - self.at) * self.per_second
            self.level = min(self.size, self.level + refill)
            self.kept = min(KEPT * self.size, self.kept + refill * ROUTINE_SHARE)
            self.at = now
        lacking = max((1 - self.kept) / ROUTINE_SHARE, 1 - self.level)
        for_routine = max(min(lacking, 1 - self.level + RESERVED * self.size), 0.0)
        for_urgent = max(1 - self.level + self.kept, 0.0) / (1 - ROUTINE_SHARE)
        is_next = urgent and not (routine and for_routine < for_urgent)
        wait = (for_urgent if is_next else for_routine) / self.per_second
        return is_next, self.at - now + (wait if wait > ROUNDING else 0.0)

    def take(self, *, urgent: bool) -> None:
        self.level, self.taken = self.level - 1, self.taken + 1
        self.kept = self.kept if urgent else max(self.kept - 1, 0.0)

    def told(self, remaining: float, sent: tuple[float, int]) -> None:
        """Lower the level to what the server had left when it got a request, which was sent at this
        time with this number, plus what was refilled since and less what was sent since."""
        at, number = sent
        left = remaining + max(self.at - at, 0.0) * self.per_second - (self.taken - number)
        self.level = max(min(self.level, left), 0.0)
        self.kept = min(self.kept, self.level)

    def pause(self, until: float) -> None:
        """Send nothing until then, and then urgent requests first."""
        self.at, self.kept = max(self.at, until), 0.0


class _Line:
    """The requests that wait for the tokens of one bucket."""

    def __init__(self, bucket: Bucket, now: Any, sleep: Any) -> None:
        self.bucket, self._now, self._sleep = bucket, now, sleep
        self._waiting: dict[bool, list[tuple[int, asyncio.Future[None], float]]]
        self._waiting = {True: [], False: []}
        self.task: asyncio.Task[None] | None = None

    async def take(self, number: int, until: float, *, urgent: bool) -> None:
        """Return when the request may be sent, the lowest number first. Raises BudgetSpent as soon
        as it is known that this is not before ``until``."""
        if until <= self.bucket.at:
            raise self._spent()
        answer = asyncio.get_running_loop().create_future()
        heappush(self._waiting[urgent], (number, answer, until))
        self._serve_ready()
        if not answer.done() and (self.task is None or self.task.done()):
            self.task = asyncio.create_task(self._serve())
        await answer

    async def _serve(self) -> None:
        while (seconds := self._serve_ready()) is not None:
            await self._sleep(min(seconds, STEP_SECONDS))

    def _serve_ready(self) -> float | None:
        """Answer all whose turn it is. Returns the seconds until the next turn, if any."""
        now = self._now()
        while True:
            for queue in self._waiting.values():
                while queue and (queue[0][1].done() or queue[0][2] <= max(now, self.bucket.at)):
                    _, answer, _ = heappop(queue)
                    if not answer.done():
                        answer.set_exception(self._spent())
            urgent, routine = map(bool, self._waiting.values())
            if not urgent and not routine:
                return None
            is_next, seconds = self.bucket.turn(now, urgent=urgent, routine=routine)
            if seconds > 0:
                return seconds
            self.bucket.take(urgent=is_next)
            heappop(self._waiting[is_next])[1].set_result(None)

    def _spent(self) -> BudgetSpent:
        return BudgetSpent(max(self.bucket.at - self._now(), 0.0))


class ArmBudget:
    """The budgets of all subscriptions, which all clients of a process share."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        *,
        routine_seconds: float = ROUTINE_SECONDS_MAX,
        urgent_seconds_max: float = URGENT_SECONDS_MAX,
    ) -> None:
        """Routine and urgent requests wait at most so long, which must be shorter than the time
        limits of their callers: these cannot know that nothing was sent."""
        self._now, self._sleep, self._numbers = now, sleep, itertools.count()
        self._routine_seconds, self._urgent_seconds_max = routine_seconds, urgent_seconds_max
        self._lines: dict[tuple[str, str], _Line] = {}

    def policy(self) -> AsyncHTTPPolicy[Any, Any]:
        """A policy for one client, to be placed behind the one that retries."""
        return _BudgetPolicy(self)

    def line(self, subscription: str, kind: str) -> _Line:
        key = subscription.lower(), kind
        if key not in self._lines:
            size, per_second = SIZES[kind]
            bucket = Bucket(size, per_second, level=size, at=self._now())
            self._lines[key] = _Line(bucket, self._now, self._sleep)
        return self._lines[key]

    async def send(self, subscription: str, kind: str, send: Callable[[], Awaitable[Any]]) -> Any:
        """Send a request when it may be sent, and obey what the answer says about the limits. A 429
        stops all requests of the subscription, and is sent again if it may wait so long."""
        line, urgent = self.line(subscription, kind), urgent_seconds.get()
        wait = min(urgent, self._urgent_seconds_max) if urgent else self._routine_seconds
        until = self._now() + wait
        number = next(self._numbers)
        while True:
            await line.take(number, until, urgent=urgent > 0)
            sent = self._now(), line.bucket.taken
            answer = await send()
            response = answer.http_response
            left = str(response.headers.get(f"x-ms-ratelimit-remaining-subscription-{kind}"))
            if re.fullmatch("[0-9]{1,9}", left):
                line.bucket.told(float(left), sent)
            if response.status_code != 429 or not await _stops_all(response):
                return answer
            line.bucket.level = 0.0
            pause = min(retry_after_seconds(response) or 0.0, PAUSE_SECONDS_MAX)
            for each in SIZES:
                self.line(subscription, each).bucket.pause(self._now() + pause)
            if line.bucket.at >= until:
                return answer

    async def close(self) -> None:
        for line in self._lines.values():
            if line.task is not None:
                line.task.cancel()


async def _stops_all(response: Any) -> bool:
    # a client may not have read the answer yet
    body = await response.read() if hasattr(response, "read") else response.body()
    return not body or bool(THROTTLED.search(body))


class _BudgetPolicy(AsyncHTTPPolicy[Any, Any]):
    def __init__(self, budget: ArmBudget) -> None:
        self._budget = budget

    async def send(self, request: Any) -> Any:
        http = request.http_request
        found = SUBSCRIPTION.match(urlsplit(http.url).path)
        if found is None:
            return await self.next.send(request)
        kind = "reads" if http.method in ("GET", "HEAD") else "writes"
        return await self._budget.send(found[1], kind, lambda: self.next.send(request))
