"""Simulates the app while its queue and its workers behave as in the variations of the backtest.

The plan, the queue and the variations are those of the backtest: a deploy halves the rate, messages
are delivered again, nothing is finished for an hour, and others (see ``VARIATIONS``). ``QueueAge``
is told the rate, counts finished items, or sees the backlog alone. Half of the worlds have the
faults of ``test_autoscaling``. In each world:

- the capacity stays within its limits, and an epoch is decided once and never falls;
- Azure is sent no more changes than it allows within an hour, and scale-in leaves it the last four;
- nothing is removed while instances start;
- each sample is stored unless it came too late;
- a refuted rate is a condition, and each decision names its rate unless that is the setting;
- no resource stays at its maximum with an empty queue, unless a guard says why;
- once the load has ended, the queue drains, and the capacity returns to its minimum in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random

import numpy as np
import pytest

from backtest.arena import ARENAS, Arena, Floats, Plan, sufficient_rate
from backtest.replay import App, Seen, in_arena
from backtest.world import VARIATIONS, Queue, varied, world_of
from backtest.world import World as Course
from bench.groups.regret import MODES, arenas
from shared.autoscaling import Guards, QueueAge, Threshold
from shared.autoscaling.deciding import clocks
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.deciding.guards import SPARED_CHANGES, recent_changes
from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.errors import CapacityDelayed
from shared.autoscaling.messages import decode_samples
from shared.autoscaling.operating.conditions import conditions
from shared.autoscaling.plan_facts import PlanReading
from shared.autoscaling.policies.queue_age import START_UP_MINUTES
from shared.autoscaling.policy import RATE_SOURCES, RateSource, Resource
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.state import ScaleAction, ScalingState
from shared.values.measurements import CAPACITY_METRIC, Metric
from shared.values.news import NewsKind
from shared.values.samples import encode_metrics
from tests.backtest.arenas import bursty
from tests.builders import NOW, resource
from tests.simulation.scheduler import Outage, pause
from tests.simulation.seeds import seeds
from tests.simulation.test_autoscaling import (
    check_always,
    check_no_manual_change,
    check_resend_wait,
    lines,
    state,
)
from tests.simulation.world import (
    FUNCTION_TIMEOUT,
    NONE,
    QUEUES,
    STORAGE,
    Control,
    Effect,
    Store,
    Supply,
    World,
)

SEEDS = 7
NAMES, SLOWNESS = (*VARIATIONS, ""), (NONE, NONE, STORAGE, QUEUES)
FAULT_RATE = 0.02
LOAD_MINUTES, MINUTES, BLOCK_MINUTES = 330, 480, 30
"""The load ends after so many minutes, and a variation begins after half of the others."""
DRAINED_MINUTES, SETTLED_MINUTES = 30, {20: 180, 8: 420}
"""The longest time after the load until the queue is empty, besides the time in which the maximum
of instances finishes it, and until the capacity is at its minimum, by the changes allowed."""
IDLE_MINUTES_MAX = 45
"""The longest time at the maximum with an empty queue. After half of an hour, one is removed."""
STEP, HOUR = timedelta(seconds=15), timedelta(hours=1)
COUNTED = HOUR - FUNCTION_TIMEOUT
"""A change is counted before Azure is asked for it, within the same call of the function."""
SLACK_STEPS = 4
"""The wait until a number is read is learned as a mean, and so the start of instances, too."""
STRONGER = {"bounds", "revoked"}


class Rule(QueueAge):
    """QueueAge without a counterfactual, which would take most of the run time."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("none",)


@dataclass(frozen=True, slots=True)
class Order:
    """A change that reached Azure."""

    time: datetime
    capacity: int
    accepted: bool
    late: bool
    """True if another capacity was decided before."""


