"""A deterministic scheduler of coroutines that pause at every port call.

At each step it resumes one task in a seeded random order. The task continues, or crashes, or its
call fails: with an outage before the call, or a lost reply after it. The same seed gives the same
run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from types import coroutine
from typing import Any


class Crash(BaseException):
    """The process has crashed. Not an Exception, so that no handler of a flow catches it."""


class Outage(Exception):
    """A call failed, and its outcome is unknown."""


@coroutine
def pause(*, sheltered: bool = False) -> Generator[bool, None, None]:
    """Let other tasks run. A fault may be raised here unless the pause is sheltered."""
    yield sheltered


@dataclass(frozen=True, slots=True)
class Until:
    """The time that a sleeping task waits for. No fault is raised in it meanwhile."""

    time: Any


@coroutine
def sleep_until(time: Any) -> Generator[Until, None, None]:
    """Let other tasks run until that time, by the clock of the scheduler."""
    yield Until(time)


@dataclass(slots=True)
class Task:
    work: Coroutine[Any, Any, Any]
    ended: Callable[[Any, BaseException | None], None]
    sheltered: bool = False
    faultless: bool = False
    until: Any = None
    dies_at: Any = None
    context: Context = field(default_factory=copy_context)


class Scheduler:
    """Runs tasks one step at a time.

    ``fault_rate`` is the probability of a fault at each step. Sleeping tasks are woken by
    ``clock``. A task that is not finished at its ``dies_at`` is killed, even while it sleeps, as a
    host kills a function that exceeds its time-out.
    """

    def __init__(
        self, seed: int, fault_rate: float, clock: Callable[[], Any] = lambda: None
    ) -> None:
        self.random = random.Random(seed)
        self.fault_rate = fault_rate
        self.clock = clock
        self.tasks: list[Task] = []

    def start(
        self,
        work: Coroutine[Any, Any, Any],
        ended: Callable[[Any, BaseException | None], None] = lambda _result, _error: None,
        *,
        faultless: bool = False,
        dies_at: Any = None,
    ) -> None:
        self.tasks.append(Task(work, ended, faultless=faultless, dies_at=dies_at))

    def step(self) -> None:
        """Resume one task."""
        task = self.choose()
        if task is None:
            return
        try:
            fault = self._fault_of(task)
            go_on = partial(task.work.throw, fault) if fault else partial(task.work.send, None)
            answer = task.context.run(go_on)
            task.until = answer.time if isinstance(answer, Until) else None
            task.sheltered = task.until is not None or answer
        except StopIteration as stop:
            self._end(task, stop.value, None)
        except (Exception, Crash) as error:
            self._end(task, None, error)

    def choose(self) -> Task | None:
        """The task to resume; None if no task can continue."""
        awake = [task for task in self.tasks if self._can_go_on(task)]
        return self.random.choice(awake) if awake else None

    def run_until_idle(self) -> None:
        while self.tasks:
            self.step()

    def close(self) -> None:
        """End all tasks where they are."""
        for task in self.tasks:
            task.context.run(task.work.close)

    def _can_go_on(self, task: Task) -> bool:
        return task.until is None or task.until <= self.clock() or self._is_over(task)

    def _is_over(self, task: Task) -> bool:
        return task.dies_at is not None and bool(task.dies_at <= self.clock())

    def _fault_of(self, task: Task) -> BaseException | None:
        if self._is_over(task):
            return Crash()
        return None if task.sheltered or task.faultless else self._fault()

    def _fault(self) -> BaseException | None:
        if self.random.random() >= self.fault_rate:
            return None
        return Crash() if self.random.random() < 0.5 else Outage("outage")

    def _end(self, task: Task, result: Any, error: BaseException | None) -> None:
        self.tasks.remove(task)
        task.ended(result, error)
