"""What must hold whatever goes wrong: checked at every decision, order and minute of a replay.

The checks do not ask the code that they watch. They know what the plan really did, and remember
by themselves when the capacity changed last, what failed and until when, and what a person set.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from shared.autoscaling.actions import ActionTiming
from shared.autoscaling.deciding.decide import Decision, EntryKind
from shared.autoscaling.declaring import ManualChange, Mode
from shared.autoscaling.measurements import CAPACITY_METRIC, NO_SAMPLES
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import ActionStatus, Desired, ScaleAction, ScalingState

SHOWN_MAX = 20
SEEN_MAX = 3000
STRONGER_GUARDS = frozenset({"override", "bounds", "missing_data", "revoked"})
"""Guards whose answer waits for no cooldown and no rate limit."""

ENDS = {EntryKind.DEFERRED, EntryKind.FAILED}
"""Lines of the log that only an open action may get."""

Writer = Literal["app", "nobody", "person"]


@dataclass(slots=True)
class Safety:
    """Collects what was broken; ``broken`` holds the first few, ``count`` all."""

    resource: Resource
    timing: ActionTiming
    count: int = 0
    broken: list[str] = field(default_factory=list)
    writer: Writer = "app"
    """Who gave the plan the capacity that it has: "nobody", where the app had lost the order."""
    _unattended: dict[int, datetime] = field(default_factory=dict)
    """Capacities that lost orders may still bring, and until when."""
    _ordered: set[int] = field(default_factory=set)
    """What was ordered since the last confirmation."""
    _before: Desired | None = None
    _changed: Desired | None = None
    """The last change that was confirmed, as it was then."""
    _held_until: datetime | None = None
    _seen: deque[tuple[datetime, int]] = field(default_factory=lambda: deque(maxlen=SEEN_MAX))
    """What the plan really had, as long as a request may be under way."""

    # --- what really happens to the plan ---

    def set_by_hand(self, capacity: int, now: datetime) -> None:
        self.writer = "person"
        self._seen.append((now, capacity))

    def unattended(self, capacity: int, until: datetime) -> None:
        """An order that may still take effect, while nobody waits for it."""
        self._unattended[capacity] = until

    def minute(self, capacity: int, now: datetime, *, changed: bool) -> None:
        """Capacity in bounds, unless a person wants it otherwise."""
        self._seen.append((now, capacity))
        if changed:
            lost = capacity in self._unattended and now <= self._unattended[capacity]
            self.writer = "nobody" if lost else "app"
        if self.writer != "person":
            self._bounds("capacity", capacity, now)

    # --- decisions ---

    def decision(self, decision: Decision, state: ScalingState) -> None:
        """What may be decided, by the rules that guards keep."""
        if not decision.applies or decision.desired is None or decision.current is None:
            return
        self._bounds("decided", decision.desired, decision.time)
        if decision.desired < decision.current <= self.resource.limits.maximum:
            for name in self.resource.metrics.keys() - {self.resource.throughput.counted_metric}:
                self._seen_lately(name, decision, state)
        self._asked_once(decision)
        self._consumer_works(decision, state)
        if not STRONGER_GUARDS & set(decision.limited_by):
            self._cooldown(decision)
            self._rate_limits(decision, state)
        if not self.may_act(state, decision.time):
            self._break(decision.time, f"decided {decision.desired} while paused")

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

    def _asked_once(self, decision: Decision) -> None:
        """No order twice while it is under way, none so soon after a refusal."""
        before = self._before
        if before is None:
            return
        if before.pending and decision.desired == before.target:
            self._break(decision.time, f"decided {decision.desired} again, beside {before.epoch}")
        held = self._held_until
        if before.status is ActionStatus.FAILED and held is not None and decision.time < held:
            self._break(decision.time, f"decided {decision.desired} within the hold to {held}")

    def _consumer_works(self, decision: Decision, state: ScalingState) -> None:
        """While the consumer's breaker is known to be open, nothing scales out on its backlog."""
        name = self.resource.guards.breaker_metric
        if name is None or not _out(decision) or STRONGER_GUARDS & set(decision.limited_by):
            return
        history = state.histories.get(name)
        if history is None or not history.samples or history.samples[-1].value <= 0:
            return
        patience = timedelta(seconds=self.resource.guards.missing_for(name).after_seconds)
        if decision.time - history.samples[-1].time <= patience:
            self._break(decision.time, f"scaled out to {decision.desired} with {name} open")

    def _cooldown(self, decision: Decision) -> None:
        """A rule that does not pace itself waits after each change, as its direction asks."""
        changed, out = self._changed, _out(decision)
        if changed is None or changed.changed_at is None or decision.desired == decision.current:
            return
        by_hand = changed.sent_at is None
        if decision.candidates[0].paced and (out or not by_hand):
            return
        wait = self.resource.cooldown
        if out and wait.scale_out_pierces and changed.target < changed.previous:
            return
        seconds = wait.scale_out_seconds if out else wait.scale_in_seconds
        until = changed.changed_at + timedelta(seconds=seconds)
        if decision.time <= until:
            self._break(decision.time, f"decided {decision.desired} in the cooldown until {until}")

    def _rate_limits(self, decision: Decision, state: ScalingState) -> None:
        """No faster than the limits allow, counted from any capacity that there was in the period,
        or that was known last before it."""
        assert decision.desired is not None
        known = state.histories.get(CAPACITY_METRIC, NO_SAMPLES).samples
        for limit in self.resource.guards.rate_limits:
            if (limit.direction == "out") is not _out(decision):
                continue
            start = decision.time - timedelta(seconds=limit.period_seconds)
            before = [int(sample.value) for sample in known if sample.time <= start][-1:]
            had = [*before, self._capacity, *[c for time, c in self._seen if time >= start]]
            share = math.ceil((limit.percent or 0) / 100 * max(had))
            size = share if limit.instances is None else limit.instances
            if not min(had) - size <= decision.desired <= max(had) + size:
                what = f"decided {decision.desired}, more than {size} from {min(had)}-{max(had)}"
                self._break(decision.time, what)

    # --- orders ---

    def order(self, action: ScaleAction, capacity: int, state: ScalingState, now: datetime) -> None:
        """Only what the state wants now reaches the plan: one writer, fenced by the epoch."""
        desired = state.desired
        self._ordered.add(capacity)
        self._bounds("ordered", capacity, now)
        if desired is None or (action.epoch, capacity) != (desired.epoch, desired.target):
            self._break(now, f"epoch {action.epoch} was carried out, which is not the state's")
            return
        if not desired.pending:
            self._break(now, f"epoch {action.epoch} was carried out after it was {desired.status}")
        if not self.may_act(state, now):
            self._break(now, f"epoch {action.epoch} was carried out while paused")
        if self._persons(self._capacity, desired):
            self._break(now, f"epoch {action.epoch} overwrites {self._capacity}, set by hand")

    @property
    def _capacity(self) -> int:
        """What the plan had when it was looked at last."""
        return self._seen[-1][1] if self._seen else 0

    def _persons(self, capacity: int, desired: Desired) -> bool:
        """Whether a person's change stands that the app can tell from its own and must respect."""
        respected = self.resource.on_manual_change is ManualChange.ADOPT
        return respected and self.writer == "person" and capacity not in _explained(desired)

    def may_act(self, state: ScalingState, now: datetime) -> bool:
        override = state.override
        if (
            override is None
            or override.mode is None
            or (override.expires_at and now >= override.expires_at)
        ):
            return self.resource.mode is Mode.ACTIVE
        return override.mode is Mode.ACTIVE

    # --- the life of an action ---

    def changed(
        self, before: Desired | None, after: Desired, now: datetime, kinds: AbstractSet[EntryKind]
    ) -> None:
        """From one desired state to the next, with what the log says of it."""
        self._before = before
        self._epochs(before, after, now)
        if EntryKind.MANUAL_CHANGE in kinds:
            self._manual(now)
        confirmed = ActionStatus.CONFIRMED
        if before is not None and (before.epoch, before.status) == (after.epoch, confirmed):
            if (after.status is not confirmed and EntryKind.REOPENED not in kinds) or kinds & ENDS:
                self._break(now, f"epoch {after.epoch} is {after.status} after its confirmation")
        elif after.status is confirmed:
            self._confirmed(after, now, by_hand=EntryKind.MANUAL_CHANGE in kinds)
        self._waits(after, now, kinds)

    def _manual(self, now: datetime) -> None:
        """A person made it: neither an order that somebody waits for, nor one of this action's."""
        own = self._capacity in self._ordered and self.writer == "nobody"
        if own or self.writer == "app":
            self._break(now, f"took its own change to {self._capacity} for one made by hand")
        self._ordered.clear()

    def _epochs(self, before: Desired | None, after: Desired, now: datetime) -> None:
        """Epochs grow by one, and an epoch keeps its target: a decision is a new epoch."""
        epoch = before.epoch if before else 0
        same = before is not None and (after.epoch, after.target) == (epoch, before.target)
        if not same and after.epoch != epoch + 1:
            self._break(now, f"epoch {after.epoch} to {after.target} came after epoch {epoch}")
        if not same or before is None or before.status is ActionStatus.CONFIRMED:
            return
        if after.requested_at != before.requested_at:
            self._break(now, f"epoch {epoch} was decided twice")

    def _confirmed(self, after: Desired, now: datetime, *, by_hand: bool) -> None:
        """A confirmation is true: since the request the plan has had that capacity."""
        self._changed = after
        self._ordered.clear()
        had = {capacity for time, capacity in self._seen if time >= after.requested_at}
        if after.target not in (*had, self._capacity) and not by_hand:
            self._break(now, f"epoch {after.epoch} was confirmed, but {after.target} never there")
        at = after.changed_at
        if at is None or not after.requested_at <= at <= now:
            self._break(now, f"epoch {after.epoch} was confirmed at {at}")

    def _waits(self, after: Desired, now: datetime, kinds: AbstractSet[EntryKind]) -> None:
        """A try that was put off or refused is followed by a wait."""
        waits = {
            EntryKind.DEFERRED: self.timing.retry_seconds,
            EntryKind.FAILED: self.timing.failure_hold_seconds,
        }
        for kind in waits.keys() & kinds:
            least = now + timedelta(seconds=waits[kind])
            if after.retry_at is None or after.retry_at < least:
                self._break(now, f"epoch {after.epoch} is {kind} until {after.retry_at}")
            if kind is EntryKind.FAILED:
                self._held_until = least

    def reconciled(
        self, before: Desired, after: Desired, capacity: int, now: datetime, active: bool
    ) -> None:
        """Once the reconciler has looked, nothing is left as it should not be."""
        late = now - before.requested_at > timedelta(seconds=self.timing.deadline_seconds)
        if late and before.pending and after.pending and after.epoch == before.epoch:
            self._break(now, f"epoch {after.epoch} is pending since {after.requested_at}")
        if capacity == before.target and after.status is not ActionStatus.CONFIRMED:
            self._break(now, f"epoch {after.epoch} is {after.status}, with {capacity} there")
        if self._persons(capacity, before) and after.target != capacity:
            self._break(now, f"{capacity} was set by hand, and epoch {after.epoch} goes on")
        if after is before and active:
            self._sent_again(before, capacity, now)
        elif (after.epoch, after.sent_at) != (before.epoch, before.sent_at):
            self._not_too_soon(before, after, now)

    def _due_at(self, desired: Desired) -> datetime:
        if desired.retry_at is not None:
            return desired.retry_at
        sent_at = desired.sent_at or desired.requested_at
        return sent_at + timedelta(seconds=self.timing.resend_seconds)

    def _sent_again(self, desired: Desired, capacity: int, now: datetime) -> None:
        if desired.pending and capacity != desired.target and now >= self._due_at(desired):
            self._break(
                now, f"epoch {desired.epoch} is not sent again, due {self._due_at(desired)}"
            )

    def _not_too_soon(self, before: Desired, after: Desired, now: datetime) -> None:
        if after.epoch == before.epoch and now < self._due_at(before):
            self._break(now, f"epoch {before.epoch} was sent again before {self._due_at(before)}")

    # --- what broke ---

    def _bounds(self, what: str, capacity: int, now: datetime) -> None:
        limits = self.resource.limits
        if not limits.minimum <= capacity <= limits.maximum:
            self._break(now, f"{what} {capacity}, outside {limits.minimum} to {limits.maximum}")

    def _break(self, now: datetime, what: str) -> None:
        self.count += 1
        if len(self.broken) < SHOWN_MAX:
            self.broken.append(f"{now:%Y-%m-%d %H:%M} {what}")


def _out(decision: Decision) -> bool:
    return (decision.desired or 0) > (decision.current or 0)


def _explained(desired: Desired) -> tuple[int, ...]:
    """The capacities that the app's own orders may have led to."""
    if desired.status is ActionStatus.CONFIRMED:
        return (desired.target,)
    return (desired.previous, desired.target, *desired.superseded)
