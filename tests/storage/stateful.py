"""Runs random sequences of calls on an in-memory adapter and a real one, and compares the answers.

A machine of `hypothesis.stateful` makes each call on both sides and compares the results or the
errors. Some calls fail on the way to the service: before they are executed, or afterwards, so that
only the reply is lost. In other calls a second writer goes first. After a call that failed, the
outcome is unknown: the real side must be as if the call was never made, or as if it succeeded.

``SideBySide`` is the base of all machines. ``StoreMachine`` is the base of the machines that run on
each store of ingestion. It compares the stored rows of both sides after every step.

Some values may differ between the sides and are compared in another way:

- Version tokens: each side has its own. One side's token must change exactly when the other's does.
- Times by a store's own clock: they must lie within ``A_MOMENT`` of the time of the call.

By default, a machine runs a few examples, the same ones in every run. ``STATEFUL_EXAMPLES=500``
runs 500 examples for each machine and backend, different ones each time, and shrinks an example
that fails.
"""

from __future__ import annotations

import asyncio
import os
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
from tests.ingestion.conftest import Backend
from tests.storage.faulty_network import LOST, NO_FAULT, SERVER_ERROR, TIMEOUT, Fault, Network

T = TypeVar("T")
Call = Callable[[], Awaitable[Any]]
A_MOMENT = timedelta(seconds=5)
REAL_BACKENDS = ("tables", "sqlite", "postgres")
HOSTILE = ("a|b", "sales/ü#?", "x\\y%41", "=2F", "..", " ", "'or''", "😀" * 3, "a\x00b\n")
"""Names and texts that services misinterpret unless the app encodes them."""
names = st.sampled_from(HOSTILE)
texts = st.one_of(names, st.text(st.characters(exclude_categories=["Cs"]), max_size=20))


class OutcomeUnknown(Exception):
    """Represents any error after which the caller does not know whether its write took effect."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call: a value, or the type of an error of the port."""

    value: Any = None
    error: type[Exception] | None = None


@dataclass(frozen=True)
class Both(Generic[T]):
    """The values of the in-memory adapter and of the real one that belong together."""

    memory: T
    real: T

    def of(self, side: Side) -> T:
        return self.memory if side.is_memory else self.real


def same(value: Any) -> Any:
    return value


class SideBySide(RuleBasedStateMachine):
    """The base of the machines. ``errors`` are the errors that the port documents."""

    errors: ClassVar[tuple[type[Exception], ...]] = ()
    conflicts: ClassVar[tuple[type[Exception], ...]] = ()
    """The errors that a repeated write may raise because its first attempt already took effect."""

    def __init__(self, runner: asyncio.Runner, network: Network) -> None:
        super().__init__()
        self.runner, self.network = runner, network
        self.network.now = NOW

    def run(self, call: Call) -> Any:
        """Run the call in its own task, so that it sees no context of an earlier call, such as a
        time."""

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
        memory: Call,
        real: Call,
        *,
        shown: Callable[[Any], Any] = same,
        fault: Fault = NO_FAULT,
        first: tuple[Call, Call] | None = None,
        knows_own: bool = False,
    ) -> Both[Any] | None:
        """Make the call on both sides and compare. Returns both values, or None after an error.

        `first` is what a second writer does just before the call's first write, in memory and on
        the service. `knows_own` says that the adapter recognizes a write that the client repeated
        as its own.
        """
        others: list[Answer] = []
        if first:  # if the reply of a write that loses the race is lost, its refusal is not seen
            fault = NO_FAULT

        async def second_writer() -> None:
            assert first is not None
            others.append(await self._answer(first[1]))

        self.network.arm(fault, second_writer if first else None)
        actual = self.run(lambda: self._answer(real))
        struck = self.network.disarm()
        if first and others:
            self.same(self.run(lambda: self._answer(first[0])), others[0], shown)
        if fault is TIMEOUT and struck:
            assert actual.error is OutcomeUnknown, f"the request timed out, but {actual}"
            return None
        expected = self.run(lambda: self._answer(memory))
        repeated = fault is SERVER_ERROR and not knows_own
        may_differ = struck and (fault is LOST or repeated)
        if not may_differ or actual.error not in (OutcomeUnknown, *self.conflicts):
            return self.same(expected, actual, shown)
        return None

    def same(
        self, expected: Answer, actual: Answer, shown: Callable[[Any], Any]
    ) -> Both[Any] | None:
        """Assert that both answers agree. Returns both values, or None if both are errors.

        ``shown`` is the part of a value that both sides share.
        """
        both = f"in memory:    {expected}\nreal adapter: {actual}"
        assert actual.error is expected.error, both
        if actual.error:
            return None
        assert shown(actual.value) == shown(expected.value), both
        return Both(expected.value, actual.value)

    def later(self, seconds: float) -> None:
        self.network.now += timedelta(seconds=seconds)


# --- machines of stores, which have their own clock -----------------------------------------------


@dataclass(frozen=True)
class Side:
    """The stores of one side, by the names of their ports."""

    is_memory: bool
    stores: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.stores[name]


SideCall = Callable[[Side], Awaitable[Any]]


@dataclass(frozen=True)
class Look:
    """The stored rows of one side.

    ``plain`` must be equal on both sides. ``tokens`` has the version of each row, by the row's
    name. ``handles`` has answers to use in later calls, by their names.
    """

    plain: Any
    tokens: Mapping[Any, Any]
    handles: Mapping[Any, Any] = field(default_factory=dict)


