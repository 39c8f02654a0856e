"""Replays a trace with faults: samples and scale actions are lost, late, duplicated or refused.

A seed determines the faults. Such faults also occur in reality, where queues, metric sources, Azure
or operators cause them. The app reacts with its production code, which retries, resends, ignores
and repairs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any, TypeVar, cast

from backtest.arena import Arena, Plan
from backtest.progress import Progress
from backtest.replay import App, Replay, Seen, in_arena, replay_workload
from backtest.rules_file import Rules
from backtest.safety import Safety
from backtest.workload import Workload
from shared.autoscaling import Mode
from shared.autoscaling.acting.actions import reason_to_ignore
from shared.autoscaling.deciding.decide import Decision, LogEntry
from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.errors import CapacityDelayed, CapacityRefused, StateConflict
from shared.autoscaling.flows.reconciler import Reconciler
from shared.autoscaling.flows.scaler import Scaler
from shared.autoscaling.plan_facts import PlanReading
from shared.autoscaling.ports import Snapshot, StateStore
from shared.autoscaling.state import Override, ScaleAction, ScalingState
from shared.values.measurements import Metric

T = TypeVar("T")
FLOWS = "shared.autoscaling.flows"
ANSWER_SECONDS_MAX = 30
OUT_OF_BOUNDS_MAX = 2
"""A manual change may exceed the maximum by up to this many instances."""


@dataclass(frozen=True, slots=True)
class FaultRates:
    """The probability of each kind of fault, and how long the faults may last."""

    # for each sample
    sample_dropped: float = 0.05
    # for each message with the samples of a step
    sample_late: float = 0.05
    sample_doubled: float = 0.05
    # for each scale action
    action_lost: float = 0.05
    action_doubled: float = 0.10
    action_deferred: float = 0.15
    action_refused: float = 0.03
    action_slow: float = 0.05
    reply_lost: float = 0.10
    # for each time that the capacity of the plan is read
    plan_unreadable: float = 0.05
    # for each minute
    blackout: float = 0.001
    outage: float = 0.0003
    scalers_killed: float = 0.001
    changed_by_hand: float = 0.002
    paused_by_hand: float = 0.0005
    # durations
    late_minutes_max: int = 15
    slow_minutes_max: int = 30
    """Longer than the deadline of an action, so that the app decides other actions meanwhile."""
    blackout_minutes_max: int = 30
    outage_minutes_max: int = 360
    """A blackout makes the metric sources unreadable. An outage stops the whole app, and may last
    much longer."""
    paused_minutes_max: int = 60


class FaultyApp(App):
    """The app with faults. ``counts`` counts the faults, and ``safety`` collects violations."""

    def __init__(self, rules: Rules, arena: Arena, seed: int, rates: FaultRates) -> None:
        resource = in_arena(rules.resource, arena)
        self.safety = Safety(resource, rules.timing)
        self.counts: Counter[str] = Counter()
        self._state = ScalingState()
        self._entries: Sequence[LogEntry] = ()
        super().__init__(resource, Plan(arena), rules.timing)
        self._arena = arena
        self._rates = rates
        self._random = Random(seed)  # noqa: S311  reproducible faults, not secrets
        self._store = cast(StateStore, AppState(self))
        self._scalers = Scalers()
        self._late_samples: list[tuple[int, list[Metric]]] = []
        self._late_actions: list[tuple[int, ScaleAction]] = []
        self._late_requests: list[tuple[int, int]] = []
        self._steps = arena.steps_per_minute
        self._blackout_until = self._outage_until = self._step = -1

    # --- the state: every change is checked ---

    @property
    def state(self) -> ScalingState:
        return self._state

    @state.setter
    def state(self, state: ScalingState) -> None:
        before, self._state = self._state, state
        kinds, self._entries = {entry.kind for entry in self._entries}, ()
        if state.desired is not None and state.desired is not before.desired:
            self.safety.changed(before.desired, state.desired, self.now, kinds)

    def record_entries(self, entries: Sequence[LogEntry]) -> None:
        self._entries = entries

    # --- a step ---

    def begin(self, step: int, now: datetime) -> None:
        self._step = step
        for target in _due(self._late_requests, step):
            with suppress(CapacityDelayed):
                self.plan.order(target, step - 1)
        changed = self.plan.begin(step)
        self.now = now + timedelta(seconds=changed or 0.0)
        self.safety.minute(self.plan.shown, self.now, capacity_changed=changed is not None)
        if step > self._outage_until:
            self._scalers.step()

    def end(self, step: int, now: datetime, seen: Seen, whole: Seen | None) -> None:
        self._step, self.now = step, now
        self._simulate_operators()
        self._simulate_outages()
        if step > self._outage_until:
            for action in _due(self._late_actions, step):
                self.carry_out(action, step, now)
            for metrics in _due(self._late_samples, step):
                self.receive(metrics, step, now)
            super().end(step, now, seen, whole)

    def _simulate_operators(self) -> None:
        """Simulate operators: manual changes of the plan, and pauses of the app."""
        if self._happens("changed_by_hand", self._rates.changed_by_hand / self._steps):
            capacity = self._random.randint(1, self._arena.max_instances + OUT_OF_BOUNDS_MAX)
            if capacity != self.plan.shown:
                self.plan.set_by_hand(capacity)
                self.safety.set_by_hand(capacity, self.now)
        if self._happens("paused_by_hand", self._rates.paused_by_hand / self._steps):
            minutes = self._random.randint(1, self._rates.paused_minutes_max)
            until = self.now + timedelta(minutes=minutes)
            self.state = replace(self.state, override=Override(Mode.PAUSED, expires_at=until))

    def _simulate_outages(self) -> None:
        """Simulate blackouts of the sources, outages of the app, and scalers that are killed."""
        rates, step = self._rates, self._step
        if self._happens("blackouts", rates.blackout / self._steps):
            self._blackout_until = step + self._later(rates.blackout_minutes_max)
        down = self._happens("outages", rates.outage / self._steps)
        if down:
            self._outage_until = step + self._later(rates.outage_minutes_max)
        if down or self._happens("scalers_killed", rates.scalers_killed / self._steps):
            for action in self._scalers.kill():
                self._record_abandoned(action.target)
                self._late_actions.append((step + self._later(), action))

    def close(self) -> None:
        """Stop the scalers that are still running when the trace ends."""
        self._scalers.kill()

    # --- samples ---

    def samples(self, now: datetime, seen: Seen, whole: Seen | None) -> list[Metric]:
        if self._step <= self._blackout_until:
            return []
        rates, samples = self._rates, super().samples(now, seen, whole)
        read = [m for m in samples if not self._happens("samples_dropped", rates.sample_dropped)]
        if self._happens("samples_late", rates.sample_late):
            self._late_samples.append((self._step + self._later(), read))
            return []
        return read * 2 if self._happens("samples_doubled", rates.sample_doubled) else read

    def decided(self, decision: Decision) -> None:
        super().decided(decision)
        self.safety.decision(decision, self.state)

    # --- scale actions ---

    def carry_out(self, action: ScaleAction, step: int, now: datetime) -> None:
        """Deliver the message of an action: start a scaler for it, unless the message is lost."""
        if self._happens("actions_lost", self._rates.action_lost):
            return
        if self._happens("actions_doubled", self._rates.action_doubled):
            self._late_actions.append((step + self._later(), action))
        if reason_to_ignore(self.resource, self.state, action, now) is not None:
            self.counts["actions_ignored"] += 1
        control = PlanControl(self._read, lambda capacity: self._change(action, capacity))
        resources = {self.resource.name: self.resource}
        self._scalers.start(
            action, Scaler(resources, self._store, control, self.timing).execute(action)
        )

    def _read(self) -> PlanReading:
        if self._happens("plan_unreadable", self._rates.plan_unreadable):
            raise CapacityDelayed("503")
        return PlanReading(self.now, float(self.plan.shown))

    async def _change(self, action: ScaleAction, capacity: int) -> int | None:
        """Delay the request, lose its reply, or let the plan accept or refuse it."""
        rates = self._rates
        self.safety.requested(action, capacity, self.state, self.now)
        slow = self._happens("actions_slow", rates.action_slow)
        due = self._step + (self._later(rates.slow_minutes_max) if slow else 0)
        if self._happens("replies_lost", rates.reply_lost):
            self._record_abandoned(capacity)
            self._late_requests.append((due + 1, capacity))
            raise CapacityDelayed("no answer, outcome unknown", maybe_done=True)
        while self._step < due:
            await NextStep()
        if self._happens("actions_deferred", rates.action_deferred):
            raise CapacityDelayed("409: another operation runs")
        if self._happens("actions_refused", rates.action_refused):
            raise CapacityRefused("409: no instances available")
        self.plan.order(capacity, self._step)
        return capacity if self.plan.shown == capacity else None

    def _record_abandoned(self, capacity: int) -> None:
        """Record that no scaler waits for the result of a request any more. The request may still
        take effect.
        """
        minutes = self._rates.slow_minutes_max + self._arena.dead_time_minutes + 1
        self.safety.abandoned(capacity, self.now + timedelta(minutes=minutes))

    def reconcile(self, step: int, now: datetime) -> None:
        """Run the app's own reconciler, and check what must hold afterwards."""
        before = self.state.desired
        control = PlanControl(self._read, self._never)
        work = Reconciler(self._store, control, self.timing, ANSWER_SECONDS_MAX).reconcile_one(
            self.resource
        )
        try:
            action = result_of(work)
        except CapacityDelayed:
            return
        if before is not None and self.state.desired is not None:
            active = self.safety.may_act(self.state, now)
            self.safety.reconciled(before, self.state.desired, self.plan.shown, now, active)
        if action is not None:
            self.carry_out(action, step, now)

    async def _never(self, _: int) -> int | None:
        raise AssertionError("the reconciler must not change the capacity itself")

    def _later(self, minutes_max: int | None = None) -> int:
        """Steps within so many minutes, or within the time that samples and actions may be late."""
        return self._random.randint(1, self._steps * (minutes_max or self._rates.late_minutes_max))

    def _happens(self, fault: str, chance: float) -> bool:
        happens = self._random.random() < chance
        self.counts[fault] += happens
        return happens


