"""The base of the HTTP stand-ins: a server on 127.0.0.1 with faults on demand.

A stand-in turns a `Request` into a `Reply` without any network code. The server adds what every
Azure endpoint has: a `Date` header, and 401 for a request without a token. On demand, it checks the
tokens, delays replies and applies faults.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Self

from aiohttp import web

from local.clock import Clock, utc_now
from local.faults import FaultSwitches
from local.tokens import TokenRefused, accepted_bearer

HOST = "127.0.0.1"
REQUESTS_KEPT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Request:
    """A request. `path` is decoded and has no query. Header and query names are lower case."""

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
    """A fault that replaces the correct answer to a request.

    `reply` is sent instead of the correct reply. None leaves the client waiting until it gives
    up or the server closes. With `does_work` the request takes effect first: its reply is lost.
    `methods` limits the fault to these HTTP methods; empty means all.
    """

    reply: Reply | None
    does_work: bool = False
    methods: frozenset[str] = frozenset()

    def strikes(self, method: str) -> bool:
        return not self.methods or method in self.methods


HANG = Fault(reply=None)
LOST_REPLY = Fault(reply=None, does_work=True, methods=frozenset({"PUT", "DELETE"}))


class LoopbackServer(ABC):
    """An HTTP server during an `async with`. Port 0 takes a free port.

    `delay_seconds` delays every reply. `fail_next` arms faults. `requests` holds the latest
    requests, oldest first; `answered` counts them all by method and status. With an `audience`,
    only tokens of Microsoft Entra ID for it are accepted, which expire by `token_clock`; else any.
    """

    def __init__(self, *, port: int = 0, clock: Clock = utc_now) -> None:
        self.port = port
        self.clock = clock
        self.audience = ""
        self.token_clock: Clock = utc_now
        self.delay_seconds = 0.0
        self.requests: deque[Request] = deque(maxlen=REQUESTS_KEPT_MAX)
        self.answered: Counter[tuple[str, int]] = Counter()
        self._faults = FaultSwitches[Fault]()
        self._closing = asyncio.Event()
        self._runner: web.ServerRunner | None = None

    @property
    def base_url(self) -> str:
        """The address for the clients. They require https, and their transport rewrites it."""
        return f"https://{HOST}:{self.port}"

    def fail_next(self, fault: Fault, times: int = 1) -> None:
        """Apply `fault` to the next `times` requests that it matches. Faults queue up."""
        self._faults.arm(fault, times=times)

    def stop_failing(self) -> None:
        """Disarm all faults. A request that already hangs is not released."""
        self._faults.disarm()

    @abstractmethod
    def handle(self, request: Request) -> Reply:
        """Carry out the request and return the correct reply."""

    @abstractmethod
    def unauthorized(self, reason: str) -> Reply:
        """The answer to a request without a token, or with one that is not accepted."""

    def observe(self, request: Request, done: Reply | None, sent: Reply | None) -> None:  # noqa: B027
        """A hook for records. `done` took effect unless None; `sent` was sent unless None."""

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
        """A protocol for a connection that another server accepted, during the `async with`."""
        if self._runner is None or self._runner.server is None:
            raise RuntimeError("the stand-in has not started: use it in an `async with`")
        return self._runner.server()

    async def _respond(self, raw: web.BaseRequest) -> web.Response:
        request = await self._received(raw)
        self.requests.append(request)
        reply = self._answer(request)
        await self._wait(None if reply is None else self.delay_seconds)
        reply = reply or Reply(503)
        self.answered[request.method, reply.status] += 1
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
        header = request.headers.get("authorization")
        if header is None:
            return self.unauthorized("The 'Authorization' header is missing.")
        try:
            if self.audience:
                accepted_bearer(header, self.audience, self.token_clock())
        except TokenRefused as error:
            return self.unauthorized(f"{error}.")
        return self.handle(request)

    async def _wait(self, seconds: float | None) -> None:
        """Wait, forever if `seconds` is None. Closing the server ends any wait."""
        if seconds == 0:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return
