"""The app's own functions ``scaler`` and ``reconciler`` in a replay: several at once, each as slow
as the plan that it waits for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

from shared.adapters.memory.autoscaling import MemoryStateStore
from shared.autoscaling.declaring import CapacityTarget
from shared.autoscaling.desired import ScaleAction
from shared.autoscaling.errors import StateConflict
from shared.autoscaling.measurements import MetricValue
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.state import LogEntry, ScalingState

T = TypeVar("T")


class NextMinute(Awaitable[None]):
    """Whoever awaits it goes on with the next minute."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class Held(Protocol):
    """What holds the state: the app of a replay."""

    now: datetime
    state: ScalingState

    def told(self, entries: Sequence[LogEntry]) -> None:
        """Log lines that are committed with the state that is set next."""
        ...


class AppState(MemoryStateStore):
    """The state of a replay's app as a store; a commit on another state than was read is refused.

    The log is not kept.
    """

    def __init__(self, app: Held) -> None:
        super().__init__(lambda: app.now)
        self._app = app

    async def load(self, resource_name: str) -> Snapshot:
        return Snapshot(resource_name, self._app.state, self._app.now)

    async def commit(
        self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry] = ()
    ) -> None:
        if snapshot.state is not self._app.state:
            raise StateConflict(f"{snapshot.resource_name}: changed since read")
        self._app.told(entries)
        self._app.state = state

    async def record(self, entry: LogEntry) -> None:
        """An ignored action: nothing changes."""


class PlanControl:
    """The plan as the app's CapacityControl; what happens to an order is the storm's to say."""

    def __init__(
        self, read: Callable[[], MetricValue], change: Callable[[int], Awaitable[None]]
    ) -> None:
        self._read = read
        self._change = change

    async def read(self, _: CapacityTarget) -> MetricValue:
        return self._read()

    async def change(self, _: CapacityTarget, capacity: int) -> None:
        await self._change(capacity)

    async def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True, slots=True)
class Run:
    """One scaler at work."""

    action: ScaleAction
    work: Coroutine[Any, Any, object]


class Scalers:
    """Those at work, oldest first; each goes on once a minute."""

    def __init__(self) -> None:
        self._running: list[Run] = []

    def start(self, action: ScaleAction, work: Coroutine[Any, Any, object]) -> None:
        if not _done(work):
            self._running.append(Run(action, work))

    def step(self) -> None:
        self._running = [run for run in self._running if not _done(run.work)]

    def kill(self) -> list[ScaleAction]:
        """End all, wherever they are; what they were to do comes again."""
        ended, self._running = self._running, []
        for run in ended:
            run.work.close()
        return [run.action for run in ended]


def _done(work: Coroutine[Any, Any, object]) -> bool:
    try:
        work.send(None)
    except StopIteration:
        return True
    return False


def finished(work: Coroutine[Any, Any, T]) -> T:
    """The answer of what waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        answer: T = end.value
        return answer
    raise AssertionError("it waits for something")
