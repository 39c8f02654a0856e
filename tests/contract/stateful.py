"""Random sequences of calls on a memory twin and a real adapter, whose answers must be the same.

A machine of `hypothesis.stateful` makes each call on both sides and compares the answers, or the
errors. Some calls fail on the way to the service, before they are carried out or after that, so
that only their reply is lost; or a second writer goes first. Of a call that failed it is not known
whether it took effect: then the real side must be as if it was never made, or as if it succeeded.

``SideBySide`` is the base of all machines, ``StoreMachine`` that of those that run on each store
of ingestion and compare after every step what both sides remember.

What may differ between the sides, and is compared in another way:

- Version tokens: each side has its own. One side's token must change exactly when the other's does.
- Times by a store's own clock: they must lie within ``A_MOMENT`` of when the call was made.

The default is a few examples, the same ones in every run. ``STATEFUL_EXAMPLES=500`` runs so many
for each machine and backend, different ones each time, and shortens one that fails.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from contextvars import Context
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar, cast

import pytest
from azure.core.exceptions import AzureError
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

from tests.builders import NOW
from tests.contract.conftest import Backend
from tests.contract.faulty_network import LOST, NO_FAULT, SERVER_ERROR, TIMEOUT, Fault, Network

T = TypeVar("T")
Call = Callable[[], Awaitable[Any]]
A_MOMENT = timedelta(seconds=5)
REAL_BACKENDS = ("tables", "sqlite", "postgres")
HOSTILE = ("a|b", "sales/ü#?", "x\\y%41", "=2F", "..", " ", "'or''", "😀" * 3, "a\x00b\n")
"""Names and texts that services read as something else unless they are encoded."""
names = st.sampled_from(HOSTILE)
texts = st.one_of(names, st.text(st.characters(exclude_categories=["Cs"]), max_size=20))


class OutcomeUnknown(Exception):
    """Stands for any error after which the caller does not know whether its write took effect."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call gave: a value, or an error of the port."""

    value: Any = None
    error: type[Exception] | None = None


@dataclass(frozen=True)
class Both(Generic[T]):
    """The same thing as the twin has it, and as the adapter has it."""

    twin: T
    real: T

    def of(self, side: Side) -> T:
        return self.twin if side.is_twin else self.real


def same(value: Any) -> Any:
    return value


class SideBySide(RuleBasedStateMachine):
    """The base of the machines. ``errors`` are those that the port documents."""

    errors: ClassVar[tuple[type[Exception], ...]] = ()
    conflicts: ClassVar[tuple[type[Exception], ...]] = ()
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
        shown: Callable[[Any], Any] = same,
        fault: Fault = NO_FAULT,
        first: tuple[Call, Call] | None = None,
        knows_own: bool = False,
    ) -> Both[Any] | None:
        """Make the call on both and compare. Answers the values, where neither raised an error.

        `first` is what a second writer does just before the call's first write, on the twin and
        on the service. `knows_own`: a write that the client repeats is recognised as its own.
        """
        others: list[Answer] = []
        if first:  # of a write that loses a race, a lost reply hides that it was refused
            fault = NO_FAULT

        async def second_writer() -> None:
            assert first is not None
            others.append(await self._answer(first[1]))

        self.network.arm(fault, second_writer if first else None)
        found = self.run(lambda: self._answer(real))
        struck = self.network.disarm()
        if first and others:
            self.same(self.run(lambda: self._answer(first[0])), others[0], shown)
        if fault is TIMEOUT and struck:
            assert found.error is OutcomeUnknown, f"timed out, but {found}"
            return None
        expected = self.run(lambda: self._answer(twin))
        repeated = fault is SERVER_ERROR and not knows_own
        may_differ = struck and (fault is LOST or repeated)
        if not may_differ or found.error not in (OutcomeUnknown, *self.conflicts):
            return self.same(expected, found, shown)
        return None

    def same(
        self, expected: Answer, found: Answer, shown: Callable[[Any], Any]
    ) -> Both[Any] | None:
        """Both values, which are the same as far as they are shown; None where both failed."""
        both = f"the twin:    {expected}\nthe adapter: {found}"
        assert found.error is expected.error, both
        if found.error:
            return None
        assert shown(found.value) == shown(expected.value), both
        return Both(expected.value, found.value)

    def later(self, seconds: float) -> None:
        self.network.now += timedelta(seconds=seconds)


# --- machines of stores, which have a clock of their own ------------------------------------------


@dataclass(frozen=True)
class Side:
    """The stores of one side, by the name of their port."""

    is_twin: bool
    stores: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.stores[name]


SideCall = Callable[[Side], Awaitable[Any]]


@dataclass(frozen=True)
class Look:
    """What a side remembers: ``plain`` must be the same on both, ``tokens`` has the version of each
    row by a name of the row, and ``handles`` are answers to use in later calls, by a name of each.
    """

    plain: Any
    tokens: Mapping[Any, Any]
    handles: Mapping[Any, Any] = field(default_factory=dict)


