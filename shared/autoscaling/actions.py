"""The life of a desired capacity: requested, then confirmed, deferred or failed. All pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shared.autoscaling.decide import effective_mode
from shared.autoscaling.model import (
    ActionStatus,
    Decision,
    Desired,
    EntryKind,
    LogEntry,
    ManualChange,
    MetricValue,
    Mode,
    Resource,
    ScaleAction,
    ScalingState,
)

RETRY_DOUBLINGS_MAX = 4
"""Waits between tries double up to 16 times the first one."""


@dataclass(frozen=True, slots=True)
class ActionTiming:
    """How patient to be with an action that is not confirmed."""

    resend_seconds: float = 60
    retry_seconds: float = 15
    failure_hold_seconds: float = 60
    deadline_seconds: float = 600


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
        superseded_target=previous.target if previous and previous.pending else None,
        sent_at=decision.time,
        changed_at=previous.changed_at if previous else None,
    )


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
    """Not now: the desired state stands, the reconciler sends it again after a while."""
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
    """Given up: the rules may ask again after a short hold."""
    return replace(
        desired,
        status=ActionStatus.FAILED,
        retry_at=now + timedelta(seconds=timing.failure_hold_seconds),
        attempts=desired.attempts + 1,
        last_error=error,
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """How carrying out an action ended: confirmed, deferred or failed, and why.

    ``ordered`` is true where the target was told to change, even if nobody knows whether it did.
    """

    kind: EntryKind
    reason: str
    ordered: bool = False
    retry_after_seconds: float | None = None


def settle(desired: Desired, outcome: Outcome, now: datetime, timing: ActionTiming) -> Desired:
    if outcome.kind is EntryKind.CONFIRMED:
        return confirm(desired, now)
    if outcome.kind is EntryKind.DEFERRED:
        return defer(desired, now, outcome.reason, timing, outcome.retry_after_seconds)
    return fail(desired, now, outcome.reason, timing)


def reopen(desired: Desired, capacity: int, now: datetime) -> Desired:
    """A confirmed capacity that a late change to ``capacity`` may have undone is pending again."""
    if desired.status is not ActionStatus.CONFIRMED or desired.target == capacity:
        return desired
    return replace(
        desired,
        status=ActionStatus.PENDING,
        previous=capacity,
        requested_at=now,
        retry_at=now,
        last_error="a late change may have undone it",
    )


def confirm_if_observed(state: ScalingState, observed: MetricValue) -> ScalingState:
    """A pending action whose capacity has been seen is done, whoever failed to say so."""
    desired = state.desired
    if desired is None or not desired.pending or observed.value != desired.target:
        return state
    if observed.time < desired.requested_at:
        return state
    return replace(state, desired=confirm(desired, observed.time))


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


def changed_by_hand(resource: Resource, desired: Desired, actual: int) -> bool:
    """True where somebody set another capacity since the decision and is to be respected."""
    if resource.on_manual_change is ManualChange.ENFORCE:
        return False
    return actual not in (desired.previous, desired.target, desired.superseded_target)


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What the reconciler changes: nothing, where all three are None."""

    desired: Desired | None = None
    action: ScaleAction | None = None
    entry: LogEntry | None = None


def reconcile(
    resource: Resource, state: ScalingState, actual: int, now: datetime, timing: ActionTiming
) -> Reconciliation:
    """Bring desired and actual capacity together again; level-triggered, so never too late.

    1. Nobody decided anything yet, or a person paused it: nothing. 2. A pending action that the
    target has reached is confirmed; one past its deadline has failed; one whose wait is over is
    sent again, with the same epoch. 3. A confirmed capacity that is different now was changed by
    hand: adopted, or enforced as a new epoch.
    """
    desired = state.desired
    if desired is None or effective_mode(resource, state, now)[0] is not Mode.ACTIVE:
        return Reconciliation()
    if desired.pending:
        return _reconcile_pending(resource, desired, actual, now, timing)
    if desired.status is ActionStatus.CONFIRMED and actual != desired.target:
        return _reconcile_manual_change(resource, desired, actual, now)
    return Reconciliation()


def _reconcile_pending(
    resource: Resource, desired: Desired, actual: int, now: datetime, timing: ActionTiming
) -> Reconciliation:
    if actual == desired.target:
        done = confirm(desired, now)
        reason = f"capacity is {actual}, as epoch {desired.epoch} asked for"
        return Reconciliation(done, None, entry(resource, done, EntryKind.CONFIRMED, now, reason))
    if now - desired.requested_at > timedelta(seconds=timing.deadline_seconds):
        error = desired.last_error or "no confirmation"
        failed = fail(desired, now, error, timing)
        reason = f"epoch {desired.epoch} given up after {timing.deadline_seconds:g} s: {error}"
        return Reconciliation(failed, None, entry(resource, failed, EntryKind.FAILED, now, reason))
    if now < _resend_at(desired, timing):
        return Reconciliation()
    resent = replace(desired, sent_at=now, retry_at=None)
    reason = (
        f"epoch {desired.epoch} not confirmed ({desired.last_error or 'no answer'}): sent again"
    )
    return Reconciliation(
        resent,
        action_of(resource.name, resent),
        entry(resource, resent, EntryKind.RESENT, now, reason),
    )


def _resend_at(desired: Desired, timing: ActionTiming) -> datetime:
    if desired.retry_at is not None:
        return desired.retry_at
    return (desired.sent_at or desired.requested_at) + timedelta(seconds=timing.resend_seconds)


def _reconcile_manual_change(
    resource: Resource, desired: Desired, actual: int, now: datetime
) -> Reconciliation:
    enforce = resource.on_manual_change is ManualChange.ENFORCE
    wanted = desired.target if enforce else actual
    verb = f"set back to {wanted}" if enforce else "adopted"
    reason = f"capacity was changed by hand from {desired.target} to {actual}: {verb}"
    changed = Desired(
        target=wanted,
        epoch=desired.epoch + 1,
        reason=reason,
        requested_at=now,
        previous=actual,
        status=ActionStatus.PENDING if enforce else ActionStatus.CONFIRMED,
        sent_at=now if enforce else None,
        changed_at=desired.changed_at if enforce else now,
    )
    return Reconciliation(
        changed,
        action_of(resource.name, changed) if enforce else None,
        entry(resource, changed, EntryKind.MANUAL_CHANGE, now, reason),
    )


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
