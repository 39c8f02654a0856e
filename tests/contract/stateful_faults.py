"""Runs a memory twin and a real adapter side by side, with faults on the way to the service.

A machine of `hypothesis.stateful` makes the calls. Each call goes to both implementations, and
both must give the same answer. The real client gets a transport that shows it the machine's clock
as the server's time, loses replies, times out, or lets a second writer go first.

`STATEFUL_EXAMPLES=200` runs so many random examples of each machine, and shortens a failing one;
without it each machine runs a few, the same ones each time, and shows a failing one as it is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import format_datetime
from enum import Enum
from typing import Any, cast
from unittest.mock import patch

from azure.core.exceptions import AzureError, ServiceResponseError
from azure.core.pipeline.transport import AioHttpTransport
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from shared.adapters.arm import app_service
from shared.adapters.azure.transport import LoopbackTransport, ServerTimeTransport
from shared.adapters.queues import backlog as storage_queue
from shared.adapters.service_bus import backlog as service_bus
from shared.adapters.tables import table as tables
from tests.builders import NOW

Call = Callable[[], Awaitable[Any]]
READS = ("GET", "HEAD")
STEPS = 40


class Fault(Enum):
    """What happens to the first write of a call."""

    NONE = "none"
    LOST = "it takes effect, and the reply is lost"
    SERVER_ERROR = "it takes effect, the answer is 500, and the client repeats the request"
    TIMEOUT = "it does not take effect, and no answer comes in time"


FAULTS = st.sampled_from((*[Fault.NONE] * 5, Fault.LOST, Fault.SERVER_ERROR, Fault.TIMEOUT))
MOSTLY_NOT = st.sampled_from((False, False, False, True))


class OutcomeUnknown(Exception):
    """Stands for any error after which the caller does not know whether its write took effect."""


class Network:
    """What lies between the clients of one machine and their service."""

    def __init__(self) -> None:
        self.now: datetime = NOW
        """The clock of all servers."""
        self.per_request = timedelta()
        """How far each request moves the clock."""
        self._fault = Fault.NONE
        self._before_write: Call | None = None

    def arm(self, fault: Fault, before_write: Call | None) -> None:
        self._fault, self._before_write = fault, before_write

    def disarm(self) -> tuple[bool, bool]:
        """Whether the fault has struck, and whether the second writer has written."""
        struck, raced = self._fault is Fault.NONE, self._before_write is None
        self.arm(Fault.NONE, None)
        return struck, raced

    async def take_fault(self) -> Fault:
        fault, before_write = self._fault, self._before_write
        self.arm(Fault.NONE, None)
        if before_write is not None:
            await before_write()
        return fault

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Clients that are made meanwhile go through this network."""

        def plain() -> Any:
            return _transport(ServerTimeTransport, self)

        def loopback(_url: str) -> Any:
            return _transport(LoopbackTransport, self)

        with (
            patch.object(tables, "ServerTimeTransport", plain),
            patch.object(storage_queue, "ServerTimeTransport", plain),
            patch.object(service_bus, "transport_for", loopback),
            patch.object(app_service, "transport_for", loopback),
        ):
            yield


class _Unreliable(AioHttpTransport):  # type: ignore[misc]  # azure-core exports it lazily
    network: Network

    async def send(self, request: Any, **options: Any) -> Any:
        writes = request.method not in READS
        fault = await self.network.take_fault() if writes else Fault.NONE
        if fault is Fault.TIMEOUT:
            raise TimeoutError("the machine let the request time out")
        self.network.now += self.network.per_request
        response = await super().send(request, **options)
        if fault is Fault.LOST:
            response.internal_response.close()
            raise ServiceResponseError("the machine lost the reply")
        if fault is Fault.SERVER_ERROR:
            response.status_code = 500
        response.headers["Date"] = format_datetime(self.network.now, usegmt=True)
        return response