class StoreMachine(SideBySide):
    """The base of a machine for one port: its rules call ``step`` and ``race``.

    A subclass has ``open`` and ``look``. A fault shows as the error ``unavailable`` of the port.
    """

    unavailable: ClassVar[type[Exception]]

    def __init__(self, network: Network) -> None:
        super().__init__(asyncio.Runner(), network)
        self.began = self.ended = datetime.now(UTC)
        self.slowest = timedelta(0)
        self._stack = AsyncExitStack()
        self._tokens: dict[Any, list[Both[Any]]] = {}
        self.handles: dict[Any, list[Both[Any]]] = {}
        opened = self.run(lambda: self.open(self._stack))
        self.twin, self.real = (Side(n == 0, stores) for n, stores in enumerate(opened))

    async def open(self, stack: AsyncExitStack) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The stores of the twin, by ``self.clock``, and those of the real side."""
        raise NotImplementedError

    async def look(self, side: Side) -> Look:
        """What the side remembers, as far as both sides must agree."""
        raise NotImplementedError

    def clock(self) -> datetime:
        """The twin's: when the step began."""
        return self.began

    # --- steps ---

    def step(
        self,
        call: SideCall,
        shown: Callable[[Any], Any] = same,
        fault: Fault = NO_FAULT,
        repeatable: bool = False,
    ) -> Both[Any] | None:
        """Make a call on both sides; what both answer, or None where it failed.

        ``shown`` is the part of an answer that both sides share. A ``repeatable`` call may take
        effect in part, and is made again after a fault.
        """
        real = self._on_real(call, fault)
        if fault is not NO_FAULT and real.error is self.unavailable:
            if repeatable:
                real = self._on_real(call, NO_FAULT)
            elif self.agree():
                return None  # it was not carried out
        twin = self._on_twin(call)
        if fault is not NO_FAULT and twin.error is None and real.error is not None:
            assert real.error in (*self.conflicts, self.unavailable), real
            return None  # it was carried out: the invariant says whether all of it was
        return self.same(twin, real, shown)

    def race(self, first: SideCall, second: SideCall, shown: Callable[[Any], Any] = same) -> None:
        """Make two calls at the same time; the twin does those first that the real side did."""

        async def at_the_same_time() -> list[Answer]:
            calls = [self._answer(partial(call, self.real)) for call in (first, second)]
            return await asyncio.gather(*calls)

        self.began = datetime.now(UTC)
        outcomes = list(zip((first, second), self.run(at_the_same_time), strict=True))
        self._note_end()
        for call, real in sorted(outcomes, key=lambda outcome: outcome[1].error is not None):
            self.same(self._on_twin(call), real, shown)

    def _on_twin(self, call: SideCall) -> Answer:
        found: Answer = self.run(lambda: self._answer(partial(call, self.twin)))
        return found

    def _on_real(self, call: SideCall, fault: Fault) -> Answer:
        self.began = datetime.now(UTC)
        self.network.arm(fault)
        found: Answer = self.run(lambda: self._answer(partial(call, self.real)))
        self.network.disarm()
        self._note_end()
        return found

    def _note_end(self) -> None:
        self.ended = datetime.now(UTC)
        self.slowest = max(self.slowest, self.ended - self.began)

    # --- what both sides remember ---

    def agree(self) -> bool:
        """Whether both sides remember the same."""
        return self._difference() == ""

    @invariant()
    def both_sides_remember_the_same(self) -> None:
        difference = self._difference()
        assert not difference, difference

    def _difference(self) -> str:
        twin, real = (self.run(partial(self.look, side)) for side in (self.twin, self.real))
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
        self.run(self._stack.aclose)
        self.runner.close()


def run_machine(
    make: Callable[[], SideBySide],
    examples: int,
    steps: int = 40,
    examples_max: int = sys.maxsize,
) -> None:
    """Run so many examples of a machine, or as many as STATEFUL_EXAMPLES asks for."""
    asked = os.environ.get("STATEFUL_EXAMPLES")
    options = settings(
        max_examples=min(int(asked or examples), examples_max),
        stateful_step_count=steps,
        derandomize=asked is None,
        phases=(Phase.generate, Phase.shrink) if asked else (Phase.generate,),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        report_multiple_bugs=False,
    )
    # Any callable that makes a machine will do.
    run_state_machine_as_test(cast("type[SideBySide]", make), settings=options)


def run_store_machine(
    machine: Callable[[Network, Callable[[AsyncExitStack], Backend]], SideBySide],
    kind: str,
    request: pytest.FixtureRequest,
    examples: int,
    steps: int,
) -> None:
    """The machine of a store, on a backend of this kind that its clients reach by the network."""
    network = Network(tells_time=False)
    with network.installed():
        run_machine(
            lambda: machine(network, lambda stack: Backend(kind, request, stack)), examples, steps
        )
