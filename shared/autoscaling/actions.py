"""The life of a desired capacity: requested, then confirmed, deferred or failed. All pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shared.autoscaling.deciding.decide import Decision, EntryKind, LogEntry, effective_mode
from shared.autoscaling.deciding.samples import FUTURE_TOLERANCE_SECONDS
from shared.autoscaling.declaring import ManualChange, Mode
from shared.autoscaling.measurements import MetricValue, Window, span, until
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import ActionStatus, Desired, ScaleAction, ScalingState

RETRY_DOUBLINGS_MAX = 4
"""Waits between tries double up to 16 times the first one."""


@dataclass(frozen=True, slots=True)
class ActionTiming:
    """How patient to be with an action that is not confirmed."""

    resend_seconds: float
    retry_seconds: float
    failure_hold_seconds: float
    deadline_seconds: float


def request(decision: Decision, previous: Desired | None) -> Desired:
    """The decision as the desired state: the next epoch, sent now."""
    assert decision.desired is not None
    assert decision.current is not None
    return Desired(
        target=decision.desired,
        epoch=(previous.epoch if previous else 0) + 1,
        reason=decision.reason,
        requested_at=decision.time,
        previous=decision.current,
        superseded=_superseded(previous),
        sent_at=decision.time,
        changed_at=previous.changed_at if previous else None,
        changed_out=previous.changed_out if previous else None,
        changed_by_hand=previous is not None and previous.changed_by_hand,
    )


def _superseded(previous: Desired | None) -> tuple[int, ...]:
    """Orders that may still take effect, though nobody wants them any more."""
    if previous is None or previous.status is ActionStatus.CONFIRMED:
        return ()
    earlier = (target for target in previous.superseded if target != previous.target)
    return (*earlier, previous.target)


def action_of(resource_name: str, desired: Desired) -> ScaleAction:
    return ScaleAction(
        resource_name, desired.target, desired.epoch, desired.reason, desired.requested_at
    )


def confirm(desired: Desired, now: datetime) -> Desired:
    """The capacity is what was asked for; cooldown runs from here."""
    return replace(
        desired,
        status=ActionStatus.CONFIRMED,
        changed_at=now,
        changed_out=desired.target > desired.previous,
        changed_by_hand=desired.sent_at is None,  # what was adopted was never sent
        retry_at=None,
        last_error="",
    )


def defer(
    desired: Desired,
    now: datetime,
    error: str,
    timing: ActionTiming,
    retry_after_seconds: float | None = None,
) -> Desired:
    """Not now: the desired state stands, the reconciler sends it again later."""
    wait_seconds = timing.retry_seconds * 2 ** min(desired.attempts, RETRY_DOUBLINGS_MAX)
    if retry_after_seconds is not None:
        wait_seconds = max(retry_after_seconds, timing.retry_seconds)
    return replace(
        desired,
        retry_at=now + timedelta(seconds=wait_seconds),
        attempts=desired.attempts + 1,
        last_error=error,
    )


def fail(desired: Desired, now: datetime, error: str, timing: ActionTiming) -> Desired:
    """Given up: the policy may ask again after a short hold."""
    return replace(
        desired,
        status=ActionStatus.FAILED,
        retry_at=now + timedelta(seconds=timing.failure_hold_seconds),
        attempts=desired.attempts + 1,
        last_error=error,
    )


def adopt(desired: Desired, actual: int, now: datetime) -> Desired:
    """What a person set is the desired capacity from now on; cooldown runs from here."""
    return Desired(
        target=actual,
        epoch=desired.epoch + 1,
        reason=f"capacity was changed by hand from {_believed(desired)} to {actual}: adopted",
        requested_at=now,
        previous=_believed(desired),
        status=ActionStatus.CONFIRMED,
        changed_at=now,
        changed_out=actual > _believed(desired),
        changed_by_hand=True,
    )


def enforce(desired: Desired, actual: int, now: datetime) -> Desired:
    """What a person set is set back, as a new epoch."""
    wanted = _believed(desired)
    return Desired(
        target=wanted,
        epoch=desired.epoch + 1,
        reason=f"capacity was changed by hand from {wanted} to {actual}: set back to {wanted}",
        requested_at=now,
        previous=actual,
        sent_at=now,
        changed_at=desired.changed_at,
        changed_out=desired.changed_out,
        changed_by_hand=desired.changed_by_hand,
    )


def _believed(desired: Desired) -> int:
    """The capacity that stands as far as this state knows."""
    return desired.target if desired.status is ActionStatus.CONFIRMED else desired.previous


@dataclass(frozen=True, slots=True)
class Settlement:
    """How carrying out an action ended, and why.

    ``ordered`` is true where the target was told to change, even if nobody knows whether it did;
    ``actual`` is the capacity that a person set meanwhile, where the kind is MANUAL_CHANGE.
    """

    kind: EntryKind
    reason: str
    ordered: bool = False
    retry_after_seconds: float | None = None
    actual: int | None = None


def settle(
    desired: Desired, settlement: Settlement, now: datetime, timing: ActionTiming
) -> Desired | None:
    """The desired state after it; None where somebody else has seen the end already.

    A capacity that was read back is true, even where somebody gave the action up meanwhile.
    """
    if settlement.kind is EntryKind.CONFIRMED:
        return None if desired.status is ActionStatus.CONFIRMED else confirm(desired, now)
    if not desired.pending:
        return None
    if settlement.actual is not None:
        return adopt(desired, settlement.actual, now)
    if settlement.kind is EntryKind.DEFERRED:
        return defer(desired, now, settlement.reason, timing, settlement.retry_after_seconds)
    return fail(desired, now, settlement.reason, timing)


def reopen(desired: Desired, capacity: int, now: datetime) -> Desired:
    """The desired state after a late change to ``capacity`` by an older order of the app.

    A confirmed capacity that it may have undone is pending again. An open action goes on. Both
    remember that nobody set this capacity by hand.
    """
    if not changed_by_hand(desired, capacity):
        return desired
    known = replace(desired, superseded=(*desired.superseded, capacity))
    if desired.status is not ActionStatus.CONFIRMED:
        return known
    return replace(
        known,
        status=ActionStatus.PENDING,
        previous=capacity,
        requested_at=now,
        retry_at=now,
        last_error="a late change may have undone it",
    )


def confirm_if_observed(state: ScalingState, observed: MetricValue) -> ScalingState:
    """An action whose capacity has been seen is done, whoever failed to say so or gave it up."""
    desired = state.desired
    if desired is None or desired.status is ActionStatus.CONFIRMED:
        return state
    if observed.value != desired.target:
        return state
    if observed.time <= desired.requested_at:  # in the same second it may have been read before
        return state
    return state.with_desired(confirm(desired, observed.time))


def reason_to_ignore(
    resource: Resource, state: ScalingState, action: ScaleAction, now: datetime
) -> str | None:
    """Why an action must not be carried out any more; None where it must."""
    desired = state.desired
    if desired is None or action.epoch > desired.epoch:
        return f"epoch {action.epoch} was never decided by this state"
    if action.epoch < desired.epoch:
        return f"epoch {action.epoch} is void: epoch {desired.epoch} was decided since"
    if not desired.pending:
        return f"epoch {action.epoch} is {desired.status} already"
    if action.target != desired.target:
        return f"epoch {action.epoch} decided {desired.target}, the message says {action.target}"
    mode, mode_reason = effective_mode(resource, state, now)
    return None if mode is Mode.ACTIVE else mode_reason


def changed_by_hand(desired: Desired, actual: int) -> bool:
    """True where the capacity is one that this state cannot have led to."""
    if desired.status is ActionStatus.CONFIRMED:
        return actual != desired.target
    return actual not in (desired.previous, desired.target, *desired.superseded)


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What the reconciler changes: nothing, where all three are None."""

    desired: Desired | None = None
    action: ScaleAction | None = None
    entry: LogEntry | None = None