class VariedControl(Control):
    """The plan of the arena: an ordered number is accepted at once, shown soon, and works later."""

    _world: VariedWorld

    def __init__(self, world: VariedWorld) -> None:
        super().__init__(world, serial=True, supply=Supply.WHOLE)
        self.capacities["plan-1"] = world.plan.shown
        self.orders: list[Order] = []

    def show(self, shown: int) -> None:
        before, self.capacities["plan-1"] = self.capacities["plan-1"], shown
        if before != shown:
            self.effective.append(Effect(self._world.now, before, shown, self._is_late(shown)))

    def _is_late(self, capacity: int) -> bool:
        desired = state(self._world).desired
        return desired is None or desired.target != capacity

    async def change(
        self,
        target: AppServicePlan,
        capacity: int,
        read: PlanReading,  # noqa: ARG002  the port has it
    ) -> int | None:
        world = self._world
        if world.random.random() < world.scheduler.fault_rate:
            raise CapacityDelayed("409: another operation is in progress", 5)
        try:
            await pause()
            if capacity != world.plan.ordered:
                self._order(target, capacity)
            await pause()
        except Outage as error:
            raise CapacityDelayed("no answer, outcome unknown", maybe_done=True) from error
        return None

    def changed(self, within: timedelta) -> int:
        """How often Azure changed the plan within this time."""
        return sum(o.accepted and o.time > self._world.now - within for o in self.orders)

    def _order(self, target: AppServicePlan, capacity: int) -> None:
        order = Order(self._world.now, capacity, True, self._is_late(capacity))
        self.changes.append((target.name, capacity))
        try:
            self._world.plan.order(capacity, self._world.steps - 1)
        except CapacityDelayed:
            order = replace(order, accepted=False)
            raise
        finally:
            self.orders.append(order)


class VariedStore(Store):
    """``broken`` lists what is wrong with the states and decisions that were written."""

    _world: VariedWorld

    def __init__(self, world: VariedWorld) -> None:
        super().__init__(world)
        self.broken: list[str] = []
        self.clocks_doubted = False
        """True if late messages were once taken for those of a clock that differs."""

    def _note(self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry]) -> None:
        super()._note(snapshot, state, entries)
        before, after, claim = snapshot.state.desired, state.desired, state.learned.claim
        if before and (after is None or after.epoch < before.epoch):
            self.broken.append(f"the epoch fell: {before} {after}")
        self.clocks_doubted |= bool(clocks.told(state))
        counted = recent_changes(self._states[snapshot.resource_name].desired, self._world.now)
        if len(counted) < self._world.control.changed(COUNTED):
            self.broken.append(f"Azure counts more changes: {counted}")
        refuted = claim is not None and claim.refuted_at is not None
        if refuted and not self._is_told(replace(snapshot, state=state, decided=None)):
            self.broken.append(f"a refuted rate without a condition: {claim}")
        for entry in entries:
            if entry.kind is EntryKind.DECISION and not self._names_rate(entry, refuted=refuted):
                self.broken.append(f"it does not name its rate: {entry}")

    def _is_told(self, snapshot: Snapshot) -> bool:
        found = conditions(self._world.resource, snapshot, at_maximum_minutes=30)
        return any(each.kind is NewsKind.RATE_REFUTED for each in found)

    def _names_rate(self, entry: LogEntry, *, refuted: bool) -> bool:
        """True if the reason names the rate, or if that is the setting, which nothing refutes."""
        used, told = entry.evidence.get("rate_per_instance_minute"), self._world.told
        if used is None or told is None or "; rate per instance " in entry.reason:
            return True
        is_setting = entry.evidence["rate_source"] == RATE_SOURCES[RateSource.SETTINGS]
        return is_setting and not refuted and used == pytest.approx(told, rel=0.011)


