"""The app's own pure code, fed minute by minute: what the functions do, without their storage.

Nothing is decided here. Samples go through ``advance`` and orders through the life of ``actions``,
just as in the flows of ``shared.autoscaling``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from backtest.arena import Plan
from backtest.feeds import Minute, feeds
from shared.autoscaling.actions import (
    ActionTiming,
    Settlement,
    action_of,
    reason_to_ignore,
    reconcile,
    settle,
)
from shared.autoscaling.desired import ScaleAction
from shared.autoscaling.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import Decision, EntryKind, ScalingState
from shared.autoscaling.transition import advance

PATIENCE = ActionTiming(
    resend_seconds=60, retry_seconds=15, failure_hold_seconds=60, deadline_seconds=600
)
"""The settings' defaults."""


@dataclass(frozen=True, slots=True)
class Order:
    """A decision that was applied, for plots and for the curious."""

    minute: int
    decision: Decision


class App:
    """One resource under its rules. ``plan`` is where its orders go."""

    def __init__(
        self,
        resource: Resource,
        plan: Plan,
        timing: ActionTiming = PATIENCE,
        backlog_metric: str | None = None,
    ) -> None:
        self.resource = resource
        self.plan = plan
        self.timing = timing
        self.state = ScalingState()
        self.orders: list[Order] = []
        self.rule_error = ""
        self.false_alarms = 0
        fed = feeds(resource, backlog_metric).items()
        self._feeds = sorted(fed, key=lambda one: one[1] == "backlog")

    def begin(self, minute: int, now: datetime) -> None:
        """What was ordered for this minute is there, and the scaler reads it back."""
        if self.plan.begin(minute):
            self.arrived(now)

    def end(self, minute: int, now: datetime, seen: Minute) -> None:
        """The collector takes its samples; the timer of the reconciler comes round."""
        for metric in self.samples(now, seen):
            self.receive(metric, minute, now)
        self.reconcile(minute, now)

    def samples(self, now: datetime, seen: Minute) -> list[Metric]:
        """Capacity first, so that decisions know it; then what is not backlog, then what is."""
        name = self.resource.name
        found = [Metric(name, CAPACITY_METRIC, MetricValue(now, float(self.plan.capacity)))]
        for metric, feed in self._feeds:
            found.append(Metric(name, metric, MetricValue(now, seen.of(feed))))
        return found

    def receive(self, metric: Metric, minute: int, now: datetime) -> None:
        """What the function ``scaling_logic`` does with one message."""
        step = advance(self.resource, self.state, metric, now)
        self.state = step.state
        if step.decision is not None:
            self.decided(step.decision)
            if step.decision.applies and step.state.desired is not None:
                self.orders.append(Order(minute, step.decision))
                self.carry_out(action_of(self.resource.name, step.state.desired), minute, now)

    def decided(self, decision: Decision) -> None:
        """Look at a decision; a rule that raises is held, and must not stay unseen here."""
        if not self.rule_error and decision.candidates and decision.candidates[0].rule == "error":
            self.rule_error = f"{decision.reason} (first at {decision.time:%Y-%m-%d %H:%M})"

    def carry_out(self, action: ScaleAction, minute: int, now: datetime) -> None:
        """What the function ``scaler`` does up to waiting for the plan."""
        if reason_to_ignore(self.resource, self.state, action, now) is None:
            self.plan.order(action.target, minute)

    def arrived(self, now: datetime) -> None:
        """What the function ``scaler`` does when the plan has done what was asked for."""
        desired = self.state.desired
        if desired is not None and self.plan.capacity == desired.target:
            self.settle(Settlement(EntryKind.CONFIRMED, "capacity changed"), now)

    def settle(self, settlement: Settlement, now: datetime) -> None:
        if self.state.desired is None:
            return
        settled = settle(self.state.desired, settlement, now, self.timing)
        if settled is not None:
            self.state = self.state.with_desired(settled)

    def reconcile(self, minute: int, now: datetime) -> None:
        """What the function ``reconciler`` does."""
        if self.state.desired is None:
            return
        found = reconcile(self.resource, self.state, self.plan.capacity, now, self.timing)
        if found.desired is not None:
            self.state = self.state.with_desired(found.desired)
        if found.entry is not None and found.entry.kind is EntryKind.MANUAL_CHANGE:
            self.false_alarms += 1  # nobody but the app changes the plan here
        if found.action is not None:
            self.carry_out(found.action, minute, now)
