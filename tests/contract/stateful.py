"""Random sequences of calls on a memory twin and a real adapter, whose answers must be the same.

A ``Machine`` makes each call of a sequence on both sides. It compares the answers, or the errors,
and after every step what both sides remember. Some calls fail on the way to the store: before they
are carried out, or after that, so that only their reply is lost. Of such a call it is not known
whether it took effect. Then the real side must be as if the call was never made, or as if it
succeeded.

What may differ between the sides, and is compared in another way:

- Version tokens: each side has its own. One side's token must change exactly when the other's does.
- Times by the store's clock: they must lie within ``A_MOMENT`` of when the call was made.

The default is a few hundred steps, the same ones in every run. ``STATEFUL_EXAMPLES=500`` runs so
many sequences for each machine and backend, and different ones each time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Generic, TypeVar

import pytest
from azure.core.exceptions import ServiceRequestError, ServiceResponseError
from azure.core.pipeline.transport import AsyncHttpTransport
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

from shared.adapters.azure.transport import ServerTimeTransport
from shared.adapters.sql.engine import Sql

T = TypeVar("T")
MORE = os.environ.get("STATEFUL_EXAMPLES", "")
A_MOMENT = timedelta(seconds=5)
REAL_BACKENDS = ("tables", "sqlite", "postgres")


# --- faults on the way to a store ---------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """What happens to the requests of one call, from request number ``after`` on. A client may
    repeat a request by itself; with more than one step its repetitions fail too."""

    name: str
    steps: tuple[str, ...] = field(default=(), repr=False)
    after: int = field(default=0, repr=False)


NO_FAULT = Fault("no fault")
GIVES_UP = ("not sent",) * 8
FAULTS = [
    Fault("the reply is lost", ("reply lost",)),
    Fault("the second reply is lost", ("reply lost",), 1),
    Fault("the reply is lost, and then the connection", ("reply lost", *GIVES_UP)),
    Fault("the second reply is lost, and then the connection", ("reply lost", *GIVES_UP), 1),
    Fault("no connection", GIVES_UP),
    Fault("no connection after the first request", GIVES_UP, 1),
]


def faults(weight: int = 3) -> st.SearchStrategy[Fault]:
    """No fault ``weight`` times as often as any."""
    return st.sampled_from([NO_FAULT] * weight * len(FAULTS) + FAULTS)


class Wire:
    """The way to all stores of a test. Commits of a database and requests of a table count."""

    def __init__(self) -> None:
        self._faulty = False
        self._coming: list[str] = []

    @contextmanager
    def under(self, fault: Fault) -> Iterator[None]:
        self._faulty = fault is not NO_FAULT
        self._coming = ["works"] * fault.after + list(fault.steps)
        try:
            yield
        finally:
            self._faulty, self._coming = False, []

    def next(self) -> str:
        return self._coming.pop(0) if self._coming else "works"

    def through_tables(self, patch: pytest.MonkeyPatch) -> None:
        send, sleep = ServerTimeTransport.send, AsyncHttpTransport.sleep

        async def faulty_send(transport: Any, request: Any, **options: Any) -> Any:
            coming = self.next()
            if coming == "not sent":
                raise ServiceRequestError("there is no connection")
            response = await send(transport, request, **options)
            if coming == "reply lost":
                raise ServiceResponseError("the reply was lost")
            return response

        async def short_sleep(transport: Any, duration: float) -> None:
            await sleep(transport, 0 if self._faulty else duration)

        patch.setattr(ServerTimeTransport, "send", faulty_send)
        patch.setattr(AsyncHttpTransport, "sleep", short_sleep)  # before the client tries again

    def through(self, sql: Sql) -> None:
        dialect = sql.engine.dialect
        commit, error = dialect.do_commit, dialect.loaded_dbapi.OperationalError

        def faulty_commit(connection: Any) -> None:
            coming = self.next()
            if coming == "not sent":
                raise error("there is no connection")
            commit(connection)
            if coming == "reply lost":
                raise error("the reply was lost")

        vars(dialect)["do_commit"] = faulty_commit  # of this engine only


# --- the two sides ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Both(Generic[T]):
    """What each side answered: a version is given back to the side that it came from."""

    twin: T
    real: T

    def of(self, side: Side) -> T:
        return self.twin if side.is_twin else self.real


@dataclass(frozen=True)
class Side:
    """The stores of one side, by the name of their port."""

    is_twin: bool
    stores: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.stores[name]


Call = Callable[[Side], Awaitable[Any]]


@dataclass(frozen=True)
class Look:
    """What a side remembers: ``plain`` must be the same on both, ``tokens`` has the version of each
    row by a name of the row, and ``handles`` are answers to use in later calls, by a name of each.
    """

    plain: Any
    tokens: Mapping[Any, Any]
    handles: Mapping[Any, Any] = field(default_factory=dict)


def same(answer: Any) -> Any:
    return answer


class Machine(RuleBasedStateMachine):
    """The base of a machine for one port: its rules call ``step`` and ``race``.

    A subclass has ``open`` and ``look``; ``errors`` are those that the port promises, ``lost_race``
    those by which a client's own repetition of a call may be refused.
    """

    errors: ClassVar[tuple[type[Exception], ...]]
    unavailable: ClassVar[type[Exception]]
    lost_race: ClassVar[tuple[type[Exception], ...]]

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.wire = wire
        self.began = self.ended = datetime.now(UTC)
        self.slowest = timedelta(0)
        self._stack = AsyncExitStack()
        self._tokens: dict[Any, list[Both[Any]]] = {}
        self.handles: dict[Any, list[Both[Any]]] = {}
        self.twin, self.real = (Side(n == 0, s) for n, s in enumerate(self.run(self._open())))

    async def _open(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        return await self.open(self._stack)

    async def open(self, stack: AsyncExitStack) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The stores of the twin, by ``self.clock``, and those of the real side."""
        raise NotImplementedError

    async def look(self, side: Side) -> Look:
        """What the side remembers, as far as both sides must agree."""
        raise NotImplementedError

    def clock(self) -> datetime:
        """The twin's: when the step began."""
        return self.began

    def run(self, work: Awaitable[T]) -> T:
        async def running() -> T:
            return await work

        return self.runner.run(running())

    # --- steps ---

    def step(
        self,
        call: Call,
        plain: Callable[[Any], Any] = same,
        fault: Fault = NO_FAULT,
        repeatable: bool = False,
    ) -> Both[Any] | None:
        """Make a call on both sides; what both answer, or None where it failed.

        ``plain`` is the part of an answer that both sides share. A ``repeatable`` call may take
        effect in part, and is made again after a fault.
        """
        real = self._on_real(call, fault)
        if fault is not NO_FAULT and isinstance(real, self.unavailable):
            if repeatable:
                real = self._on_real(call, NO_FAULT)
            elif self.agree():
                return None  # it was not carried out
        twin = self.run(self._outcome(self.twin, call))
        if fault is not NO_FAULT and not isinstance(twin, Exception):
            assert isinstance(real, (*self.lost_race, self.unavailable)) or not _failed(real), real
            if _failed(real):
                return None  # it was carried out: the invariant says whether all of it was
        return self._compared(twin, real, plain)

    def race(self, first: Call, second: Call, plain: Callable[[Any], Any] = same) -> None:
        """Make two calls at the same time; the twin does those first that the real side did."""

        async def together() -> list[Any]:
            calls = [self._outcome(self.real, call) for call in (first, second)]
            return await asyncio.gather(*calls)

        self.began = datetime.now(UTC)
        outcomes = list(zip((first, second), self.run(together()), strict=True))
        self._note_end()
        for call, real in sorted(outcomes, key=lambda outcome: _failed(outcome[1])):
            self._compared(self.run(self._outcome(self.twin, call)), real, plain)

    def _on_real(self, call: Call, fault: Fault) -> Any:
        self.began = datetime.now(UTC)
        with self.wire.under(fault):
            outcome = self.run(self._outcome(self.real, call))
        self._note_end()
        return outcome

    def _note_end(self) -> None:
        self.ended = datetime.now(UTC)
        self.slowest = max(self.slowest, self.ended - self.began)

    async def _outcome(self, side: Side, call: Call) -> Any:
        try:
            return await call(side)
        except self.errors as error:
            return error

    def _compared(self, twin: Any, real: Any, plain: Callable[[Any], Any]) -> Both[Any] | None:
        if _failed(twin) or _failed(real):
            assert type(real) is type(twin), f"twin: {twin!r}, real: {real!r}"
            return None
        assert plain(real) == plain(twin)
        return Both(twin, real)

    # --- what both sides remember ---

    def agree(self) -> bool:
        """Whether both sides remember the same."""
        return self._difference() == ""

    @invariant()
    def both_sides_remember_the_same(self) -> None:
        difference = self._difference()
        assert not difference, difference

    def _difference(self) -> str:
        twin, real = (self.run(self.look(side)) for side in (self.twin, self.real))
        if twin.plain != real.plain:
            return f"twin: {twin.plain!r}\nreal: {real.plain!r}"
        found = {name: Both(token, real.tokens[name]) for name, token in twin.tokens.items()}
        for name, tokens in found.items():
            for known in self._tokens.get(name, []):
                if (known.twin == tokens.twin) != (known.real == tokens.real):
                    return f"version of {name}: {known}, then {tokens}"
        for name, tokens in found.items():
            seen = self._tokens.setdefault(name, [])
            if tokens not in seen:
                seen.append(tokens)
        self.keep({name: Both(h, real.handles[name]) for name, h in twin.handles.items()})
        return ""

    def keep(self, handles: Mapping[Any, Both[Any]]) -> None:
        """Remember handles; the latest of a name comes last."""
        for name, handle in handles.items():
            known = self.handles.setdefault(name, [])
            if not known or known[-1].twin != handle.twin:
                known.append(handle)

    def is_now(self, time: datetime) -> bool:
        """Whether it can be the store's time of the step that was made last."""
        return self.began - A_MOMENT <= time <= self.ended + A_MOMENT

    def is_as_long(self, twin: timedelta, real: timedelta) -> bool:
        """Whether both waited as long, as far as the twin's clock of whole steps can tell."""
        return abs(twin - real) <= A_MOMENT + 2 * self.slowest

    def teardown(self) -> None:
        self.run(self._stack.aclose())
        self.runner.close()


def _failed(outcome: Any) -> bool:
    return isinstance(outcome, Exception)


def run_machine(make: Callable[[], Machine], examples: int, steps: int = 30) -> None:
    """So many sequences of so many steps each."""
    run_state_machine_as_test(
        make,  # type: ignore[arg-type]  # it is called, as a class is
        settings=settings(
            max_examples=int(MORE) if MORE else examples,
            stateful_step_count=steps,
            derandomize=not MORE,
            database=None,
            print_blob=True,
            report_multiple_bugs=False,
        ),
    )
