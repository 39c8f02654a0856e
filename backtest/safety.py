"""Safety rules that must hold under any faults, checked at every decision, action and minute.

The checks do not use the code that they check. They know the plan's real capacity. They keep their
own record of when the capacity last changed, how long to hold after a failure, and which capacity
an operator set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from shared.autoscaling.acting.actions import ActionTiming
from shared.autoscaling.deciding.decide import Decision, EntryKind
from shared.autoscaling.declaring import ManualChange, Mode
from shared.autoscaling.policies.recommendations import instances
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import ActionStatus, Desired, ScaleAction, ScalingState
from shared.values.measurements import CAPACITY_METRIC, NO_SAMPLES

SHOWN_MAX = 20
SEEN_MAX = 3000
STRONGER_GUARDS = frozenset({"override", "bounds", "revoked"})
"""Guards that apply without waiting for a cooldown or a rate limit."""

PENDING_ONLY = {EntryKind.DEFERRED, EntryKind.FAILED}
"""Kinds of log entries that may be written only about a pending action."""

Writer = Literal["app", "abandoned request", "operator"]


@dataclass(slots=True)
class Safety:
    """Collects violations. ``broken`` holds the first ones. ``count`` is the total number."""

    resource: Resource
    timing: ActionTiming
    count: int = 0
    broken: list[str] = field(default_factory=list)
    writer: Writer = "app"
    """What set the plan's current capacity. An "abandoned request" took effect when no scaler was
    waiting for its result any more."""
    _abandoned: dict[int, datetime] = field(default_factory=dict)
    """The capacities that abandoned requests may still set, each with the time until which this may
    happen."""
    _requested: set[int] = field(default_factory=set)
    """The capacities that were requested since the last confirmation."""
    _before: Desired | None = None
    _last_change: Desired | None = None
    """The last confirmed change, as it was at its confirmation."""
    _held_until: datetime | None = None
    _seen: deque[tuple[datetime, int]] = field(default_factory=lambda: deque(maxlen=SEEN_MAX))
    """The plan's recent real capacities, each with its time."""

    # --- real changes of the plan ---

    def set_by_hand(self, capacity: int, now: datetime) -> None:
        self.writer = "operator"
        self._seen.append((now, capacity))

    def abandoned(self, capacity: int, until: datetime) -> None:
        """Record a request that may take effect until ``until``, although no scaler waits for its
        result any more."""
        self._abandoned[capacity] = until

    def minute(self, capacity: int, now: datetime, *, capacity_changed: bool) -> None:
        """Check that the capacity is in bounds, unless an operator set it."""
        self._seen.append((now, capacity))
        if capacity_changed:
            lost = capacity in self._abandoned and now <= self._abandoned[capacity]
            self.writer = "abandoned request" if lost else "app"
        if self.writer != "operator":
            self._bounds("capacity", capacity, now)

    # --- decisions ---

    def decision(self, decision: Decision, state: ScalingState) -> None:
        """Check a decision against the rules that the guards enforce."""
        if not decision.applies or decision.desired is None or decision.current is None:
            return
        self._bounds("decided", decision.desired, decision.time)
        if decision.desired < decision.current <= self.resource.limits.maximum:
            for name in self.resource.metrics.keys() - {self.resource.throughput.counted_metric}:
                self._no_scale_in_without_data(name, decision, state)
        self._decided_once(decision)
        self._consumer_works(decision, state)
        if not STRONGER_GUARDS & set(decision.limited_by):
            self._cooldown(decision)
            self._rate_limits(decision, state)
        if not self.may_act(state, decision.time):
            self._break(decision.time, f"decided {decision.desired} while paused")

    def _no_scale_in_without_data(self, name: str, decision: Decision, state: ScalingState) -> None:
        """Check that no scale-in happens while a metric is missing."""
        rule, history = self.resource.guards.missing_for(name), state.histories.get(name)
        latest = history.samples[-1].time if history and history.samples else None
        usual_lag = self.resource.source(name).usual_lag_seconds
        fresh_from = decision.time - timedelta(seconds=rule.after_seconds + usual_lag)
        if latest is None or latest < fresh_from:
            missing = (
                f"{name} has no sample"
                if latest is None
                else f"the newest sample of {name} dates from {latest}"
            )
            self._break(decision.time, f"scaled in to {decision.desired}, but {missing}")

    def _decided_once(self, decision: Decision) -> None:
        """Check that a pending action is not decided again, and that no action is decided while the
        hold after a failed action lasts."""
        before = self._before
        if before is None:
            return
        if before.pending and decision.desired == before.target:
            self._break(
                decision.time,
                f"decided {decision.desired} again while epoch {before.epoch} is pending",
            )
        held = self._held_until
        if before.status is ActionStatus.FAILED and held is not None and decision.time < held:
            self._break(decision.time, f"decided {decision.desired} during the hold until {held}")

    def _consumer_works(self, decision: Decision, state: ScalingState) -> None:
        """Check that there is no scale-out while the consumer's circuit breaker is open."""
        name = self.resource.guards.breaker_metric
        if name is None or not _out(decision) or STRONGER_GUARDS & set(decision.limited_by):
            return
        history = state.histories.get(name)
        if history is None or not history.samples or history.samples[-1].value <= 0:
            return
        age_max = timedelta(seconds=self.resource.guards.missing_for(name).after_seconds)
        if decision.time - history.samples[-1].time <= age_max:
            self._break(decision.time, f"scaled out to {decision.desired} while {name} is open")

    def _cooldown(self, decision: Decision) -> None:
        """Check that the cooldown of the decision's direction has passed since the last change.

        A paced policy is exempt, because it already takes recent changes into account. But its
        scale-in must wait after a manual change.
        """
        last, out = self._last_change, _out(decision)
        if last is None or last.changed_at is None or decision.desired == decision.current:
            return
        by_hand = last.sent_at is None
        if decision.candidates[0].paced and (out or not by_hand):
            return
        wait = self.resource.cooldown
        if out and wait.scale_out_pierces and last.changed_out is False:
            return
        seconds = wait.scale_out_seconds if out else wait.scale_in_seconds
        until = last.changed_at + timedelta(seconds=seconds)
        if decision.time <= until:
            self._break(
                decision.time, f"decided {decision.desired} during the cooldown until {until}"
            )

    def _rate_limits(self, decision: Decision, state: ScalingState) -> None:
        """Check the rate limits against every capacity that the plan had in the period, and the
        last capacity sample before it."""
        assert decision.desired is not None
        capacities = state.histories.get(CAPACITY_METRIC, NO_SAMPLES).samples
        for limit in self.resource.guards.rate_limits:
            if (limit.direction == "out") is not _out(decision):
                continue
            start = decision.time - timedelta(seconds=limit.period_seconds)
            before = [int(sample.value) for sample in capacities if sample.time <= start][-1:]
            had = [*before, self._capacity, *[c for time, c in self._seen if time >= start]]
            share = instances((limit.percent or 0) * max(had) / 100)
            size = share if limit.instances is None else limit.instances
            if not min(had) - size <= decision.desired <= max(had) + size:
                problem = (
                    f"decided {decision.desired}, which differs by more than {size} from the "
                    f"capacities in the period ({min(had)} to {max(had)})"
                )
                self._break(decision.time, problem)

    # --- requests to the plan ---

    def requested(
        self, action: ScaleAction, capacity: int, state: ScalingState, now: datetime
    ) -> None:
        """Check that a request to change the plan belongs to the current action of the state."""
        desired = state.desired
        self._requested.add(capacity)
        self._bounds("requested", capacity, now)
        if desired is None or (action.epoch, capacity) != (desired.epoch, desired.target):
            self._break(now, f"epoch {action.epoch} was carried out, but is not the current one")
            return
        if not desired.pending:
            self._break(now, f"epoch {action.epoch} was carried out after it was {desired.status}")
        if not self.may_act(state, now):
            self._break(now, f"epoch {action.epoch} was carried out while paused")
        if self._is_manual(self._capacity, desired, now):
            self._break(
                now, f"epoch {action.epoch} overwrites the manual change to {self._capacity}"
            )

    @property
    def _capacity(self) -> int:
        """The plan's latest capacity."""
        return self._seen[-1][1] if self._seen else 0

    def _is_manual(self, capacity: int, desired: Desired, now: datetime) -> bool:
        """Whether this capacity is a manual change that the app can detect and must respect."""
        respected = self.resource.on_manual_change is ManualChange.ADOPT
        ends_at = desired.requested_at + timedelta(seconds=self.timing.deadline_seconds)
        explained = _explained(desired, earlier_may_follow=now <= ends_at)
        return respected and self.writer == "operator" and capacity not in explained

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
        """Check a change of the desired state, and the log entries written with it."""
        self._before = before
        self._epochs(before, after, now)
        if EntryKind.MANUAL_CHANGE in kinds:
            self._manual(now)
        confirmed = ActionStatus.CONFIRMED
        if before is not None and (before.epoch, before.status) == (after.epoch, confirmed):
            if after.status is not confirmed and EntryKind.REOPENED not in kinds:
                self._break(now, f"epoch {after.epoch} is {after.status} without being reopened")
            elif logged := ", ".join(sorted(kinds & PENDING_ONLY)):
                self._break(
                    now, f"epoch {after.epoch} was logged as {logged} after its confirmation"
                )
        elif after.status is confirmed:
            self._confirmed(after, now, by_hand=EntryKind.MANUAL_CHANGE in kinds)
        self._waits(after, now, kinds)

    def _manual(self, now: datetime) -> None:
        """Check that a reported manual change was not made by an action of the app."""
        own = self._capacity in self._requested and self.writer == "abandoned request"
        if own or self.writer == "app":
            self._break(now, f"mistook its own change to {self._capacity} for a manual change")
        self._requested.clear()

    def _epochs(self, before: Desired | None, after: Desired, now: datetime) -> None:
        """Check that every decision has a new epoch: an epoch never changes its target, and the
        next epoch is higher by one."""
        epoch = before.epoch if before else 0
        asked = None if before is None else _requested(before)
        same = before is not None and (after.epoch, _requested(after)) == (epoch, asked)
        if not same and after.epoch != epoch + 1:
            self._break(now, f"epoch {after.epoch} (target {after.target}) follows epoch {epoch}")
        if not same or before is None or before.status is ActionStatus.CONFIRMED:
            return
        if after.requested_at != before.requested_at:
            self._break(now, f"epoch {epoch} was decided twice")

    def _confirmed(self, after: Desired, now: datetime, *, by_hand: bool) -> None:
        """Check that a confirmed capacity was really reached after the request."""
        self._last_change = after
        self._requested.clear()
        had = {capacity for time, capacity in self._seen if time >= after.requested_at}
        if after.target not in (*had, self._capacity) and not by_hand:
            self._break(now, f"epoch {after.epoch} was confirmed, but never reached {after.target}")
        at = after.changed_at
        if at is None or not after.requested_at <= at <= now:
            self._break(
                now,
                f"epoch {after.epoch} has the confirmation time {at}, which is not between its "
                f"request ({after.requested_at}) and now",
            )

    def _waits(self, after: Desired, now: datetime, kinds: AbstractSet[EntryKind]) -> None:
        """Check that a deferred or refused attempt is followed by a wait."""
        waits = {
            EntryKind.DEFERRED: self.timing.retry_seconds,
            EntryKind.FAILED: self.timing.failure_hold_seconds,
        }
        for kind in waits.keys() & kinds:
            least = now + timedelta(seconds=waits[kind])
            if after.retry_at is None or after.retry_at < least:
                self._break(
                    now,
                    f"epoch {after.epoch} ({kind}) may be retried at {after.retry_at}, but must "
                    f"wait until {least}",
                )
            if kind is EntryKind.FAILED:
                self._held_until = least

    def reconciled(
        self, before: Desired, after: Desired, capacity: int, now: datetime, active: bool
    ) -> None:
        """Check that the reconciler has repaired everything that it must repair."""
        since = max(before.requested_at, before.progressed_at or before.requested_at)
        late = now - since > timedelta(seconds=self.timing.deadline_seconds)
        still = (after.epoch, after.reached) == (before.epoch, before.reached)
        if late and before.pending and after.pending and still:
            self._break(
                now,
                f"epoch {after.epoch} is past its deadline, but pending since {after.requested_at}",
            )
        settled = before.target == capacity and not (before.pending and before.superseded)
        if settled and after.status is not ActionStatus.CONFIRMED:
            self._break(now, f"epoch {after.epoch} is {after.status}, but the plan has {capacity}")
        if self._is_manual(capacity, before, now) and after.target != capacity:
            self._break(now, f"epoch {after.epoch} ignores the manual change to {capacity}")
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
                now, f"epoch {desired.epoch} was due at {self._due_at(desired)}, but not resent"
            )

    def _not_too_soon(self, before: Desired, after: Desired, now: datetime) -> None:
        if after.epoch == before.epoch and now < self._due_at(before):
            self._break(now, f"epoch {before.epoch} was resent before {self._due_at(before)}")

    # --- violations ---

    def _bounds(self, subject: str, capacity: int, now: datetime) -> None:
        limits = self.resource.limits
        if not limits.minimum <= capacity <= limits.maximum:
            bounds = f"{limits.minimum} to {limits.maximum}"
            self._break(now, f"{subject} {capacity}, which is outside {bounds}")

    def _break(self, now: datetime, problem: str) -> None:
        self.count += 1
        if len(self.broken) < SHOWN_MAX:
            self.broken.append(f"{now:%Y-%m-%d %H:%M} {problem}")


def _out(decision: Decision) -> bool:
    return (decision.desired or 0) > (decision.current or 0)


def _requested(desired: Desired) -> int:
    """The capacity that the epoch asked for, also if the app gave up the rest of it."""
    return desired.target if desired.given_up is None else desired.given_up


def _explained(desired: Desired, *, earlier_may_follow: bool) -> Collection[int]:
    """The capacities that the app's own actions may have set: while one of them may still take
    effect, all that lie on the way."""
    if desired.status is ActionStatus.CONFIRMED:
        own = [desired.target, _requested(desired)]
        if earlier_may_follow and desired.superseded:
            return range(min(*own, *desired.superseded), max(*own, *desired.superseded) + 1)
    else:
        last = desired.previous if desired.reached is None else desired.reached
        own = [last, desired.target, *desired.superseded]
    is_open = desired.pending or desired.given_up is not None
    return range(min(own), max(own) + 1) if is_open else own
