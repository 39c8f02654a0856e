"""A simulated world of the scaling functions: queues, timers, storage and a plan with faults."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from local.functions_host.host_json import read_host_json
from local.twins.autoscaling import MemoryCapacityControl, MemoryStateStore
from shared.autoscaling import Cooldown, Limits, Threshold
from shared.autoscaling.deciding.decide import LogEntry
from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.errors import CapacityDelayed, CapacityRefused
from shared.autoscaling.flows import poison, scaling_logic
from shared.autoscaling.flows.poison import PoisonMessage
from shared.autoscaling.flows.reconciler import FRESH_SECONDS, Reconciler
from shared.autoscaling.flows.scaler import Scaler
from shared.autoscaling.messages import decode_action, decode_samples, encode_action
from shared.autoscaling.plan_facts import PlanReading
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.state import ActionStatus, Desired, ScaleAction, ScalingState
from shared.values.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.values.samples import encode_metrics
from tests.builders import NOW, TIMING, resource
from tests.simulation.faults import failing_as, pausing
from tests.simulation.scheduler import Crash, Outage, Scheduler, pause, sleep_until

LIMITS = Limits(2, 6)
COOLDOWN = Cooldown(120, 300)
HOST_QUEUES = read_host_json(Path(__file__).parents[2]).queues
MAX_DEQUEUE_COUNT = HOST_QUEUES.max_dequeue_count
DUPLICATE_RATE = 0.05
LOST_OUTPUT_RATE = 0.05
COLLECT_SECONDS, RECONCILE_SECONDS = 15, 60
STEP_SECONDS_MAX = 3.0
TASKS_PER_STEP = 6

FUNCTION_TIMEOUT = timedelta(minutes=5)
"""As in host.json. The function is then killed without any cleanup."""
SOURCE_TIMEOUT = timedelta(seconds=10)
"""The time after which the reconciler gives up a resource."""
RETRIED_AFTER = timedelta(seconds=HOST_QUEUES.visibility_timeout_seconds)
"""When the message of a failed function is redelivered."""
MESSAGE_LEASE = timedelta(minutes=10)
"""When the message of a crashed host is redelivered."""


@dataclass(frozen=True, slots=True)
class Slowness:
    """The delays and clock errors of a world. Rates are probabilities, and times are seconds."""

    arm_rate: float = 0.0
    arm_seconds_max: float = 0.0
    """The longest duration of a change of the plan."""
    storage_rate: float = 0.0
    storage_seconds_max: float = 0.0
    """The longest delay of a storage call, and again of its reply."""
    queue_rate: float = 0.0
    queue_seconds_max: float = 0.0
    """The longest delay of a message."""
    skew_seconds: float = 0.0
    """The difference between the clocks of an instance and of the servers, in either direction."""
    step_rate: float = 0.0
    step_seconds: float = 0.0
    """The step by which the clock of the servers may be set at each change of the load."""


NONE = Slowness()
USUAL = Slowness(arm_rate=0.3, arm_seconds_max=240)
ARM = Slowness(arm_rate=0.6, arm_seconds_max=1800)
STORAGE = Slowness(storage_rate=0.03, storage_seconds_max=400)
QUEUES = Slowness(queue_rate=0.2, queue_seconds_max=900)
CLOCKS = Slowness(skew_seconds=420, step_rate=0.3, step_seconds=600)
ALL = Slowness(0.4, 900, 0.01, 400, 0.1, 900, 420, 0.2, 600)
KINDS = (USUAL, ARM, STORAGE, QUEUES, CLOCKS, ALL)


class Supply(StrEnum):
    """How a plan gets its instances."""

    WHOLE = "whole"
    """All at the end of a change."""
    PIECES = "pieces"
    """One after the other, by asynchronous scaling: the plan may stand still for long, and the
    change may end short. A change to another capacity cancels the one that is under way."""
    SCARCE = "scarce"
    """As WHOLE, but a change that needs more instances than are free is refused with their number.
    """


@dataclass(frozen=True, slots=True)
class Read:
    """The true time at which a decision read its state, and the actual capacity then."""

    at: datetime
    capacity: int
    starting: bool = False
    """True if some of the instances that the plan shows do not work yet."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A desired state that was written as confirmed. Its times are true times."""

    written_at: datetime
    changed_at: datetime
    desired: Desired


