"""A deterministic scheduler: coroutines that stop at every port call, woken in a seeded order.

Whoever is woken goes on, or dies (a crash), or sees its call fail (an outage before the call, a
lost reply after it). The same seed gives the same run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from types import coroutine
from typing import Any


class Crash(BaseException):
    """The process is gone: no handler of the flow may catch it."""


class Outage(Exception):
    """A call that failed; whether it took effect is not known."""


@coroutine
def pause(*, sheltered: bool = False) -> Generator[bool, None, None]:
    """Where another task may run, and where a fault may strike unless it is sheltered."""
    yield sheltered


@dataclass(frozen=True, slots=True)
class Until:
    """What a task that sleeps waits for; no fault strikes it meanwhile."""

    time: Any


@coroutine
def sleep_until(time: Any) -> Generator[Until, None, None]:
    """Where other tasks run until that time, by the clock of the scheduler."""
    yield Until(time)


@dataclass(slots=True)
class Task:
    work: Coroutine[Any, Any, Any]
    ended: Callable[[Any, BaseException | None], None]
    sheltered: bool = False
    faultless: bool = False
    until: Any = None
    dies_at: Any = None


class Scheduler:
    """Runs tasks one step at a time. ``fault_rate`` is the chance of a fault at each step. Who
    sleeps is woken by ``clock``; whoever is still at work at its ``dies_at`` is killed, also while
    it sleeps, as a host kills a function that exceeds its time-out."""

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
        """Wake one task."""
        task = self.choose()
        if task is None:
            return
        try:
            fault = self._fault_of(task)
            answer = task.work.throw(fault) if fault else task.work.send(None)
            task.until = answer.time if isinstance(answer, Until) else None
            task.sheltered = task.until is not None or answer
        except StopIteration as stop:
            self._end(task, stop.value, None)
        except (Exception, Crash) as error:
            self._end(task, None, error)

    def choose(self) -> Task | None:
        """Whose turn it is; None where nobody can go on."""
        awake = [task for task in self.tasks if self._can_go_on(task)]
        return self.random.choice(awake) if awake else None

    def run_until_idle(self) -> None:
        while self.tasks:
            self.step()

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