def _due(waiting: list[tuple[int, T]], step: int) -> list[T]:
    """Remove and return the items that are due."""
    due = [item for when, item in waiting if when <= step]
    waiting[:] = [(when, item) for when, item in waiting if when > step]
    return due


@contextmanager
def _without_log() -> Iterator[None]:
    """Silence the log of the flows, which would write a line for every action."""
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
    """Replay a workload with faults. Return the replay, and the counts and violations to report."""
    app = FaultyApp(rules, arena, seed, rates)
    with _without_log():
        replayed = replay_workload(app, arena, workload, progress.advance)
        app.close()
    faults = {name: app.counts[name] for name in sorted(app.counts)}
    broken = {"violations": app.safety.count, "first_violations": app.safety.broken}
    return replayed, {"seed": seed, **faults, **broken}


# --- the state, the plan and the running scalers, as the flows of the app see them ---------------


class NextStep(Awaitable[None]):
    """Awaiting it suspends the scaler until the next step."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class AppState:
    """The store that holds the state of a replay: what the scaler and the reconciler use of it.

    A commit fails if the state has changed since it was read. The decision log is discarded.
    """

    def __init__(self, app: FaultyApp) -> None:
        self._app = app

    async def load(self, resource_name: str) -> Snapshot:
        return Snapshot(resource_name, self._app.state, self._app.now)

    async def commit(
        self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry] = ()
    ) -> None:
        if snapshot.state is not self._app.state:
            raise StateConflict(f"{snapshot.resource_name}: changed since read")
        self._app.record_entries(entries)
        self._app.state = state

    async def record(self, entry: LogEntry) -> None:
        """Discard the entry. The scaler records only ignored actions in this way."""


class PlanControl:
    """The CapacityControl of the plan. The faults decide what happens to a change."""

    def __init__(
        self, read: Callable[[], PlanReading], change: Callable[[int], Awaitable[int | None]]
    ) -> None:
        self._read = read
        self._change = change

    async def read(self, _: AppServicePlan, /) -> PlanReading:
        return self._read()

    describe = read

    async def change(
        self,
        _: AppServicePlan,
        /,
        capacity: int,
        read: PlanReading,  # noqa: ARG002  the port has it
    ) -> int | None:
        return await self._change(capacity)

    async def close(self) -> None:
        """There is nothing to close."""


class Scalers:
    """The running scalers, oldest first. Each continues once a step, in a context of its own."""

    def __init__(self) -> None:
        self._running: list[tuple[ScaleAction, Coroutine[Any, Any, object], Context]] = []

    def start(self, action: ScaleAction, work: Coroutine[Any, Any, object]) -> None:
        context = copy_context()
        if not context.run(_run_to_next_wait, work):
            self._running.append((action, work, context))

    def step(self) -> None:
        self._running = [
            each for each in self._running if not each[2].run(_run_to_next_wait, each[1])
        ]

    def kill(self) -> list[ScaleAction]:
        """Stop all scalers, and return their actions, which are delivered again."""
        stopped, self._running = self._running, []
        for _, work, context in stopped:
            context.run(work.close)
        return [action for action, *_ in stopped]


def _run_to_next_wait(work: Coroutine[Any, Any, object]) -> bool:
    """Continue a coroutine until it waits again. Returns whether it has ended."""
    try:
        work.send(None)
    except StopIteration:
        return True
    return False


def result_of(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, and return its result."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the coroutine waits for something")