class VariedWorld(World):
    """The backtest's queue and plan advance step by step, and the time from event to event."""

    store: VariedStore
    control: VariedControl

    def __init__(self, seed: int, variation: str | None = None, mode: str | None = None) -> None:
        self.steps = self.idle_steps = 0
        random, turn = Random(seed), seed // len(NAMES)
        self.faulty = random.random() < 0.5
        super().__init__(seed, FAULT_RATE * self.faulty, random.choice(SLOWNESS))
        self.name = NAMES[seed % len(NAMES)] if variation is None else variation
        self.mode, arrivals = mode or MODES[(seed + turn) % len(MODES)], load(random)
        rate = sufficient_rate(arrivals) * random.uniform(1, 3)
        arena = Arena(rate, seed=seed, **ARENAS["production"])
        arena = replace(arena, changes_per_hour=random.choice([20, 20, 8]))
        self.arena = arenas(varied(arena, self.name) if self.name else arena)[self.mode]
        self.told = None if self.arena.service_learned else rate
        self.plan = Plan(self.arena)
        self.app = App(in_arena(self._declared(seed), self.arena), self.plan)
        self.resource = self.app.resource
        self.resources = {"plan-1": self.resource}
        self.course = _lengthened(world_of(self.arena, arrivals, self.arena.steps_per_minute))
        self.queue, self.passed = Queue(self.course), Seen(0.0)
        self.store, self.control = VariedStore(self), VariedControl(self)

    def _declared(self, seed: int) -> Resource:
        rate = self.arena.instance_rate
        kind = QueueAge if seed % 10 == 9 else Rule
        return resource(
            policy=kind("backlog", Threshold("backlog", 10 * rate, rate)),
            guards=Guards(scale_changes_per_hour=self.allowed),
        )

    @property
    def allowed(self) -> int:
        """The changes that Azure allows within an hour."""
        return self.arena.changes_per_hour or 0

    @property
    def minutes(self) -> float:
        return self.steps / self.arena.steps_per_minute

    @property
    def starting(self) -> bool:
        """True if instances that the plan shows will not work for more than SLACK_STEPS, and if the
        rules were told the start-up time or assume the right one."""
        right = self.arena.dead_time_minutes == START_UP_MINUTES or not self.arena.service_learned
        pending = self.plan._ordered.pending
        return right and any(each.due_minute > self.steps + SLACK_STEPS for each in pending)

    def _pass(self) -> None:
        if self.scheduler.tasks:
            super()._pass()
            return
        visible = [m.visible_at for each in self.queues.values() for m in each if not m.hidden]
        self.now = max(self.now, min([*self._next.values(), *visible]))

    def _due(self, timer: str, seconds: float) -> bool:
        if self.now < self._next[timer]:
            return False
        self._next[timer] += timedelta(seconds=seconds)
        return True

    def _collect(self) -> None:
        at, step = NOW + self.steps * STEP, self.steps
        self.plan.begin(step)
        self.control.show(self.plan.shown)
        backlog = self.queue.serve(step, self.plan.capacity)
        seen = Seen(backlog, self.queue.finished, float(self.course.items[step]))
        self.passed, whole, self.steps = self.passed.then(seen), None, step + 1
        if self.steps % self.arena.steps_per_minute == 0:
            whole, self.passed = self.passed, Seen(0.0)
        rate = self.scheduler.fault_rate
        read = [m for m in self.app.samples(at, seen, whole) if self.random.random() >= rate]
        for message in encode_metrics(read):
            self._send("metrics", message)
        self._check_idle()

    def _check_idle(self) -> None:
        decided = self.store._decided.get("plan-1")
        idle = not self.queue.backlog and self.plan.shown == self.arena.max_instances
        held = decided is not None and decided.limited_by
        self.idle_steps = self.idle_steps + 1 if idle and not held else 0
        if self.idle_steps > IDLE_MINUTES_MAX * self.arena.steps_per_minute:
            self.store.broken.append(f"idle at the maximum: {decided}")

    async def _decide(self, body: str) -> list[ScaleAction]:
        actions = await super()._decide(body)
        for sample in decode_samples(body).metrics:
            if not self._is_stored(sample) and not self.store.clocks_doubted:
                self.store.broken.append(f"a sample that is not stored: {sample}")
        return actions

    def _is_stored(self, sample: Metric) -> bool:
        """True if the sample is stored, or was too late. Of equal capacities, only two are kept."""
        known, late = state(self).histories.get(sample.name), self.now - sample.value.time
        if sample.name == CAPACITY_METRIC or late > timedelta(seconds=self.resource.window_seconds):
            return True
        return known is not None and any(each.time == sample.value.time for each in known.samples)


