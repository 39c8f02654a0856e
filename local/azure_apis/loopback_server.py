"""What the HTTP stand-ins share: a server on 127.0.0.1 that can be told to fail.

A stand-in answers a `Request` with a `Reply`, without input or output of its own. The server
adds what every Azure front door has: a `Date` header, 401 without a token, and on demand
delays and faults.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Self

from aiohttp import web

from local.clock import Clock, utc_now
from local.faults import FaultSwitches

HOST = "127.0.0.1"
REQUESTS_KEPT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Request:
    """`path` is decoded and without the query; header and query names are lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    time: datetime


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: str = ""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class Fault:
    """What to do to a request instead of answering it rightly.

    `reply` is sent in place of the right one; None leaves the client hanging until it gives
    up or the server closes. With `does_work` the request takes effect first: a lost reply.
    `methods` limits it to some HTTP methods; empty means all.
    """

    reply: Reply | None
    does_work: bool = False
    methods: frozenset[str] = frozenset()

    def strikes(self, method: str) -> bool:
        return not self.methods or method in self.methods


HANG = Fault(reply=None)
LOST_REPLY = Fault(reply=None, does_work=True, methods=frozenset({"PUT", "DELETE"}))


class LoopbackServer(ABC):
    """An HTTP server for the length of an `async with`, on a free port unless one is given.

    `delay_seconds` holds back every reply. `fail_next` arms faults. `requests` are the latest
    requests, oldest first.
    """

    def __init__(self, *, port: int = 0, clock: Clock = utc_now) -> None:
        self.port = port
        self.clock = clock
        self.delay_seconds = 0.0
        self.requests: deque[Request] = deque(maxlen=REQUESTS_KEPT_MAX)
        self._faults = FaultSwitches[Fault]()
        self._closing = asyncio.Event()
        self._runner: web.ServerRunner | None = None

    @property
    def base_url(self) -> str:
        """As the clients want it: they insist on https, and their transport rewrites it."""
        return f"https://{HOST}:{self.port}"

    def fail_next(self, fault: Fault, times: int = 1) -> None:
        """Let the next `times` requests that `fault` strikes meet it. Faults queue up."""
        self._faults.arm(fault, times=times)

    def stop_failing(self) -> None:
        """Disarm all faults. A request that hangs already stays hanging."""
        self._faults.disarm()

    @abstractmethod
    def handle(self, request: Request) -> Reply:
        """The right answer, taking effect."""

    @abstractmethod
    def unauthorized(self) -> Reply:
        """The answer to a request without an Authorization header."""

    def observe(self, request: Request, done: Reply | None, sent: Reply | None) -> None:  # noqa: B027
        """A hook for logs. `done` took effect unless None; `sent` went out unless None."""

    async def __aenter__(self) -> Self:
        self._closing.clear()
        self._runner = web.ServerRunner(web.Server(self._respond))
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, self.port).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._closing.set()
        if self._runner is not None:
            await self._runner.cleanup()

    def new_connection(self) -> asyncio.Protocol:
        """A protocol for one connection, for whoever accepts it; only within the `async with`."""
        if self._runner is None or self._runner.server is None:
            raise RuntimeError("the stand-in has not started")
        return self._runner.server()

    async def _respond(self, raw: web.BaseRequest) -> web.Response:
        request = await self._received(raw)
        self.requests.append(request)
        reply = self._answer(request)
        await self._wait(None if reply is None else self.delay_seconds)
        reply = reply or Reply(503)
        date = format_datetime(self.clock().astimezone(UTC), usegmt=True)
        return web.Response(
            status=reply.status,
            text=reply.body,
            content_type=reply.content_type,
            headers={**reply.headers, "Date": date},
        )

    async def _received(self, raw: web.BaseRequest) -> Request:
        return Request(
            method=raw.method,
            path=raw.path,
            query={name.lower(): value for name, value in raw.query.items()},
            headers={name.lower(): value for name, value in raw.headers.items()},
            body=await raw.read(),
            time=self.clock(),
        )

    def _answer(self, request: Request) -> Reply | None:
        fault = self._faults.next_for(request.method)
        done = self._done(request) if fault is None or fault.does_work else None
        sent = done if fault is None else fault.reply
        self.observe(request, done, sent)
        return sent

    def _done(self, request: Request) -> Reply:
        if "authorization" not in request.headers:
            return self.unauthorized()
        return self.handle(request)

    async def _wait(self, seconds: float | None) -> None:
        """None waits until the server closes. Closing cuts any wait short."""
        if seconds == 0:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return
