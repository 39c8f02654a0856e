"""The replay in bad rates: samples and orders get lost, late, doubled and refused, by a seed.

What the queues, the sources, Azure and people may do to the app is done to it here; the app answers
with its own code, which retries, resends, ignores and repairs as in production.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any, TypeVar

from backtest.arena import Arena, Plan
from backtest.progress import Progress
from backtest.replay import App, Minute, Replay, in_arena, run
from backtest.rules_file import Rules
from backtest.safety import Safety
from backtest.workload import Workload
from shared.adapters.memory.autoscaling import MemoryStateStore
from shared.autoscaling import Mode
from shared.autoscaling.actions import reason_to_ignore
from shared.autoscaling.deciding.decide import Decision, LogEntry
from shared.autoscaling.declaring import CapacityTarget
from shared.autoscaling.errors import CapacityDelayed, CapacityRefused, StateConflict
from shared.autoscaling.flows import reconciler, scaler
from shared.autoscaling.measurements import Metric, MetricValue
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.state import Override, ScaleAction, ScalingState

T = TypeVar("T")
FLOWS = "shared.autoscaling.flows"
OUT_OF_BOUNDS_MAX = 2
"""So many instances beyond the maximum may be set by hand."""


@dataclass(frozen=True, slots=True)
class FaultRates:
    """Chances per sample, per order, or (from blackouts on) per minute."""

    sample_dropped: float = 0.05
    sample_late: float = 0.05
    sample_doubled: float = 0.05
    order_lost: float = 0.05
    order_doubled: float = 0.10
    order_deferred: float = 0.15
    order_refused: float = 0.03
    order_slow: float = 0.05
    reply_lost: float = 0.10
    blackout: float = 0.001
    outage: float = 0.0003
    plan_unreadable: float = 0.05
    scalers_killed: float = 0.001
    changed_by_hand: float = 0.002
    paused_by_hand: float = 0.0005
    late_minutes_max: int = 15
    slow_minutes_max: int = 30
    """Longer than the deadline of an action, so that others are decided meanwhile."""
    blackout_minutes_max: int = 30
    outage_minutes_max: int = 360
    """A blackout takes the sources away; an outage takes the whole app away, and much longer."""
    paused_minutes_max: int = 60


class FaultyApp(App):
    """The app under faults. ``counts`` says what happened to it, ``safety`` what broke."""

    def __init__(self, rules: Rules, arena: Arena, seed: int, rates: FaultRates) -> None:
        resource = in_arena(rules.resource, arena)
        self.safety = Safety(resource, rules.timing)
        self.counts: Counter[str] = Counter()
        self._state = ScalingState()
        self._told: Sequence[LogEntry] = ()
        super().__init__(resource, Plan(arena), rules.timing, arena.backlog_metric)
        self._arena = arena
        self._rates = rates
        self._random = Random(seed)  # noqa: S311  faults are to be repeated, not to be secret
        self._store = AppState(self)
        self._scalers = Scalers()
        self._late_samples: list[tuple[int, Metric]] = []
        self._late_orders: list[tuple[int, ScaleAction]] = []
        self._orders_on_their_way: list[tuple[int, int]] = []
        self._dark_until = self._down_until = self._minute = -1

    # --- the state, under watch ---

    @property
    def state(self) -> ScalingState:
        return self._state

    @state.setter
    def state(self, state: ScalingState) -> None:
        before, self._state = self._state, state
        kinds, self._told = {entry.kind for entry in self._told}, ()
        if state.desired is not None and state.desired is not before.desired:
            self.safety.changed(before.desired, state.desired, self.now, kinds)

    def told(self, entries: Sequence[LogEntry]) -> None:
        self._told = entries

    # --- a minute ---

    def begin(self, minute: int, now: datetime) -> None:
        self._minute, self.now = minute, now
        for target in _due(self._orders_on_their_way, minute):
            self.plan.order(target, minute - 1)
        changed = self.plan.begin(minute)
        self.safety.minute(self.plan.capacity, now, changed=changed)
        if minute > self._down_until:
            self._scalers.step()

    def end(self, minute: int, now: datetime, seen: Minute) -> None:
        self._minute, self.now = minute, now
        self._people()
        self._breakdowns()
        if minute > self._down_until:
            for action in _due(self._late_orders, minute):
                self.carry_out(action, minute, now)
            for metric in _due(self._late_samples, minute):
                self.receive(metric, minute, now)
            super().end(minute, now, seen)

    def _people(self) -> None:
        """Somebody changes the plan, or pauses the app."""
        if self._happens("changed_by_hand", self._rates.changed_by_hand):
            capacity = self._random.randint(1, self._arena.max_instances + OUT_OF_BOUNDS_MAX)
            if capacity != self.plan.capacity:
                self.plan.set_by_hand(capacity)
                self.safety.set_by_hand(capacity, self.now)
        if self._happens("paused_by_hand", self._rates.paused_by_hand):
            minutes = self._random.randint(1, self._rates.paused_minutes_max)
            until = self.now + timedelta(minutes=minutes)
            self.state = replace(self.state, override=Override(Mode.PAUSED, expires_at=until))

    def _breakdowns(self) -> None:
        rates, minute = self._rates, self._minute
        if self._happens("blackouts", rates.blackout):
            self._dark_until = minute + self._random.randint(1, rates.blackout_minutes_max)
        down = self._happens("outages", rates.outage)
        if down:
            self._down_until = minute + self._random.randint(1, rates.outage_minutes_max)
        if down or self._happens("scalers_killed", rates.scalers_killed):
            for action in self._scalers.kill():
                self._unattended(action.target)
                self._late_orders.append((minute + self._later(), action))

    def close(self) -> None:
        """End what still waits when the trace is over."""
        self._scalers.kill()

    # --- samples ---

    def samples(self, now: datetime, seen: Minute) -> list[Metric]:
        if self._minute <= self._dark_until:
            return []
        return [m for metric in super().samples(now, seen) for m in self._delivered(metric)]

    def _delivered(self, metric: Metric) -> list[Metric]:
        rates = self._rates
        if self._happens("samples_dropped", rates.sample_dropped):
            return []
        if self._happens("samples_late", rates.sample_late):
            self._late_samples.append((self._minute + self._later(), metric))
            return []
        if self._happens("samples_doubled", rates.sample_doubled):
            return [metric, metric]
        return [metric]

    def decided(self, decision: Decision) -> None:
        super().decided(decision)
        self.safety.decision(decision, self.state)

    # --- orders ---

    def carry_out(self, action: ScaleAction, minute: int, now: datetime) -> None:
        """A message to the scaler gets lost, doubled, or a scaler of its own, beside others."""
        if self._happens("orders_lost", self._rates.order_lost):
            return
        if self._happens("orders_doubled", self._rates.order_doubled):
            self._late_orders.append((minute + self._later(), action))
        if reason_to_ignore(self.resource, self.state, action, now) is not None:
            self.counts["orders_ignored"] += 1
        control = PlanControl(self._read, lambda capacity: self._change(action, capacity))
        resources = {self.resource.name: self.resource}
        self._scalers.start(
            action, scaler.run(action, resources, self._store, control, self.timing)
        )

    def _read(self) -> MetricValue:
        if self._happens("plan_unreadable", self._rates.plan_unreadable):
            raise CapacityDelayed("503")
        return MetricValue(self.now, float(self.plan.capacity))

    async def _change(self, action: ScaleAction, capacity: int) -> None:
        """The order is slow on its way, or lost with its reply; the plan takes or refuses it."""
        rates = self._rates
        self.safety.order(action, capacity, self.state, self.now)
        slow = self._happens("orders_slow", rates.order_slow)
        due = self._minute + (self._random.randint(1, rates.slow_minutes_max) if slow else 0)
        if self._happens("replies_lost", rates.reply_lost):
            self._unattended(capacity)
            self._orders_on_their_way.append((due + 1, capacity))
            raise CapacityDelayed("no answer, outcome unknown", maybe_done=True)
        while self._minute < due:
            await NextMinute()
        if self._happens("orders_deferred", rates.order_deferred):
            raise CapacityDelayed("409: another operation runs")
        if self._happens("orders_refused", rates.order_refused):
            raise CapacityRefused("409: no instances available")
        self.plan.order(capacity, self._minute)
        done_by = self._minute + self._arena.dead_time_minutes
        while self.plan.capacity != capacity and self._minute <= done_by:
            await NextMinute()

    def _unattended(self, capacity: int) -> None:
        """Whoever was to wait for the order is gone; the order may still take effect."""
        minutes = self._rates.slow_minutes_max + self._arena.dead_time_minutes + 1
        self.safety.unattended(capacity, self.now + timedelta(minutes=minutes))

    def reconcile(self, minute: int, now: datetime) -> None:
        """The app's own reconciler, and what must hold once it has looked."""
        before = self.state.desired
        control = PlanControl(self._read, self._never)
        one = reconciler.reconcile_one(self.resource, self._store, control, self.timing)
        try:
            action = finished(one)
        except CapacityDelayed:
            return
        if before is not None and self.state.desired is not None:
            active = self.safety.may_act(self.state, now)
            self.safety.reconciled(before, self.state.desired, self.plan.capacity, now, active)
        if action is not None:
            self.carry_out(action, minute, now)

    async def _never(self, _: int) -> None:
        raise AssertionError("the reconciler changes nothing itself")

    def _later(self) -> int:
        return self._random.randint(1, self._rates.late_minutes_max)

    def _happens(self, fault: str, chance: float) -> bool:
        happens = self._random.random() < chance
        self.counts[fault] += happens
        return happens