@pausing("load", "commit", "record", by=lambda store: store._world.storage_call())
class Store(MemoryStateStore):
    """Some pauses are long. It records the true time at which each decision read its state."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda: world.server_now().replace(microsecond=0))
        self._world = world
        self._reads: dict[int, tuple[Snapshot, Read]] = {}
        self.read: dict[tuple[datetime, str], Read] = {}
        """By the time and the id of the log entry."""
        self.misdated: list[LogEntry] = []
        """Log entries that are not dated by the clock of the store."""
        self.confirmed: list[Confirmation] = []

    def local_now(self) -> datetime:
        """The clock of the calling instance, which no flow may use."""
        return self._world.local_now()

    async def load(self, resource_name: str) -> Snapshot:
        snapshot = await super().load(resource_name)
        world = self._world
        capacity = world.control.capacities["plan-1"]
        self._reads[id(snapshot)] = snapshot, Read(world.now, capacity, world.starting)
        return snapshot

    async def commit(
        self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry] = ()
    ) -> None:
        await super().commit(snapshot, state, entries)
        self._note(snapshot, state, entries)

    def _note(self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry]) -> None:
        world = self._world
        for entry in entries:
            read = self._reads[id(snapshot)][1]
            set_since = any(read.at <= at for at in world.clock_set_at)
            in_between = snapshot.read_at <= entry.time <= world.server_now()
            if not in_between and not set_since:  # recorded, because the flow would catch an error
                self.misdated.append(entry)
            self.read[entry.time, entry.entry_id] = read
        before, after = snapshot.state.desired, state.desired
        confirmed = after is not None and after.status is ActionStatus.CONFIRMED
        if after is not None and after.changed_at is not None and confirmed and after != before:
            self.confirmed.append(Confirmation(world.now, after.changed_at - world.ahead, after))


@dataclass(frozen=True, slots=True)
class Effect:
    """An actual change of the capacity, at its true time."""

    time: datetime
    before: int
    after: int
    late: bool
    """True if another capacity was decided before: Resource Manager does not fence writers."""


@dataclass(slots=True)
class Operation:
    """A change that Resource Manager has accepted and completes even if no caller waits for it."""

    target: AppServicePlan
    capacity: int
    done_at: datetime
    """With PIECES, the time of the next one."""
    done: bool = False


class Control(MemoryCapacityControl):
    """A plan that is sometimes busy, refuses changes, loses replies or takes long."""

    def __init__(self, world: World, *, serial: bool, supply: Supply) -> None:
        super().__init__(world.server_now, {"plan-1": 3})
        self._world = world
        self.supply = supply
        self.serial = serial or supply is Supply.PIECES
        """True if a change is refused while another is under way, as App Service usually does, or
        replaces it."""
        self.hurried = False
        self.offered = set[int]()
        """The capacities that a refusal for lack of instances allowed instead."""
        self._operations: list[Operation] = []
        self.effective: list[Effect] = []

    async def read(self, target: AppServicePlan) -> PlanReading:
        with failing_as(CapacityDelayed("the connection was lost")):
            await pause()
            value = await super().read(target)
            await pause()
        return value

    async def change(
        self,
        target: AppServicePlan,
        capacity: int,
        read: PlanReading,  # noqa: ARG002  the port has it
    ) -> int | None:
        world = self._world
        chance = world.random.random()
        if chance < world.scheduler.fault_rate:
            raise CapacityRefused("403") if chance < 0.005 else CapacityDelayed("409", 5)
        if self._operations and self.serial and self.supply is not Supply.PIECES:
            raise CapacityDelayed("409: another operation is in progress")
        if self.supply is Supply.SCARCE and not self.hurried:
            self._refuse_if_too_few(target, capacity)
        try:
            await pause()
            slow = world.slow
            seconds = world.seconds(slow.arm_rate, slow.arm_seconds_max)
            operation = Operation(target, capacity, world.now + timedelta(seconds=seconds))
            if self.supply is Supply.PIECES:
                operation = self._filling(operation)
            else:
                self._operations.append(operation)
            self.finish()
            await pause()
        except Outage as error:
            raise CapacityDelayed("no answer, outcome unknown", maybe_done=True) from error
        return self.capacities[target.name] if operation.done else None

    def _refuse_if_too_few(self, target: AppServicePlan, capacity: int) -> None:
        free, before = (
            self._world.random.choice([0, 0, 1, 1, 2, None]),
            self.capacities[target.name],
        )
        if capacity - before > (9 if free is None else free):
            self.offered.add(before + (free or 0))
            raise CapacityDelayed("429: not enough available instances", available=free)

    def _filling(self, new: Operation) -> Operation:
        """The operation that fills the plan: a repeated order joins the one that is under way."""
        for running in self._operations:
            if running.capacity == new.capacity:
                return running
        self.changes.append((new.target.name, new.capacity))
        self._operations = [new]
        return new

    def hurry(self, end: datetime) -> None:
        """Complete all operations by ``end``."""
        self.hurried = True
        for each in self._operations:
            each.done_at = min(each.done_at, end)

    def finish(self) -> None:
        """Apply the operations that are due, in the order of their completion."""
        due = [each for each in self._operations if each.done_at <= self._world.now]
        for each in sorted(due, key=lambda operation: operation.done_at):
            if self.supply is Supply.PIECES and not self._add_piece(each):
                continue
            self._operations.remove(each)
            each.done = True
            self._take_effect(each.target, each.capacity)

    def _add_piece(self, operation: Operation) -> bool:
        """Add or remove an instance. Returns whether the operation ends, perhaps too early."""
        here, random = self.capacities[operation.target.name], self._world.random
        if abs(operation.capacity - here) <= 1:
            return True
        self._take_effect(operation.target, here + (1 if operation.capacity > here else -1))
        seconds, chance = random.uniform(5, 60), random.random()
        if chance < 0.1 and not self.hurried:
            operation.capacity = self.capacities[operation.target.name]
            return True
        if chance < 0.3 and not self.hurried:
            seconds = random.uniform(60, 1800)
        operation.done_at = self._world.now + timedelta(seconds=seconds)
        return False

    def _take_effect(self, target: AppServicePlan, capacity: int) -> None:
        before = self.capacities[target.name]
        if self.supply is not Supply.PIECES:
            self.changes.append((target.name, capacity))
        self.capacities[target.name] = capacity
        if before != capacity:
            desired = self._world.store._states[target.name].desired
            late = desired is None or desired.target != capacity
            self.effective.append(Effect(self._world.now, before, capacity, late))


class Rule(Threshold):
    """A threshold without a counterfactual, which would take two thirds of the run time."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("none",)


