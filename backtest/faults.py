"""The replay in bad weather: samples and orders get lost, late, doubled and refused, by a seed.

What the queues, the sources and Azure may do to the app is done to it here; the app answers with
its own code, which retries, resends and ignores as in production.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any, TypeVar

from backtest.app import App
from backtest.arena import Arena, Plan
from backtest.feeds import Minute
from backtest.progress import Progress
from backtest.replay import Replay, in_arena, run
from backtest.rules_file import Rules
from backtest.safety import Safety
from backtest.workload import Workload
from shared.autoscaling.actions import Settlement, reason_to_ignore
from shared.autoscaling.model import Decision, EntryKind, Metric, ScaleAction

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Weather:
    """Chances per sample, per order, or (blackouts, unreadable plan) per minute."""

    sample_dropped: float = 0.05
    sample_late: float = 0.05
    sample_doubled: float = 0.05
    blackout: float = 0.001
    order_lost: float = 0.05
    order_doubled: float = 0.10
    order_deferred: float = 0.15
    order_refused: float = 0.03
    reply_lost: float = 0.10
    plan_unreadable: float = 0.05
    late_minutes_max: int = 15
    blackout_minutes_max: int = 30


class StormyApp(App):
    """The app under faults. ``counts`` says what happened to it, ``safety`` what broke."""

    def __init__(self, rules: Rules, arena: Arena, seed: int, weather: Weather) -> None:
        super().__init__(
            in_arena(rules.resource, arena), Plan(arena), rules.timing, arena.backlog_metric
        )
        self.safety = Safety(self.resource, rules.timing)
        self.counts: Counter[str] = Counter()
        self._weather = weather
        self._random = Random(seed)  # noqa: S311  faults are to be repeated, not to be secret
        self._late_samples: list[tuple[int, Metric]] = []
        self._late_orders: list[tuple[int, ScaleAction]] = []
        self._dark_until = -1
        self._minute = 0

    def end(self, minute: int, now: datetime, seen: Minute) -> None:
        self._minute = minute
        if self._happens("blackout", self._weather.blackout):
            self._dark_until = minute + self._random.randint(1, self._weather.blackout_minutes_max)
        for action in _due(self._late_orders, minute):
            self.carry_out(action, minute, now)
        for metric in _due(self._late_samples, minute):
            self.receive(metric, minute, now)
        super().end(minute, now, seen)
        self.safety.minute(self.plan.capacity, self.state, now)

    def samples(self, now: datetime, seen: Minute) -> list[Metric]:
        if self._minute <= self._dark_until:
            return []
        return [m for metric in super().samples(now, seen) for m in self._delivered(metric)]

    def decided(self, decision: Decision) -> None:
        super().decided(decision)
        self.safety.decision(decision, self.state)

    def carry_out(self, action: ScaleAction, minute: int, now: datetime) -> None:
        """Between the queue and the plan: the message, the plan's answer, or the reply get lost."""
        weather = self._weather
        if self._happens("orders_lost", weather.order_lost):
            return
        if self._happens("orders_doubled", weather.order_doubled):
            self._late_orders.append((minute + self._later(), action))
        if reason_to_ignore(self.resource, self.state, action, now) is not None:
            self.counts["orders_ignored"] += 1
        elif self._happens("orders_deferred", weather.order_deferred):
            self.settle(Settlement(EntryKind.DEFERRED, "409: another operation runs"), now)
        elif self._happens("orders_refused", weather.order_refused):
            self.settle(Settlement(EntryKind.FAILED, "409: no instances available"), now)
        else:
            self.safety.order(action, self.state, now)
            self.plan.order(action.target, minute)

    def arrived(self, now: datetime) -> None:
        if not self._happens("replies_lost", self._weather.reply_lost):
            super().arrived(now)

    def reconcile(self, minute: int, now: datetime) -> None:
        if not self._happens("plan_unreadable", self._weather.plan_unreadable):
            super().reconcile(minute, now)

    def _delivered(self, metric: Metric) -> list[Metric]:
        weather = self._weather
        if self._happens("samples_dropped", weather.sample_dropped):
            return []
        if self._happens("samples_late", weather.sample_late):
            self._late_samples.append((self._minute + self._later(), metric))
            return []
        if self._happens("samples_doubled", weather.sample_doubled):
            return [metric, metric]
        return [metric]

    def _later(self) -> int:
        return self._random.randint(1, self._weather.late_minutes_max)

    def _happens(self, fault: str, chance: float) -> bool:
        happens = self._random.random() < chance
        self.counts[fault] += happens
        return happens


def _due(waiting: list[tuple[int, T]], minute: int) -> list[T]:
    """Take out what is due."""
    due = [item for when, item in waiting if when <= minute]
    waiting[:] = [(when, item) for when, item in waiting if when > minute]
    return due


def stormy_replay(
    arena: Arena,
    workload: Workload,
    rules: Rules,
    seed: int,
    progress: Progress,
    weather: Weather = Weather(),
) -> tuple[Replay, dict[str, Any]]:
    """The replay under faults, and what to report of them: counts, and what safety rules broke."""
    app = StormyApp(rules, arena, seed, weather)
    replayed = run(app, arena, workload, progress.advance)
    faults = {name: app.counts[name] for name in sorted(app.counts)}
    broken = {"violations": app.safety.count, "first_violations": app.safety.broken}
    return replayed, {"seed": seed, **faults, **broken}