AS_IT_SHOULD_BE = Reconciliation()


def reconcile(
    resource: Resource, state: ScalingState, actual: int, now: datetime, timing: ActionTiming
) -> Reconciliation:
    """Bring desired and actual capacity together again; level-triggered, so never too late.

    1. Nobody decided anything yet: nothing. 2. What was asked for is there: confirmed. 3. A
    capacity that no decision explains was set by hand: adopted, or enforced as a new epoch.
    4. A pending action past its deadline has failed; one whose wait is over is sent again with
    the same epoch. Only what changes the target needs an active resource.
    """
    desired = as_of(state, now).desired
    if desired is None:
        return AS_IT_SHOULD_BE
    if actual == desired.target:
        return _reached(resource, desired, now)
    active = effective_mode(resource, state, now)[0] is Mode.ACTIVE
    if changed_by_hand(desired, actual):
        if resource.on_manual_change is ManualChange.ADOPT:
            return _manual_change(resource, adopt(desired, actual, now), now)
        if active and not desired.pending:
            return _manual_change(resource, enforce(desired, actual, now), now)
    if desired.pending:
        return _overdue(resource, desired, now, timing, active=active)
    return AS_IT_SHOULD_BE


def _reached(resource: Resource, desired: Desired, now: datetime) -> Reconciliation:
    if desired.status is ActionStatus.CONFIRMED:
        return AS_IT_SHOULD_BE
    done = confirm(desired, now)
    reason = f"capacity is {desired.target}, as epoch {desired.epoch} asked for"
    return Reconciliation(done, None, entry(resource, done, EntryKind.CONFIRMED, now, reason))