Copy = tuple[str | None, Mapping[str, Resource]]
"""A running copy of the app: the version of its rules, and its resources."""


@dataclass(slots=True)
class Message:
    body: str
    visible_at: datetime
    dequeue_count: int = 0
    hidden: bool = False


class World:
    """Time, queues, timers and one resource. ``load`` is the value of its backlog metric."""

    def __init__(self, seed: int, fault_rate: float, slow: Slowness = USUAL) -> None:
        self.scheduler = Scheduler(seed, fault_rate, lambda: self.now)
        self.random = self.scheduler.random
        self.kind = self.slow = slow
        self.now = NOW
        self.ahead = timedelta(0)
        """The difference of the servers' clock from the true time."""
        self.clock_set_at: list[datetime] = []
        self.store = Store(self)
        group = seed // (2 * len(KINDS))
        supply = [Supply.PIECES, Supply.WHOLE, Supply.SCARCE, Supply.WHOLE][group % 4]
        self.control = Control(self, serial=seed // len(KINDS) % 2 == 0, supply=supply)
        step = 1 if supply is Supply.WHOLE else 4
        policy = (Threshold if seed % 10 == 0 else Rule)(
            "backlog", 100, 10, step_out=step, step_in=step
        )
        self.resources = {"plan-1": resource(policy=policy, limits=LIMITS, cooldown=COOLDOWN)}
        self.copies: list[Copy] = []
        """If several copies of the app run, each function runs on one of them."""
        self.queues: dict[str, list[Message]] = {"metrics": [], "actions": []}
        self.poisoned: list[str] = []
        self.load = 50.0
        self._next = {"collect": NOW, "reconcile": NOW}

    def copy(self) -> Copy:
        """The copy of the app that runs the next function."""
        return self.random.choice(self.copies) if self.copies else (None, self.resources)

    @property
    def starting(self) -> bool:
        """True if some of the instances that the plan shows do not work yet."""
        return False

    # --- the passing of time ---

    def server_now(self) -> datetime:
        """The time by the servers' clock, which the store and the sources use."""
        return self.now + self.ahead

    def local_now(self) -> datetime:
        skew = timedelta(seconds=self.random.choice([-1, 1]) * self.slow.skew_seconds)
        return (self.server_now() + skew).replace(microsecond=0)

    def set_clock(self, ahead_seconds: float) -> None:
        """Set the clock of the servers back or forward."""
        if self.ahead != timedelta(seconds=ahead_seconds):
            self.ahead = timedelta(seconds=ahead_seconds)
            self.clock_set_at.append(self.now)

    def maybe_set_clock(self) -> None:
        if self.slow.step_rate and self.random.random() < self.slow.step_rate:
            step = self.slow.step_seconds
            self.set_clock(self.random.choice([-step, 0, step]))

    def seconds(self, rate: float, most: float) -> float:
        """A random delay up to ``most`` seconds with probability ``rate``, otherwise none."""
        return self.random.uniform(0, most) if rate and self.random.random() < rate else 0.0

    async def storage_call(self) -> None:
        await pause()
        seconds = self.seconds(self.slow.storage_rate, self.slow.storage_seconds_max)
        if seconds:
            await sleep_until(self.now + timedelta(seconds=seconds))

    def step(self) -> None:
        """Advance the time, fire due timers, deliver messages, and resume some tasks."""
        self._pass()
        self.control.finish()
        if self._due("collect", COLLECT_SECONDS):
            self._collect()
        if self._due("reconcile", RECONCILE_SECONDS):
            self._start(self._reconcile(FRESH_SECONDS), "actions", lasts=SOURCE_TIMEOUT)
        for name in self.queues:
            self._deliver(name)
        for _ in range(TASKS_PER_STEP):
            self.scheduler.step()

    def _pass(self) -> None:
        self.now += timedelta(seconds=self.random.random() * STEP_SECONDS_MAX)

    def run(self, seconds: float) -> None:
        end = self.now + timedelta(seconds=seconds)
        while self.now < end:
            self.step()

    def calm_down(self) -> None:
        """End all faults and delays, and complete pending operations soon."""
        self.scheduler.fault_rate = 0.0
        self.control.hurry(self.now + FUNCTION_TIMEOUT)
        self.slow = replace(NONE, skew_seconds=self.slow.skew_seconds)

    def _due(self, timer: str, seconds: float) -> bool:
        if self.now < self._next[timer]:
            return False
        self._next[timer] = self.now + timedelta(seconds=seconds)
        return True

    # --- the functions and their triggers ---

    def _collect(self) -> None:
        skew = timedelta(seconds=self.random.uniform(-3, 3))
        capacity = self.control.capacities["plan-1"]
        read = [
            Metric("plan-1", name, MetricValue(self.server_now() + skew, float(value)))
            for name, value in ((CAPACITY_METRIC, capacity), ("backlog", self.load))
            if self.random.random() >= self.scheduler.fault_rate  # otherwise the source has failed
        ]
        for message in encode_metrics(read):
            self._send("metrics", message)

    async def _reconcile(self, fresh_seconds: float = 0) -> list[ScaleAction]:
        version, resources = self.copy()
        action = await Reconciler(self.store, self.control, TIMING, 10, version).reconcile_one(
            resources["plan-1"], fresh_seconds
        )
        return [action] if action else []

    async def _decide(self, body: str) -> list[ScaleAction]:
        version, resources = self.copy()
        due = list[Resource]()
        action = await scaling_logic.process_samples(
            decode_samples(body), resources, self.store, version, due=due
        )
        if due:  # the function goes on without it after its time-out
            self._start(self._reconcile(), "actions", lasts=SOURCE_TIMEOUT)
        return [action] if action else []

    async def _scale(self, body: str) -> list[ScaleAction]:
        action = decode_action(body)
        await Scaler(self.copy()[1], self.store, self.control, TIMING).execute(action)
        return []

    def _deliver(self, name: str) -> None:
        now = self.now
        visible = [m for m in self.queues[name] if not m.hidden and m.visible_at <= now]
        if not visible or self.random.random() < 0.3:
            return
        message = self.random.choice(visible)
        message.dequeue_count += 1
        message.hidden = (
            self.random.random() >= DUPLICATE_RATE
        )  # otherwise the message is delivered twice
        work = self._decide(message.body) if name == "metrics" else self._scale(message.body)
        self._start(work, "actions", name, message)

    def _start(
        self,
        work: Coroutine[Any, Any, list[ScaleAction]],
        output: str,
        queue: str = "",
        message: Message | None = None,
        *,
        lasts: timedelta = FUNCTION_TIMEOUT,
    ) -> None:
        dies_at = self.now + lasts

        def ended(actions: list[ScaleAction] | None, error: BaseException | None) -> None:
            lost = self.random.random() < LOST_OUTPUT_RATE * bool(self.scheduler.fault_rate)
            for action in actions or []:
                if not lost:
                    self._send(output, encode_action(action))
            if message is not None:
                failed = error is not None or (bool(actions) and lost)
                self._settle(queue, message, failed=failed, died=isinstance(error, Crash))

        self.scheduler.start(work, ended, dies_at=dies_at)

    def _send(self, queue: str, body: str) -> None:
        delay = self.seconds(self.slow.queue_rate, self.slow.queue_seconds_max)
        self.queues[queue].append(Message(body, self.now + timedelta(seconds=delay)))

    def _settle(self, queue: str, message: Message, *, failed: bool, died: bool) -> None:
        message.hidden = False
        host_died = died and self.random.random() < 0.3
        message.visible_at = self.now + (MESSAGE_LEASE if host_died else RETRIED_AFTER)
        if message not in self.queues[queue]:
            return
        if not failed or message.dequeue_count >= MAX_DEQUEUE_COUNT:
            self.queues[queue] = [m for m in self.queues[queue] if m is not message]
        if failed and message.dequeue_count >= MAX_DEQUEUE_COUNT:
            self._poison(queue, message.body)

    def _poison(self, queue: str, body: str) -> None:
        self.poisoned.append(body)
        note = PoisonMessage(queue, f"m-{len(self.poisoned)}", body, self.server_now())
        if queue == "metrics":
            work = poison.run_metric(note, self.copy()[1], self.store)
        else:
            work = poison.run_action(note, self.copy()[1], self.store, TIMING)

        def ended(_result: Any, error: BaseException | None) -> None:
            if isinstance(error, Crash | Exception):
                self._poison(queue, body)

        self.scheduler.start(work, ended, dies_at=self.now + FUNCTION_TIMEOUT)