def _transport(kind: type[ServerTimeTransport], network: Network) -> Any:
    transport = type(kind.__name__, (kind, _Unreliable), {})()
    transport.network = network
    return transport


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call gave: a value, or an error of the port."""

    value: Any = None
    error: type[Exception] | None = None


@dataclass(frozen=True, slots=True)
class Both:
    """The same thing as the twin has it, and as the adapter has it."""

    twin: Any
    real: Any


class SideBySide(RuleBasedStateMachine):
    """The base of the machines. `errors` are those that the port documents."""

    errors: tuple[type[Exception], ...] = ()
    conflicts: tuple[type[Exception], ...] = ()
    """Of them those that a write may meet because it took effect already, unheard of."""

    def __init__(self, runner: asyncio.Runner, network: Network) -> None:
        super().__init__()
        self.runner, self.network = runner, network
        self.network.now = NOW

    def run(self, call: Call) -> Any:
        """In a task of its own: nothing of an earlier call's context, such as a time, is left."""

        async def called() -> Any:
            return await call()

        return self.runner.run(called(), context=Context())

    async def _answer(self, call: Call) -> Answer:
        try:
            return Answer(await call())
        except self.errors as error:
            return Answer(error=type(error))
        except (AzureError, TimeoutError):
            return Answer(error=OutcomeUnknown)

    def both(
        self,
        twin: Call,
        real: Call,
        *,
        shown: Callable[[Any], Any] = lambda value: value,
        fault: Fault = Fault.NONE,
        first: tuple[Call, Call] | None = None,
        knows_own: bool = False,
    ) -> Both | None:
        """Make the call on both and compare. Answers the values, where neither raised an error.

        `first` is what a second writer does just before the call's first write, on the twin and
        on the service. `knows_own`: a write that the client repeats is recognised as its own.
        """
        others: list[Answer] = []
        if first:  # of a write that loses a race, a lost reply hides that it was refused
            fault = Fault.NONE

        async def second_writer() -> None:
            assert first is not None
            others.append(await self._answer(first[1]))

        self.network.arm(fault, second_writer if first else None)
        found = self.run(lambda: self._answer(real))
        struck, _ = self.network.disarm()
        if first and others:
            self.same(self.run(lambda: self._answer(first[0])), others[0], shown)
        if fault is Fault.TIMEOUT and struck:
            assert found.error is OutcomeUnknown, f"timed out, but {found}"
            return None
        expected = self.run(lambda: self._answer(twin))
        repeated = fault is Fault.SERVER_ERROR and not knows_own
        may_differ = struck and (fault is Fault.LOST or repeated)
        if not may_differ or found.error not in (OutcomeUnknown, *self.conflicts):
            self.same(expected, found, shown)
        if expected.error or found.error:
            return None
        return Both(expected.value, found.value)

    def same(self, expected: Answer, found: Answer, shown: Callable[[Any], Any]) -> None:
        both = f"the twin:    {expected}\nthe adapter: {found}"
        assert found.error is expected.error, both
        assert found.error or shown(found.value) == shown(expected.value), both

    def later(self, seconds: float) -> None:
        self.network.now += timedelta(seconds=seconds)


def run_machine(make: Callable[[], SideBySide], examples: int, steps: int = STEPS) -> None:
    """Examples of a machine: so many, or as many as STATEFUL_EXAMPLES says."""
    told = os.environ.get("STATEFUL_EXAMPLES")
    options = settings(
        max_examples=int(told or examples),
        stateful_step_count=steps,
        derandomize=told is None,
        phases=(Phase.generate, Phase.shrink) if told else (Phase.generate,),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        report_multiple_bugs=False,
    )
    # Any callable that makes a machine will do.
    run_state_machine_as_test(cast("type[SideBySide]", make), settings=options)


HOSTILE = ("a|b", "sales/ü#?", "x\\y%41", "=2F", "..", " ", "'or''", "😀" * 3, "a\x00b\n")
"""Names and texts that services read as something else unless they are encoded."""
names = st.sampled_from(HOSTILE)
texts = st.one_of(names, st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
