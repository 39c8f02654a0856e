"""The app in a hostile world: queues that lose order, calls that fail, people who interfere."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from shared.adapters.memory import MemoryCapacityControl, MemoryStateStore
from shared.autoscaling import Cooldown, Limits, Threshold
from shared.autoscaling.errors import CapacityDelayed, CapacityRefused
from shared.autoscaling.flows import poison, reconciler, scaler, scaling_logic
from shared.autoscaling.flows.poison import PoisonMessage
from shared.autoscaling.messages import decode_action, decode_metric, encode_action, encode_metric
from shared.autoscaling.model import (
    CAPACITY_METRIC,
    CapacityTarget,
    LogEntry,
    Metric,
    MetricValue,
    ScaleAction,
    ScalingState,
)
from shared.autoscaling.ports import Snapshot
from tests.builders import NOW, TIMING, resource
from tests.simulation.scheduler import Crash, Outage, Scheduler, pause

LIMITS = Limits(2, 6)
COOLDOWN = Cooldown(120, 300)
MAX_DEQUEUE_COUNT = 5
DUPLICATE_RATE = 0.05
LOST_OUTPUT_RATE = 0.05
COLLECT_SECONDS, RECONCILE_SECONDS = 15, 30
STEP_SECONDS_MAX = 1.0
SLOW_CHANGE_RATE = 0.3
SLOW_CHANGE_SECONDS_MAX = 240


class Store(MemoryStateStore):
    """The memory twin with a pause before and after each call."""

    async def load(self, resource_name: str) -> Snapshot:
        await pause()
        snapshot = await super().load(resource_name)
        await pause()
        return snapshot

    async def commit(
        self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry] = ()
    ) -> None:
        await pause()
        await super().commit(snapshot, state, entries)
        await pause()

    async def record(self, entry: LogEntry) -> None:
        await pause()
        await super().record(entry)
        await pause()


@dataclass(frozen=True, slots=True)
class Effect:
    """A change of capacity when it happened, whoever knew of it."""

    time: datetime
    before: int
    after: int
    late: bool
    """By then something else had been decided; ARM does not fence writers."""


class Control(MemoryCapacityControl):
    """A plan that is at times busy, at times refuses, and whose answers get lost."""

    def __init__(
        self, clock: Callable[[], datetime], scheduler: Scheduler, store: MemoryStateStore
    ) -> None:
        self._store = store
        super().__init__(clock, {"plan-1": 3})
        self._scheduler = scheduler
        self.effective: list[Effect] = []

    async def read(self, target: CapacityTarget) -> MetricValue:
        try:
            await pause()
            value = await super().read(target)
            await pause()
        except Outage as error:
            raise CapacityDelayed("no answer") from error
        return value

    async def change(self, target: CapacityTarget, capacity: int) -> None:
        chance = self._scheduler.random.random()
        if chance < self._scheduler.fault_rate:
            raise CapacityRefused("403") if chance < 0.005 else CapacityDelayed("409", 5)
        try:
            await pause()
            await self._take_long()
            before = self.capacities[target.name]
            await super().change(target, capacity)
            if before != capacity:
                desired = self._store._states[target.name].desired
                late = desired is None or desired.target != capacity
                self.effective.append(Effect(self._clock(), before, capacity, late))
            await pause()
        except Outage as error:
            raise CapacityDelayed("no answer, outcome unknown", maybe_done=True) from error

    async def _take_long(self) -> None:
        """Some orders stay on their way for minutes, while the rules decide something else."""
        random = self._scheduler.random
        if random.random() >= SLOW_CHANGE_RATE * bool(self._scheduler.fault_rate):
            return
        until = self._clock() + timedelta(seconds=random.uniform(0, SLOW_CHANGE_SECONDS_MAX))
        while self._clock() < until:
            await pause(sheltered=True)


@dataclass(slots=True)
class Message:
    body: str
    dequeue_count: int = 0
    hidden: bool = False


class World:
    """Time, queues, timers and one resource. ``load`` is what its backlog reads."""

    def __init__(self, seed: int, fault_rate: float) -> None:
        self.scheduler = Scheduler(seed, fault_rate)
        self.random = self.scheduler.random
        self.now = NOW
        self.store = Store(lambda: self.now.replace(microsecond=0))
        self.control = Control(lambda: self.now, self.scheduler, self.store)
        self.resources = {
            "plan-1": resource(
                policy=Threshold("backlog", 100, 10), limits=LIMITS, cooldown=COOLDOWN
            )
        }
        self.queues: dict[str, list[Message]] = {"metrics": [], "actions": []}
        self.poisoned: list[str] = []
        self.load = 50.0
        self._next = {"collect": NOW, "reconcile": NOW}

    # --- the passing of time ---

    def step(self) -> None:
        """A moment passes; timers fire, a message may be delivered, some task goes on."""
        self.now += timedelta(seconds=self.random.random() * STEP_SECONDS_MAX)
        if self._due("collect", COLLECT_SECONDS):
            self._collect()
        if self._due("reconcile", RECONCILE_SECONDS):
            self._start(self._reconcile(), "actions")
        for name in self.queues:
            self._deliver(name)
        for _ in range(6):
            self.scheduler.step()

    def run(self, seconds: float) -> None:
        end = self.now + timedelta(seconds=seconds)
        while self.now < end:
            self.step()

    def _due(self, timer: str, seconds: float) -> bool:
        if self.now < self._next[timer]:
            return False
        self._next[timer] = self.now + timedelta(seconds=seconds)
        return True

    # --- the functions and their triggers ---

    def _collect(self) -> None:
        skew = timedelta(seconds=self.random.uniform(-3, 3))
        capacity = self.control.capacities["plan-1"]
        for name, value in ((CAPACITY_METRIC, capacity), ("backlog", self.load)):
            if self.random.random() >= self.scheduler.fault_rate:  # else the source failed
                sample = MetricValue(self.now + skew, float(value))
                self._send("metrics", encode_metric(Metric("plan-1", name, sample)))

    async def _reconcile(self) -> list[ScaleAction]:
        action = await reconciler.reconcile_one(
            self.resources["plan-1"], self.store, self.control, TIMING
        )
        return [action] if action else []

    async def _decide(self, body: str) -> list[ScaleAction]:
        action = await scaling_logic.run(decode_metric(body), self.resources, self.store)
        return [action] if action else []

    async def _scale(self, body: str) -> list[ScaleAction]:
        action = decode_action(body)
        await scaler.run(action, self.resources, self.store, self.control, TIMING)
        return []

    def _deliver(self, name: str) -> None:
        visible = [m for m in self.queues[name] if not m.hidden]
        if not visible or self.random.random() < 0.3:
            return
        message = self.random.choice(visible)
        message.dequeue_count += 1
        message.hidden = self.random.random() >= DUPLICATE_RATE  # else a lease was lost
        work = self._decide(message.body) if name == "metrics" else self._scale(message.body)
        self._start(work, "actions", name, message)

    def _start(
        self,
        work: Coroutine[Any, Any, list[ScaleAction]],
        output: str,
        queue: str = "",
        message: Message | None = None,
    ) -> None:
        def ended(actions: list[ScaleAction] | None, error: BaseException | None) -> None:
            lost = self.random.random() < LOST_OUTPUT_RATE * bool(self.scheduler.fault_rate)
            for action in actions or []:
                if not lost:
                    self._send(output, encode_action(action))
            if message is not None:
                self._settle(queue, message, failed=error is not None or (bool(actions) and lost))

        self.scheduler.start(work, ended)

    def _send(self, queue: str, body: str) -> None:
        self.queues[queue].append(Message(body))

    def _settle(self, queue: str, message: Message, *, failed: bool) -> None:
        message.hidden = False
        if message not in self.queues[queue]:
            return
        if not failed or message.dequeue_count >= MAX_DEQUEUE_COUNT:
            self.queues[queue] = [m for m in self.queues[queue] if m is not message]
        if failed and message.dequeue_count >= MAX_DEQUEUE_COUNT:
            self._poison(queue, message.body)

    def _poison(self, queue: str, body: str) -> None:
        self.poisoned.append(body)
        note = PoisonMessage(queue, f"m-{len(self.poisoned)}", body, self.now)
        if queue == "metrics":
            work = poison.run_metric(note, self.resources, self.store)
        else:
            work = poison.run_action(note, self.resources, self.store, TIMING)

        def ended(_result: Any, error: BaseException | None) -> None:
            if isinstance(error, Crash | Exception):
                self._poison(queue, body)

        self.scheduler.start(work, ended)
