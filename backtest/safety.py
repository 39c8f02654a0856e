"""What must hold whatever goes wrong: checked at every decision, order and minute of a replay."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shared.autoscaling.actions import ActionTiming
from shared.autoscaling.model import Decision, Resource, ScaleAction, ScalingState

SHOWN_MAX = 20
PENDING_SLACK_SECONDS = 120
"""The reconciler comes round once a minute here, and a reading of the plan may fail."""


@dataclass(slots=True)
class Safety:
    """Collects what was broken; ``broken`` holds the first few, ``count`` all."""

    resource: Resource
    timing: ActionTiming
    count: int = 0
    broken: list[str] = field(default_factory=list)
    _epoch: int = 0

    def decision(self, decision: Decision, state: ScalingState) -> None:
        """Orders stay in bounds, and nothing is scaled in on the strength of no data."""
        if not decision.applies or decision.desired is None or decision.current is None:
            return
        self._bounds("decided", decision.desired, decision.time)
        if decision.desired < decision.current <= self.resource.limits.maximum:
            for name in self.resource.metrics.keys() - {self.resource.service.counted_metric}:
                self._seen_lately(name, decision, state)

    def _seen_lately(self, name: str, decision: Decision, state: ScalingState) -> None:
        """Unless the user gave a capacity to fall back to, a missing metric allows no scale-in."""
        rule, history = self.resource.guards.missing_for(name), state.histories.get(name)
        if isinstance(rule.then, int):
            return
        latest = history.samples[-1].time if history and history.samples else None
        fresh_from = decision.time - timedelta(seconds=rule.after_seconds)
        if latest is None or latest < fresh_from:
            what = f"scaled in to {decision.desired}, with {name} last seen {latest}"
            self._break(decision.time, what)

    def order(self, action: ScaleAction, state: ScalingState, now: datetime) -> None:
        """Only what the state wants now reaches the plan: one writer, fenced by the epoch."""
        desired = state.desired
        if desired is None or (action.epoch, action.target) != (desired.epoch, desired.target):
            self._break(now, f"epoch {action.epoch} was carried out, which is not the state's")

    def minute(self, capacity: int, state: ScalingState, now: datetime) -> None:
        """Capacity in bounds, epochs that only grow, no order that waits for ever."""
        self._bounds("capacity", capacity, now)
        desired = state.desired
        if desired is None:
            return
        if desired.epoch < self._epoch:
            self._break(now, f"epoch fell from {self._epoch} to {desired.epoch}")
        self._epoch = desired.epoch
        patience = timedelta(seconds=self.timing.deadline_seconds + PENDING_SLACK_SECONDS)
        if desired.pending and now - desired.requested_at > patience:
            self._break(now, f"epoch {desired.epoch} is pending since {desired.requested_at}")

    def _bounds(self, what: str, capacity: int, now: datetime) -> None:
        limits = self.resource.limits
        if not limits.minimum <= capacity <= limits.maximum:
            self._break(now, f"{what} {capacity}, outside {limits.minimum} to {limits.maximum}")

    def _break(self, now: datetime, what: str) -> None:
        self.count += 1
        if len(self.broken) < SHOWN_MAX:
            self.broken.append(f"{now:%Y-%m-%d %H:%M} {what}")