def load(random: Random) -> Floats:
    """Arrivals by the minute: bursts, a level that jumps, or a constant one; then none."""
    kind, seed = random.choice(["bursts", "jumps", "jumps", "constant"]), random.getrandbits(32)
    blocks = LOAD_MINUTES // BLOCK_MINUTES
    levels = random.choices([0, 20, 100, 400], k=blocks - 1) if kind == "jumps" else [100] * blocks
    means = np.repeat([*levels, 100][:blocks], BLOCK_MINUTES)
    steady, none = np.random.default_rng(seed).poisson(means), np.zeros(MINUTES - LOAD_MINUTES)
    return np.append(bursty(seed, LOAD_MINUTES) if kind == "bursts" else steady, none)


def _lengthened(course: Course) -> Course:
    """The course, with time in which nothing arrives and the instances work as at its end."""
    more = np.zeros(4 * max(SETTLED_MINUTES.values()))
    work = items = np.append(course.items, more)
    if course.work is not course.items:
        work = np.append(course.work, more)
    return Course(items, work, np.append(course.served, more + course.served[-1]))


def check_orders(world: VariedWorld) -> None:
    """Azure refuses nothing. Without faults, no order comes after the next decision."""
    orders = world.control.orders
    assert all(each.accepted for each in orders), orders
    if world.kind is NONE and not world.faulty:
        assert not any(each.late for each in orders), orders


def check_scale_in(world: VariedWorld) -> None:
    """Nothing is removed while instances start, nor while few changes are left."""
    for line in (e for e in lines(world) if e.applies and not STRONGER & set(e.limited_by)):
        read, now = world.store.read[line.time, line.entry_id], line.current or 0
        if (line.desired or 0) >= now:
            continue
        assert not read.starting, f"removed while instances start: {line}"
        recent = [o for o in world.control.orders if read.at - COUNTED < o.time < read.at]
        assert len(recent) < world.allowed - SPARED_CHANGES, (line, recent)


def check_settles(world: VariedWorld) -> None:
    """The queue drains, and the capacity returns to its minimum, both in time."""
    plan, most = world.plan, world.arena.max_instances * float(world.course.served[-1])
    drained = float(LOAD_MINUTES + DRAINED_MINUTES)
    drained += world.queue.backlog / most / world.arena.steps_per_minute
    end = LOAD_MINUTES + SETTLED_MINUTES[world.allowed]
    while world.minutes < drained and world.queue.backlog:
        world.step()
    assert not world.queue.backlog, f"{world.queue.backlog} items wait after {drained} minutes"
    while world.minutes < end and not plan.ordered == plan.shown == world.arena.min_instances:
        world.step()
    assert plan.shown == world.arena.min_instances, f"{plan.shown} after {end} minutes"


def check_seed(seed: int) -> None:
    world = VariedWorld(seed)
    world.run(LOAD_MINUTES * 60)
    check_always(world, by_hand=False)
    world.calm_down()
    check_settles(world)
    check_always(world, by_hand=False)
    if not world.store.clocks_doubted:
        check_no_manual_change(world)
    check_resend_wait(world)
    check_orders(world)
    check_scale_in(world)
    assert not world.store.broken, world.store.broken[:2]
    world.scheduler.close()


@pytest.mark.parametrize("seed", [*seeds(SEEDS), 16])
def test_the_rules_of_scaling_hold_while_queue_and_workers_change(seed: int) -> None:
    """With seed 16, a deploy refutes the rate that is set."""
    check_seed(seed)