def _due(waiting: list[tuple[int, T]], minute: int) -> list[T]:
    """Take out what is due."""
    due = [item for when, item in waiting if when <= minute]
    waiting[:] = [(when, item) for when, item in waiting if when > minute]
    return due


@contextmanager
def _without_log() -> Iterator[None]:
    """The flows tell the log of every action; a replay has nobody who reads it."""
    log = logging.getLogger(FLOWS)
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def replay_with_faults(
    arena: Arena,
    workload: Workload,
    rules: Rules,
    seed: int,
    progress: Progress,
    rates: FaultRates = FaultRates(),
) -> tuple[Replay, dict[str, Any]]:
    """The replay under faults, and what to report of them: counts, and what safety rules broke."""
    app = FaultyApp(rules, arena, seed, rates)
    with _without_log():
        replayed = run(app, arena, workload, progress.advance)
        app.close()
    faults = {name: app.counts[name] for name in sorted(app.counts)}
    broken = {"violations": app.safety.count, "first_violations": app.safety.broken}
    return replayed, {"seed": seed, **faults, **broken}


# --- the app's own functions ``scaler`` and ``reconciler``: several at once, each slow -----------


class NextMinute(Awaitable[None]):
    """Whoever awaits it goes on with the next minute."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class AppState(MemoryStateStore):
    """The state of a replay's app as a store; a commit on another state than was read is refused.

    The log is not kept.
    """

    def __init__(self, app: FaultyApp) -> None:
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
    """The plan as the app's CapacityControl; what happens to an order is the faults' to say."""

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


class Scalers:
    """Those at work, oldest first; each goes on once a minute."""

    def __init__(self) -> None:
        self._running: list[tuple[ScaleAction, Coroutine[Any, Any, object]]] = []

    def start(self, action: ScaleAction, work: Coroutine[Any, Any, object]) -> None:
        if not _done(work):
            self._running.append((action, work))

    def step(self) -> None:
        self._running = [(a, work) for a, work in self._running if not _done(work)]

    def kill(self) -> list[ScaleAction]:
        """End all, wherever they are; what they were to do comes again."""
        ended, self._running = self._running, []
        for _, work in ended:
            work.close()
        return [action for action, _ in ended]


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