class StoreMachine(SideBySide):
    """The base of a machine for one port: its rules call ``step`` and ``race``.

    A subclass defines ``open`` and ``look``. After a fault, the port raises ``unavailable``.
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
        self.memory, self.real = (Side(n == 0, stores) for n, stores in enumerate(opened))

    async def open(self, stack: AsyncExitStack) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The stores in memory, which use ``self.clock``, and the real stores."""
        raise NotImplementedError

    async def look(self, side: Side) -> Look:
        """The stored rows of the side, as far as both sides must agree on them."""
        raise NotImplementedError

    def clock(self) -> datetime:
        """The time of the stores in memory: when the step began."""
        return self.began

    # --- steps ---

    def step(
        self,
        call: SideCall,
        shown: Callable[[Any], Any] = same,
        fault: Fault = NO_FAULT,
        repeatable: bool = False,
    ) -> Both[Any] | None:
        """Make a call on both sides. Returns both values, or None if the call failed.

        ``shown`` is the part of a value that both sides share. A ``repeatable`` call may take
        effect in part; it is repeated after a fault.
        """
        real = self._on_real(call, fault)
        if fault is not NO_FAULT and real.error is self.unavailable:
            if repeatable:
                real = self._on_real(call, NO_FAULT)
            elif self.agree():
                return None  # the call was not executed
        memory = self._on_memory(call)
        if fault is not NO_FAULT and memory.error is None and real.error is not None:
            assert real.error in (*self.conflicts, self.unavailable), real
            return (
                None  # the call was executed; the invariant checks that it took effect completely
            )
        return self.same(memory, real, shown)

    def race(self, first: SideCall, second: SideCall, shown: Callable[[Any], Any] = same) -> None:
        """Make two calls concurrently. In memory, a call that succeeded on the real side is made
        before one that failed."""

        async def at_the_same_time() -> list[Answer]:
            calls = [self._answer(partial(call, self.real)) for call in (first, second)]
            return await asyncio.gather(*calls)

        self.began = datetime.now(UTC)
        outcomes = list(zip((first, second), self.run(at_the_same_time), strict=True))
        self._note_end()
        for call, real in sorted(outcomes, key=lambda outcome: outcome[1].error is not None):
            self.same(self._on_memory(call), real, shown)

    def _on_memory(self, call: SideCall) -> Answer:
        answer: Answer = self.run(lambda: self._answer(partial(call, self.memory)))
        return answer

    def _on_real(self, call: SideCall, fault: Fault) -> Answer:
        self.began = datetime.now(UTC)
        self.network.arm(fault)
        answer: Answer = self.run(lambda: self._answer(partial(call, self.real)))
        self.network.disarm()
        self._note_end()
        return answer

    def _note_end(self) -> None:
        self.ended = datetime.now(UTC)
        self.slowest = max(self.slowest, self.ended - self.began)

    # --- the stored rows of both sides ---

    def agree(self) -> bool:
        """Whether both sides have stored the same rows."""
        return self._difference() == ""

    @invariant()
    def both_sides_have_stored_the_same_rows(self) -> None:
        difference = self._difference()
        assert not difference, difference

    def _difference(self) -> str:
        memory, real = (self.run(partial(self.look, side)) for side in (self.memory, self.real))
        if memory.plain != real.plain:
            return f"in memory: {memory.plain!r}\nreal:      {real.plain!r}"
        current = {name: Both(token, real.tokens[name]) for name, token in memory.tokens.items()}
        for name, tokens in current.items():
            for earlier in self._tokens.get(name, []):
                if (earlier.memory == tokens.memory) != (earlier.real == tokens.real):
                    return f"version of {name}: {earlier}, then {tokens}"
        for name, tokens in current.items():
            seen = self._tokens.setdefault(name, [])
            if tokens not in seen:
                seen.append(tokens)
        self.keep({name: Both(h, real.handles[name]) for name, h in memory.handles.items()})
        return ""

    def keep(self, handles: Mapping[Any, Both[Any]]) -> None:
        """Keep handles for later calls. The latest handle of a name is the last in its list."""
        for name, handle in handles.items():
            kept = self.handles.setdefault(name, [])
            if not kept or kept[-1].memory != handle.memory:
                kept.append(handle)

    def is_now(self, time: datetime) -> bool:
        """Whether the time can be the store's time of the last step."""
        return self.began - A_MOMENT <= time <= self.ended + A_MOMENT

    def is_as_long(self, memory: timedelta, real: timedelta) -> bool:
        """Whether both durations agree, as exactly as the clock in memory allows, which only ticks
        once a step."""
        return abs(memory - real) <= A_MOMENT + 2 * self.slowest

    def teardown(self) -> None:
        self.run(self._stack.aclose)
        self.runner.close()


def run_machine(
    make: Callable[[], SideBySide],
    examples: int,
    steps: int = 40,
) -> None:
    """Run this number of examples of a machine, or the number in STATEFUL_EXAMPLES."""
    override = os.environ.get("STATEFUL_EXAMPLES")
    options = settings(
        max_examples=int(override or examples),
        stateful_step_count=steps,
        derandomize=override is None,
        phases=(Phase.generate, Phase.shrink) if override else (Phase.generate,),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        report_multiple_bugs=False,
    )
    # Hypothesis accepts any callable that returns a machine, although it declares a class.
    run_state_machine_as_test(cast("type[SideBySide]", make), settings=options)


def run_store_machine(
    machine: Callable[[Network, Callable[[AsyncExitStack], Backend]], SideBySide],
    kind: str,
    request: pytest.FixtureRequest,
    examples: int,
    steps: int,
) -> None:
    """Run the machine of a store, on a backend of this kind that it reaches through a network with
    faults."""
    network = Network(tells_time=False)
    with network.installed():
        run_machine(
            lambda: machine(network, lambda stack: Backend(kind, request, stack)), examples, steps
        )
