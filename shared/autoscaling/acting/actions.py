"""The life cycle of a scale action: requested, then confirmed, deferred or failed. Pure.

A plan may get from the previous capacity to the target in pieces. Each reading in between is
progress, and the action remains pending. If there is no progress until the deadline, the action is
confirmed in part: at the capacity that the plan has reached.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from shared.autoscaling.deciding.decide import (
    Decision,
    EntryKind,
    LogEntry,
    effective_mode,
    within_plan,
)
from shared.autoscaling.deciding.guards import recent_changes
from shared.autoscaling.deciding.samples import FUTURE_TOLERANCE_SECONDS, samples_of
from shared.autoscaling.declaring import Limits, ManualChange, Mode
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import ActionStatus, Desired, ScaleAction, ScalingState
from shared.values.measurements import CAPACITY_METRIC, MetricValue, Window, span, until

RETRY_DOUBLINGS_MAX = 4
"""The wait between attempts doubles at most this many times."""
CHANGES_KEPT_MAX = 100
"""The times of at most this many changes are kept. Azure allows fewer within an hour."""


@dataclass(frozen=True, slots=True)
class ActionTiming:
    """How long to wait for an action that is not confirmed."""

    resend_seconds: float
    """The wait before an action without a result is sent again."""
    retry_seconds: float
    """The wait after the first deferral of an action."""
    failure_hold_seconds: float
    """The wait after a failure, before the same capacity can be requested again."""
    deadline_seconds: float
    """The time without progress after which the app gives up an action that is not confirmed."""


def request(decision: Decision, previous: Desired | None) -> Desired:
    """Turn a decision into the desired state: a pending action of the next epoch, sent now."""
    assert decision.desired is not None
    assert decision.current is not None
    return _requested(previous, decision.desired, decision.current, decision.reason, decision.time)


def _requested(
    known: Desired | None, target: int, current: int, reason: str, now: datetime
) -> Desired:
    """A pending action of the next epoch, which keeps the last confirmed change of ``known``."""
    return Desired(
        target=target,
        epoch=(known.epoch if known else 0) + 1,
        reason=reason,
        requested_at=now,
        previous=current,
        superseded=_superseded(known),
        sent_at=now,
        changed_at=known.changed_at if known else None,
        changed_out=known.changed_out if known else None,
        changed_by_hand=known is not None and known.changed_by_hand,
        changes=_earlier(known, now) if known else (),
    )


def _earlier(desired: Desired, requested_at: datetime) -> tuple[int, ...]:
    """The changes that were counted before the request, and so that its own is counted, too."""
    before = int(requested_at.timestamp()) - 1
    return tuple([min(each, before) for each in desired.changes])


def _superseded(known: Desired | None) -> tuple[int, ...]:
    """The targets of earlier actions that were replaced but may still take effect."""
    if known is None:
        return ()
    last = known.given_up if known.status is ActionStatus.CONFIRMED else known.target
    if last is None:
        return ()
    return (*(target for target in known.superseded if target != last), last)


def action_of(resource_name: str, desired: Desired) -> ScaleAction:
    return ScaleAction(
        resource_name, desired.target, desired.epoch, desired.reason, desired.requested_at
    )


def confirm(desired: Desired, now: datetime) -> Desired:
    """Record that the plan has the requested capacity. The cooldown starts at ``now``."""
    return replace(
        _at(desired, desired.requested, now),
        # If sent_at is None, this capacity was adopted after a manual change, not requested. An
        # adopted state is already confirmed, but reopen() may have made it pending again.
        changed_by_hand=desired.sent_at is None,
        retry_at=None,
        last_error="",
        given_up=None,
    )


def asked(desired: Desired, now: datetime) -> Desired:
    """The desired state after Azure was asked for its change, which is counted, unless that was
    counted since the request or the last progress: Azure counts each step, but no repetition."""
    moved, known = desired.progressed_at, recent_changes(desired, now)
    since = desired.requested_at if moved is None else moved + span(1)
    if known and known[-1] >= int(since.timestamp()):
        return desired
    times = (*known[1 - CHANGES_KEPT_MAX :], int(now.timestamp()))
    return replace(desired, changes=times)


def confirm_in_part(desired: Desired, actual: int, now: datetime, timing: ActionTiming) -> Desired:
    """Record that the plan has ``actual`` instances, only a part of the requested change, and that
    the app does not wait for the rest. The cooldown starts at ``now``. Nothing is requested for
    ``timing.failure_hold_seconds``."""
    return replace(
        _at(desired, actual, now),
        changed_by_hand=False,
        retry_at=now + span(timing.failure_hold_seconds),
        last_error=desired.last_error or "the plan comes no further",
        given_up=desired.requested,
    )


def _at(desired: Desired, actual: int, now: datetime) -> Desired:
    return replace(
        desired,
        target=actual,
        previous=desired.previous if desired.given_up is None else desired.capacity,
        status=ActionStatus.CONFIRMED,
        changed_at=now,
        changed_out=desired.requested > desired.previous,
    )


def is_progress(desired: Desired, actual: int) -> bool:
    """True if the pending or given-up action has brought the plan closer to its target than any
    earlier reading. The target of a replaced action is not progress, but the work of that action.
    """
    is_open = desired.pending or desired.given_up is not None
    return is_open and _is_part(desired, desired.capacity, actual)


def _is_part(desired: Desired, start: int, actual: int) -> bool:
    between = min(start, desired.requested) < actual < max(start, desired.requested)
    return between and actual not in desired.superseded


def partial_target(before: int, target: int, available: int | None, limits: Limits) -> int | None:
    """The capacity to request if only ``available`` further instances can be had; None if that
    leads nowhere or not within the limits."""
    step = before + (available or 0)
    return step if before < step < target and not outside_limits(step, limits) else None


def defer(
    desired: Desired,
    now: datetime,
    error: str,
    timing: ActionTiming,
    retry_after_seconds: float | None = None,
) -> Desired:
    """Postpone the action. It remains pending, and the reconciler sends it again later.

    The wait doubles with each further deferral, or is ``retry_after_seconds`` if the service states
    it, but at least ``timing.retry_seconds``.
    """
    wait_seconds = timing.retry_seconds * 2 ** min(desired.attempts, RETRY_DOUBLINGS_MAX)
    if retry_after_seconds is not None:
        wait_seconds = max(retry_after_seconds, timing.retry_seconds)
    return replace(
        desired,
        retry_at=now + span(wait_seconds),
        attempts=desired.attempts + 1,
        last_error=error,
    )


def fail(
    desired: Desired, now: datetime, error: str, timing: ActionTiming, *, may_follow: bool = False
) -> Desired:
    """Give up the action. Nothing is requested for ``timing.failure_hold_seconds``. ``may_follow``
    says that the plan may change nevertheless."""
    return replace(
        desired,
        status=ActionStatus.FAILED,
        retry_at=now + span(timing.failure_hold_seconds),
        attempts=desired.attempts + 1,
        last_error=error,
        given_up=desired.target if may_follow else None,
    )


def adopt(desired: Desired, actual: int, now: datetime) -> Desired:
    """Take a manually set capacity as the desired one. The cooldown starts at ``now``."""
    return Desired(
        target=actual,
        epoch=desired.epoch + 1,
        reason=f"the capacity was changed manually from {desired.capacity} to {actual}: adopted",
        requested_at=now,
        previous=desired.capacity,
        status=ActionStatus.CONFIRMED,
        changed_at=now,
        changed_out=actual > desired.capacity,
        changed_by_hand=True,
        changes=desired.changes,
    )


def enforce(desired: Desired, actual: int, now: datetime, limits: Limits) -> Desired:
    """Revert a manual change, as far as the limits allow, by an action with a new epoch. If they
    allow no change, the manual capacity is adopted."""
    believed = desired.capacity
    target = min(max(believed, limits.minimum), limits.maximum)
    if target == actual:
        return adopt(desired, actual, now)
    back = f"set back to {target}"
    if outside := outside_limits(believed, limits):
        back += f", because {outside}"
    reason = f"the capacity was changed manually from {believed} to {actual}: {back}"
    return _requested(desired, target, actual, reason, now)


@dataclass(frozen=True, slots=True)
class Settlement:
    """The outcome of carrying out an action, and the reason for this outcome."""

    kind: EntryKind | None
    """None if Azure has accepted the change, which is still under way."""
    reason: str
    change_requested: bool = False
    """True if a change of the plan was requested, even if its outcome is unknown."""
    retry_after_seconds: float | None = None
    actual: int | None = None
    """The manually set capacity. It is None unless the outcome is of the kind MANUAL_CHANGE."""
    reached: int | None = None
    """The capacity after the change, if it is not the target."""
    part: int | None = None
    """The capacity that was requested instead of the target."""


def settle(
    desired: Desired, settlement: Settlement, now: datetime, timing: ActionTiming
) -> Desired | None:
    """The desired state after the outcome; None if the action already has one. A confirmation is
    recorded even if the app has given the action up meanwhile, because the capacity was read back
    from the plan."""
    whole = desired.status is ActionStatus.CONFIRMED and desired.given_up is None
    if settlement.kind is EntryKind.CONFIRMED:
        return None if whole else confirm(desired, now)
    if not desired.pending:
        return None
    if settlement.kind is None:
        again = now + span(timing.resend_seconds)
        return replace(desired, sent_at=now, retry_at=again, last_error="")
    if settlement.actual is not None:
        return adopt(desired, settlement.actual, now)
    if settlement.kind is EntryKind.DEFERRED:
        reached = settlement.reached
        if reached is not None and is_progress(desired, reached):
            desired = replace(desired, reached=reached, progressed_at=now)
        return defer(desired, now, settlement.reason, timing, settlement.retry_after_seconds)
    return fail(desired, now, settlement.reason, timing, may_follow=_has_asked(desired))


def reopen(desired: Desired, capacity: int, now: datetime, actual: int | None = None) -> Desired:
    """The desired state after a late change: an older action of the app has set the capacity to
    ``capacity``. A plan that fills in pieces still has ``actual`` instances.

    A confirmed action becomes pending again, because the late change may have undone it.
    ``capacity`` is recorded as superseded, so that it is not mistaken for a manual change.
    """
    recorded = replace(desired, superseded=(*desired.superseded, capacity))
    if desired.status is not ActionStatus.CONFIRMED:
        return desired if capacity in (desired.target, *desired.superseded) else recorded
    if not changed_by_hand(desired, capacity):
        return desired
    return replace(
        recorded,
        status=ActionStatus.PENDING,
        previous=capacity if actual is None else actual,
        requested_at=now,
        changes=_earlier(desired, now),
        retry_at=now,
        reached=None,
        given_up=None,
        last_error="a late change by an older action may have undone this action",
    )


def confirm_if_observed(state: ScalingState, observed: MetricValue) -> ScalingState:
    """Confirm an action whose target is observed, even if it was given up or its result was
    lost."""
    desired = state.desired
    if desired is None or desired.status is ActionStatus.CONFIRMED or passes_target(desired):
        return state
    if observed.value != desired.target:
        return state
    # Times have whole seconds: a sample of the same second may be older than the request.
    if observed.time <= desired.requested_at:
        return state
    return state.with_desired(confirm(desired, observed.time))


def reason_to_ignore(
    resource: Resource, state: ScalingState, action: ScaleAction, now: datetime
) -> str | None:
    """Why the scaler must ignore an action; None if it must carry it out."""
    desired = state.desired
    if desired is None or action.epoch > desired.epoch:
        return f"the state of this resource has no decision of epoch {action.epoch}"
    if action.epoch < desired.epoch:
        return f"epoch {action.epoch} was replaced by the decision of epoch {desired.epoch}"
    if not desired.pending:
        return f"epoch {action.epoch} is already {desired.status}"
    if desired.retry_at is not None and now < desired.retry_at:  # another message was faster
        return f"epoch {action.epoch} is tried again at {desired.retry_at:%H:%M:%S} UTC"
    if action.target != desired.target:
        return (
            f"the target of epoch {action.epoch} is {desired.target}, but the message says "
            f"{action.target}"
        )
    if outside := outside_limits(action.target, resource.limits):
        return outside
    mode, mode_reason = effective_mode(resource, state, now)
    return None if mode is Mode.ACTIVE else mode_reason


def outside_limits(target: int, limits: Limits) -> str:
    """Why the running copy of the app must not set this target; empty if it may. The limits may
    have changed since it was decided, or another copy decided it."""
    if target > limits.maximum:
        return f"{target} is above the maximum of {limits.maximum}"
    if target < limits.minimum:
        return f"{target} is below the minimum of {limits.minimum}"
    return ""


def changed_by_hand(desired: Desired, actual: int) -> bool:
    """True if none of the app's own actions can have led to this capacity. One that may still take
    effect leads to any capacity on the way to its target, but not back from what was reached."""
    if desired.status is ActionStatus.CONFIRMED:
        own = [desired.target, desired.requested]
    else:
        own = [desired.capacity, desired.target, *desired.superseded]
    if desired.pending or desired.given_up is not None:
        return not min(own) <= actual <= max(own)
    return actual not in own


def passes_target(desired: Desired) -> bool:
    """True if an earlier action, which may still take effect, leads beyond the target of the
    pending one. The plan then has this capacity for a moment only, unless it is requested anew."""
    earlier = [target for target in desired.superseded if target != desired.target]
    way = (desired.capacity, *earlier)
    return desired.pending and bool(earlier) and min(way) <= desired.target <= max(way)


@dataclass(frozen=True, slots=True)
class Reconciliation:
    desired: Desired | None = None
    action: ScaleAction | None = None
    entry: LogEntry | None = None


NO_CHANGE = Reconciliation()


def reconcile(
    resource: Resource,
    state: ScalingState,
    actual: int,
    now: datetime,
    timing: ActionTiming,
    *,
    decides: bool = True,
    failure: str = "",
) -> Reconciliation:
    """Compare the desired with the actual capacity, and decide how to bring them together.

    1. If the app has not requested a capacity yet, there is nothing to do. 2. If the plan has the
    desired capacity, the action is confirmed. 3. If an action that was replaced may have led to the
    capacity, the confirmed action is reopened. 4. If no action of the app explains the capacity, it
    was set manually. It is adopted, or the desired capacity is requested again with a new epoch. 5.
    If the plan has come closer to the target of a pending action, that is progress. If the action
    was given up, it is confirmed in part. 6. A pending action without progress ends after its
    deadline: it is confirmed in part, or fails. Before, it is sent again with the same epoch after
    each wait, in active mode and within the limits. With ``decides=False``, actions are only
    confirmed, because another version of the rules is in force. ``failure`` says why the last
    change of the plan did not complete, which defers a pending action that has asked for a change.
    """
    desired, step = as_of(state, now).desired, None
    resource = within_plan(resource, state)
    active = effective_mode(resource, state, now)[0] is Mode.ACTIVE
    if desired is None:
        return NO_CHANGE
    if actual == desired.requested and not passes_target(desired):
        step = _reached(desired, now)
    elif not decides:
        return NO_CHANGE
    elif unexplained := _unexplained(resource, desired, actual, now, timing, active=active):
        step = unexplained
    elif is_progress(desired, actual):
        step = _progress(resource.limits, desired, actual, now, timing)
    elif desired.pending:
        step = _waiting(resource.limits, desired, actual, now, timing, failure, active=active)
    if step is None:
        return NO_CHANGE
    moved, kind, reason = step
    sends = active and moved.pending and kind not in (EntryKind.PROGRESS, EntryKind.DEFERRED)
    action = action_of(resource.name, moved) if sends else None
    return Reconciliation(moved, action, entry(resource, moved, kind, now, reason))


def _has_asked(desired: Desired) -> bool:
    """True if a change of the plan was requested for this action."""
    return desired.changes[-1:] >= (int(desired.requested_at.timestamp()),)


def awaits_reading(state: ScalingState) -> bool:
    """True if the plan has to be read: an action is open, or the newest reading of the capacity is
    not what the state expects."""
    desired, newest = state.desired, samples_of(state, CAPACITY_METRIC)[-1:]
    if desired is None or desired.pending or desired.given_up is not None:
        return desired is not None
    since = max(desired.requested_at, desired.changed_at or desired.requested_at)
    return any(each.time > since and each.value != desired.capacity for each in newest)


Step = tuple[Desired, EntryKind, str]
"""The state after a step of the reconciler, and the kind and the reason of its log entry."""


def _reached(desired: Desired, now: datetime) -> Step | None:
    if desired.status is ActionStatus.CONFIRMED and desired.given_up is None:
        return None
    done = confirm(desired, now)
    reason = f"the capacity is {done.target}, as requested by epoch {done.epoch}"
    return done, EntryKind.CONFIRMED, reason


def _unexplained(
    resource: Resource,
    desired: Desired,
    actual: int,
    now: datetime,
    timing: ActionTiming,
    *,
    active: bool,
) -> Step | None:
    if not changed_by_hand(desired, actual):
        return None
    if _is_late(desired, actual, now, timing):
        undone = reopen(desired, actual, now)
        return undone, EntryKind.REOPENED, f"the capacity is {actual}: {undone.last_error}"
    if resource.on_manual_change is ManualChange.ADOPT:
        changed = adopt(desired, actual, now)
    elif active and not desired.pending:
        changed = enforce(desired, actual, now, resource.limits)
    else:
        return None
    return changed, EntryKind.MANUAL_CHANGE, changed.reason


def _is_late(desired: Desired, actual: int, now: datetime, timing: ActionTiming) -> bool:
    """True if an action that the confirmed one replaced may still be under way and lead to this
    capacity."""
    way = (desired.target, *desired.superseded)
    ends_at = desired.requested_at + span(timing.deadline_seconds)
    is_confirmed = desired.status is ActionStatus.CONFIRMED
    return is_confirmed and now <= ends_at and min(way) <= actual <= max(way)


def _progress(
    limits: Limits, desired: Desired, actual: int, now: datetime, timing: ActionTiming
) -> Step:
    """Progress renews the deadline, and the wait until the action is sent again."""
    if not desired.pending:
        return _in_part(limits, desired, actual, now, timing)
    again = max(_resend_at(desired, timing), now + span(timing.resend_seconds))
    moved = replace(desired, reached=actual, progressed_at=now, retry_at=again)
    way = f"on the way from {moved.previous} to {moved.target}"
    reason = f"the capacity is {actual} {way}, as requested by epoch {moved.epoch}"
    return moved, EntryKind.PROGRESS, reason


def _in_part(
    limits: Limits, desired: Desired, actual: int, now: datetime, timing: ActionTiming
) -> Step:
    part = confirm_in_part(desired, actual, now, timing)
    if outside_limits(desired.requested, limits):  # as for a failed action
        part = replace(part, retry_at=None)
    end = ", although the app no longer waits for it"
    if desired.pending:
        end = f", and no more within {timing.deadline_seconds:g} s: {part.last_error}"
    reason = f"epoch {part.epoch} reached {actual} of {part.given_up}{end}"
    return part, EntryKind.CONFIRMED, reason


def _waiting(
    limits: Limits,
    desired: Desired,
    actual: int,
    now: datetime,
    timing: ActionTiming,
    failure: str,
    *,
    active: bool,
) -> Step | None:
    outside = outside_limits(desired.target, limits)
    if now <= desired.waiting_since + span(timing.deadline_seconds):
        if failure not in ("", desired.last_error) and _has_asked(desired):
            reason = f"epoch {desired.epoch} is not confirmed and will be tried again: {failure}"
            return defer(desired, now, failure, timing), EntryKind.DEFERRED, reason
        is_due = active and not outside and now >= _resend_at(desired, timing)
        return _sent_again(desired, actual, now) if is_due else None
    if actual == desired.target:
        return _reached(desired, now)
    if _is_part(desired, desired.previous, actual):
        return _in_part(limits, desired, actual, now, timing)
    error = outside or desired.last_error or "no confirmation arrived"
    failed = fail(desired, now, error, timing, may_follow=True)
    if outside:  # the next decision requests another capacity, which must not wait
        failed = replace(failed, retry_at=None)
    reason = f"the app gave up epoch {desired.epoch} after {timing.deadline_seconds:g} s: {error}"
    return failed, EntryKind.FAILED, reason


def _sent_again(desired: Desired, actual: int, now: datetime) -> Step:
    error = f" ({desired.last_error})" if desired.last_error else ""
    reason = f"epoch {desired.epoch} is not confirmed yet and stands at {actual}{error}: sent again"
    return replace(desired, sent_at=now, retry_at=None), EntryKind.RESENT, reason


def _resend_at(desired: Desired, timing: ActionTiming) -> datetime:
    if desired.retry_at is not None:
        return desired.retry_at
    return (desired.sent_at or desired.requested_at) + span(timing.resend_seconds)


def entry(
    resource: Resource, desired: Desired, kind: EntryKind, now: datetime, reason: str
) -> LogEntry:
    part = "" if desired.target == desired.requested else f"-{desired.target}"
    return LogEntry(
        resource_name=resource.name,
        time=now,
        kind=kind,
        entry_id=f"{kind}-{desired.epoch}-{desired.attempts}{part}",
        reason=reason,
        current=desired.capacity if kind is EntryKind.PROGRESS else desired.previous,
        desired=desired.target,
        epoch=desired.epoch,
    )


def as_of(state: ScalingState, now: datetime) -> ScalingState:
    """Correct the times of the state that lie in the future, as after a clock was set back.

    1. Samples that are more than FUTURE_TOLERANCE_SECONDS ahead of ``now`` are dropped. 2. All
    recommendations later than ``now`` are dropped. 3. If a time of the desired state is ahead of
    ``now`` by more than the tolerance, all that are later than ``now`` are set to ``now``, and so
    cooldowns and deadlines begin. 4. If the action of such a state is pending, it is sent again,
    because the time since then is unknown.
    """
    latest = now + span(FUTURE_TOLERANCE_SECONDS)
    for name, history in state.histories.items():
        if history.samples and history.samples[-1].time > latest:
            state = state.with_history(name, Window(until(history.samples, latest)))
    recommended, desired = state.recommendations.samples, state.desired
    if recommended and recommended[-1].time > now:
        state = replace(state, recommendations=Window(until(recommended, now)))
    if desired is not None and _is_ahead(desired, latest):
        state = state.with_desired(_moved_back(desired, now))
    return state


def _is_ahead(desired: Desired, latest: datetime) -> bool:
    times = (desired.requested_at, desired.sent_at, desired.changed_at, desired.progressed_at)
    return any(time is not None and time > latest for time in times)


def _moved_back(desired: Desired, now: datetime) -> Desired:
    retry_at = now if desired.pending else desired.retry_at and min(desired.retry_at, now)
    return replace(
        desired,
        requested_at=min(desired.requested_at, now),
        sent_at=desired.sent_at and min(desired.sent_at, now),
        changed_at=desired.changed_at and min(desired.changed_at, now),
        progressed_at=desired.progressed_at and min(desired.progressed_at, now),
        retry_at=retry_at,
        changes=tuple([min(each, int(now.timestamp())) for each in desired.changes]),
    )