def _manual_change(resource: Resource, changed: Desired, now: datetime) -> Reconciliation:
    line = entry(resource, changed, EntryKind.MANUAL_CHANGE, now, changed.reason)
    action = action_of(resource.name, changed) if changed.pending else None
    return Reconciliation(changed, action, line)


def _overdue(
    resource: Resource, desired: Desired, now: datetime, timing: ActionTiming, *, active: bool
) -> Reconciliation:
    if now - desired.requested_at > timedelta(seconds=timing.deadline_seconds):
        error = desired.last_error or "no confirmation"
        failed = fail(desired, now, error, timing)
        reason = f"epoch {desired.epoch} given up after {timing.deadline_seconds:g} s: {error}"
        return Reconciliation(failed, None, entry(resource, failed, EntryKind.FAILED, now, reason))
    if not active or now < _resend_at(desired, timing):
        return AS_IT_SHOULD_BE
    resent = replace(desired, sent_at=now, retry_at=None)
    reason = (
        f"epoch {desired.epoch} not confirmed ({desired.last_error or 'no answer'}): sent again"
    )
    line = entry(resource, resent, EntryKind.RESENT, now, reason)
    return Reconciliation(resent, action_of(resource.name, resent), line)


def _resend_at(desired: Desired, timing: ActionTiming) -> datetime:
    if desired.retry_at is not None:
        return desired.retry_at
    return (desired.sent_at or desired.requested_at) + timedelta(seconds=timing.resend_seconds)


def entry(
    resource: Resource, desired: Desired, kind: EntryKind, now: datetime, reason: str
) -> LogEntry:
    """A line of the decision log about an action."""
    return LogEntry(
        resource_name=resource.name,
        time=now,
        kind=kind,
        entry_id=f"{kind}-{desired.epoch}-{desired.attempts}",
        reason=reason,
        current=desired.previous,
        desired=desired.target,
        epoch=desired.epoch,
    )


def as_of(state: ScalingState, now: datetime) -> ScalingState:
    """The state without what lies further in the future than the clocks of two services differ.

    1. Samples and wishes of the future are dropped. 2. What was desired happened now at the
    latest, so that waits begin to run. 3. An order of the future is due to be sent again, for
    nobody can say how long ago that was done.
    """
    latest = now + span(FUTURE_TOLERANCE_SECONDS)
    for name, history in state.histories.items():
        if history.samples and history.samples[-1].time > latest:
            state = state.with_history(name, Window(until(history.samples, latest)))
    wishes, desired = state.wishes.samples, state.desired
    if wishes and wishes[-1].time > now:
        state = replace(state, wishes=Window(until(wishes, now)))
    if desired is not None and _is_ahead(desired, latest):
        state = state.with_desired(_happened(desired, now))
    return state


def _is_ahead(desired: Desired, latest: datetime) -> bool:
    sent_at, changed_at = desired.sent_at, desired.changed_at
    if desired.requested_at > latest or (sent_at is not None and sent_at > latest):
        return True
    return changed_at is not None and changed_at > latest


def _happened(desired: Desired, now: datetime) -> Desired:
    repeat_at = now if desired.pending else desired.retry_at and min(desired.retry_at, now)
    return replace(
        desired,
        requested_at=min(desired.requested_at, now),
        sent_at=desired.sent_at and min(desired.sent_at, now),
        changed_at=desired.changed_at and min(desired.changed_at, now),
        retry_at=repeat_at,
    )
