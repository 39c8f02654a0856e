"""Events side by side: each once, each key in its order, whoever waits and whoever fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ingestion.concurrency import TaskRunner, task_runner
from shared.ingestion.errors import DependencyDown
from shared.ingestion.events.handling import BatchOutcomes, handle_events
from shared.ingestion.model import DeadLetter, Effect, Event
from tests.builders import NOW

T = TypeVar("T")


@dataclass(frozen=True)
class Fate:
    """What handling an event is like."""

    key: str | None = None
    turns: int = 0
    """Of the event loop that it waits for."""
    error: type[Exception] | None = None


@dataclass
class Handling:
    """Handles by fates; looks at the order while it does."""

    fates: Sequence[Fate]
    begun: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    most: int = 0
    held: bool = False

    async def __call__(self, event: Event) -> Effect:
        fate = self.fates[event.sequence]
        assert not self.held, "nothing begins once a failure holds the partition"
        assert fate.key not in [self.fates[n].key for n in self.running], "a key waits for itself"
        self.begun.append(event.sequence)
        self.running.append(event.sequence)
        self.most = max(self.most, len(self.running))
        for _ in range(fate.turns):
            await asyncio.sleep(0)
        self.running.remove(event.sequence)
        if fate.error is not None:
            self.held |= fate.error is DependencyDown
            raise fate.error("no")
        return Effect(event.sequence)

    def of(self, key: str | None) -> list[int]:
        return [n for n in self.begun if self.fates[n].key == key]


async def once(attempt: Callable[[], Awaitable[T]], worth: Callable[[Exception], bool]) -> T:
    return await attempt()


async def all_asked_for_first(work: Iterable[Callable[[], Awaitable[None]]]) -> None:
    for piece in list(work):
        await piece()


def events(fates: Sequence[Fate]) -> list[Event]:
    return [Event(n, str(n), NOW, b"", fate.key) for n, fate in enumerate(fates)]


async def settled(fates: Sequence[Fate], together: TaskRunner) -> tuple[BatchOutcomes, Handling]:
    handling, into = Handling(fates), BatchOutcomes()
    await handle_events(events(fates), handling, once, together, NOW, into)
    return into, handling


FATES = st.lists(
    st.builds(
        Fate,
        st.sampled_from([None, "a", "b", "c", "d"]),
        st.sampled_from([0, 0, 0, 1, 3]),
        st.sampled_from([None] * 9 + [ValueError]),
    ),
    max_size=12,
)


@given(fates=FATES, lanes_max=st.integers(0, 4))
async def test_each_event_once_and_each_key_in_order(fates: list[Fate], lanes_max: int) -> None:
    together = task_runner(lanes_max) if lanes_max else all_asked_for_first
    found, handling = await settled(fates, together)
    assert sorted(handling.begun) == sorted(found.outcomes) == list(range(len(fates)))
    for key in {fate.key for fate in fates}:
        assert handling.of(key) == sorted(handling.of(key))
    assert handling.most <= max(lanes_max, 1)
    dead = [n for n, outcome in found.outcomes.items() if isinstance(outcome, DeadLetter)]
    assert sorted(dead) == [n for n, fate in enumerate(fates) if fate.error is not None]


@given(fates=FATES, down=st.integers(0, 12), key=st.sampled_from(["a", "b"]))
async def test_what_comes_after_a_failure_that_holds_is_not_begun(
    fates: list[Fate], down: int, key: str
) -> None:
    fates = [*fates[:down], Fate(key, 1, DependencyDown), *fates[down:]]
    found, handling = await settled(fates, task_runner(3))
    assert len(found.held) == 1
    assert sorted([*found.outcomes, *found.held]) == sorted(handling.begun)
    for of in {fate.key for fate in fates}:
        begun = [n for n, fate in enumerate(fates) if fate.key == of]
        assert handling.of(of) == begun[: len(handling.of(of))], "none is left out"


async def test_what_does_not_wait_is_handled_as_it_came() -> None:
    fates = [Fate("abc"[n % 3]) for n in range(9)]
    _, handling = await settled(fates, task_runner(3))
    assert handling.begun == list(range(9))


async def test_others_go_on_while_one_waits() -> None:
    fates = [Fate("a"), Fate("b", 20), Fate("b"), Fate("c"), Fate("a")]
    _, handling = await settled(fates, task_runner(2))
    assert handling.begun == [0, 1, 3, 4, 2]


async def test_what_has_an_outcome_is_not_handled_again() -> None:
    fates = [Fate("a"), Fate("b", 1, DependencyDown), Fate("a")]
    found, handling = await settled(fates, task_runner(1))
    assert (handling.begun, list(found.held)) == ([0, 1], [1])
    handling.fates, handling.held = [Fate("a"), Fate("b", 1), Fate("a")], False
    found.held.clear()
    await handle_events(events(handling.fates), handling, once, task_runner(1), NOW, found)
    assert handling.begun == [0, 1, 1, 2]
    assert sorted(found.outcomes) == [0, 1, 2]


async def test_who_is_cancelled_leaves_no_lane_behind() -> None:
    fates = [Fate(key, 1000) for key in "abc"]
    handling = Handling(fates)
    work = handle_events(events(fates), handling, once, task_runner(3), NOW, BatchOutcomes())
    task = asyncio.create_task(work)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(handling.running) == 3
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asyncio.all_tasks()) == 1
