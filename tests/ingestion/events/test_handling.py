"""Concurrent handling of events: each once, in the order of its key, whatever waits or fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ingestion.errors import DependencyDown
from shared.ingestion.events.handling import BatchHandling
from shared.ingestion.model import DeadLetter, Effect, Event
from shared.values.concurrency import TaskRunner, task_runner
from tests.builders import NOW
from tests.simulation.faults import once


@dataclass(frozen=True)
class Behavior:
    """How the handling of one event goes."""

    key: str | None = None
    turns: int = 0
    """How many turns of the event loop the handler waits."""
    error: type[Exception] | None = None


@dataclass
class Handling:
    """Handles events according to their behaviors, and checks the order."""

    behaviors: Sequence[Behavior]
    begun: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    most: int = 0
    held: bool = False

    async def __call__(self, event: Event) -> Effect:
        behavior = self.behaviors[event.sequence]
        assert not self.held, "an event was started after a failure that holds the partition"
        assert behavior.key not in [self.behaviors[n].key for n in self.running], (
            "two events of one key ran at the same time"
        )
        self.begun.append(event.sequence)
        self.running.append(event.sequence)
        self.most = max(self.most, len(self.running))
        for _ in range(behavior.turns):
            await asyncio.sleep(0)
        self.running.remove(event.sequence)
        if behavior.error is not None:
            self.held |= behavior.error is DependencyDown
            raise behavior.error("no")
        return Effect(event.sequence)

    def of(self, key: str | None) -> list[int]:
        return [n for n in self.begun if self.behaviors[n].key == key]


async def as_a_list(work: Iterable[Callable[[], Awaitable[None]]]) -> None:
    for piece in list(work):
        await piece()


def events(behaviors: Sequence[Behavior]) -> list[Event]:
    return [Event(n, str(n), NOW, b"", behavior.key) for n, behavior in enumerate(behaviors)]


async def settled(
    behaviors: Sequence[Behavior], together: TaskRunner
) -> tuple[BatchHandling, Handling]:
    handling = Handling(behaviors)
    into = BatchHandling(handling, once, together)
    await into.handle(events(behaviors), NOW)
    return into, handling


BEHAVIORS = st.lists(
    st.builds(
        Behavior,
        st.sampled_from([None, "a", "b", "c", "d"]),
        st.sampled_from([0, 0, 0, 1, 3]),
        st.sampled_from([None] * 9 + [ValueError]),
    ),
    max_size=12,
)


@given(behaviors=BEHAVIORS, lanes_max=st.integers(0, 4))
async def test_each_event_is_handled_once_and_in_the_order_of_its_key(
    behaviors: list[Behavior], lanes_max: int
) -> None:
    together = task_runner(lanes_max) if lanes_max else as_a_list
    result, handling = await settled(behaviors, together)
    assert sorted(handling.begun) == sorted(result.outcomes) == list(range(len(behaviors)))
    for key in {behavior.key for behavior in behaviors}:
        assert handling.of(key) == sorted(handling.of(key))
    assert handling.most <= max(lanes_max, 1)
    dead = [n for n, outcome in result.outcomes.items() if isinstance(outcome, DeadLetter)]
    assert sorted(dead) == [n for n, behavior in enumerate(behaviors) if behavior.error is not None]


@given(behaviors=BEHAVIORS, down=st.integers(0, 12), key=st.sampled_from(["a", "b"]))
async def test_no_event_is_started_after_a_failure_that_holds_the_partition(
    behaviors: list[Behavior], down: int, key: str
) -> None:
    behaviors = [*behaviors[:down], Behavior(key, 1, DependencyDown), *behaviors[down:]]
    result, handling = await settled(behaviors, task_runner(3))
    assert len(result.held) == 1
    assert sorted([*result.outcomes, *result.held]) == sorted(handling.begun)
    for of in {behavior.key for behavior in behaviors}:
        begun = [n for n, behavior in enumerate(behaviors) if behavior.key == of]
        assert handling.of(of) == begun[: len(handling.of(of))], "none is left out"


async def test_events_of_other_keys_are_handled_while_one_waits() -> None:
    behaviors = [Behavior("a"), Behavior("b", 20), Behavior("b"), Behavior("c"), Behavior("a")]
    _, handling = await settled(behaviors, task_runner(2))
    assert handling.begun == [0, 1, 3, 4, 2]


async def test_an_event_that_has_an_outcome_is_not_handled_again() -> None:
    behaviors = [Behavior("a"), Behavior("b", 1, DependencyDown), Behavior("a")]
    result, handling = await settled(behaviors, task_runner(1))
    assert (handling.begun, list(result.held)) == ([0, 1], [1])
    handling.behaviors, handling.held = [Behavior("a"), Behavior("b", 1), Behavior("a")], False
    await result.handle(events(handling.behaviors), NOW)
    assert handling.begun == [0, 1, 1, 2]
    assert sorted(result.outcomes) == [0, 1, 2]


async def test_cancelling_the_handling_ends_all_lanes() -> None:
    behaviors = [Behavior(key, 1000) for key in "abc"]
    handling = Handling(behaviors)
    work = BatchHandling(handling, once, task_runner(3)).handle(events(behaviors), NOW)
    task = asyncio.create_task(work)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(handling.running) == 3
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asyncio.all_tasks()) == 1
