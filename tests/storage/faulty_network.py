"""A network with faults and its own clock, between the adapters of a test and their services.

It intercepts HTTP requests in the transport of all Azure clients, and commits of a database in its
dialect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import format_datetime
from typing import Any
from unittest.mock import patch

from azure.core.exceptions import ServiceRequestError, ServiceResponseError
from azure.core.pipeline.transport import AioHttpTransport, AsyncHttpTransport
from hypothesis import strategies as st

from shared.ingestion.store.sql_engine import Sql
from tests.builders import NOW

READS = ("GET", "HEAD")


@dataclass(frozen=True)
class Fault:
    """What happens to the requests of one call, from request number ``after`` on.

    A client may repeat a request by itself. If there is more than one step, the repetitions fail
    too.
    """

    name: str
    steps: tuple[str, ...] = field(default=(), repr=False)
    after: int = field(default=0, repr=False)
    of_writes: bool = field(default=False, repr=False)
    """If true, requests that only read are neither counted nor disturbed."""


NO_FAULT = Fault("no fault")
GIVES_UP = ("not sent",) * 8
STORE_FAULTS = [
    Fault("the reply is lost", ("reply lost",)),
    Fault("the second reply is lost", ("reply lost",), 1),
    Fault("the reply is lost, and then the connection", ("reply lost", *GIVES_UP)),
    Fault("the second reply is lost, and then the connection", ("reply lost", *GIVES_UP), 1),
    Fault("no connection", GIVES_UP),
    Fault("no connection after the first request", GIVES_UP, 1),
]
LOST = Fault("the write takes effect, and the reply is lost", ("reply lost",), of_writes=True)
SERVER_ERROR = Fault(
    "the write takes effect, the response is 500, and the client repeats the request",
    ("server error",),
    of_writes=True,
)
TIMEOUT = Fault(
    "the write does not take effect, and the request times out", ("timed out",), of_writes=True
)
FAULTS = st.sampled_from((*[NO_FAULT] * 5, LOST, SERVER_ERROR, TIMEOUT))
MOSTLY_NOT = st.sampled_from((False, False, False, True))


def faults(weight: int = 3) -> st.SearchStrategy[Fault]:
    """Faults of a store. No fault is ``weight`` times as frequent as all faults together."""
    return st.sampled_from([NO_FAULT] * weight * len(STORE_FAULTS) + STORE_FAULTS)


class Network:
    """The network between the clients of one machine and their service."""

    def __init__(self, *, tells_time: bool = True) -> None:
        self.now: datetime = NOW
        """The time of all servers if ``tells_time``; otherwise each server has its own."""
        self.per_request = timedelta()
        """By how much each request advances the clock."""
        self._tells_time = tells_time
        self._fault = NO_FAULT
        self._coming: list[str] = []
        self._before_write: Callable[[], Awaitable[Any]] | None = None

    def arm(self, fault: Fault, before_write: Callable[[], Awaitable[Any]] | None = None) -> None:
        """Set the fault of the next call. ``before_write`` is what a second writer does just before
        the next write."""
        self._fault, self._before_write = fault, before_write
        self._coming = ["works"] * fault.after + list(fault.steps)

    def disarm(self) -> bool:
        """Remove the fault. Returns whether it was used up."""
        struck = not self._coming
        self.arm(NO_FAULT)
        return struck

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Send the requests of all Azure clients through this network during the block."""
        send, sleep = AioHttpTransport.send, AsyncHttpTransport.sleep

        async def faulty_send(transport: Any, request: Any, **options: Any) -> Any:
            step = await self._next(writes=request.method not in READS)
            if step == "timed out":
                raise TimeoutError("the test network let the request time out")
            if step == "not sent":
                raise ServiceRequestError("there is no connection")
            self.now += self.per_request
            response = await send(transport, request, **options)
            if step == "reply lost":
                response.internal_response.close()
                raise ServiceResponseError("the reply was lost")
            if step == "server error":
                response.status_code = 500
            if self._tells_time:
                response.headers["Date"] = format_datetime(self.now, usegmt=True)
            return response

        async def short_sleep(transport: Any, duration: float) -> None:
            await sleep(transport, 0 if self._fault is not NO_FAULT else duration)

        with (
            patch.object(AioHttpTransport, "send", faulty_send),
            patch.object(AsyncHttpTransport, "sleep", short_sleep),  # the wait before a retry
        ):
            yield

    def through(self, sql: Sql) -> None:
        """Send the commits of this database through this network too."""
        dialect = sql.engine.dialect
        commit, error = dialect.do_commit, dialect.loaded_dbapi.OperationalError

        def faulty_commit(connection: Any) -> None:
            step = self._take()
            if step == "not sent":
                raise error("there is no connection")
            commit(connection)
            if step == "reply lost":
                raise error("the reply was lost")

        vars(dialect)["do_commit"] = faulty_commit

    async def _next(self, *, writes: bool) -> str:
        if writes and self._before_write is not None:
            before_write, self._before_write = self._before_write, None
            await before_write()
        return self._take() if writes or not self._fault.of_writes else "works"

    def _take(self) -> str:
        return self._coming.pop(0) if self._coming else "works"
