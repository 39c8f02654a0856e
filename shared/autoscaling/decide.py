"""From state to decision: what is known, what the rule wants, what the guards leave of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from shared.autoscaling.asking import REASON_LENGTH_MAX, ask
from shared.autoscaling.guards import (
    GUARDS,
    REVOKING,
    Context,
    Limit,
    already_requested,
    bounds,
)
from shared.autoscaling.learning import known_service
from shared.autoscaling.model import (
    CAPACITY_METRIC,
    ActionStatus,
    Decision,
    History,
    MetricValue,
    Mode,
    Observation,
    Override,
    Resource,
    ScalingState,
    Window,
)
from shared.autoscaling.samples import since


def decide(resource: Resource, state: ScalingState, now: datetime) -> Decision:
    """The decision for one resource at ``now``; a failing rule means hold, with its error.

    1. A paused resource holds. 2. So does one whose capacity is not known. 3. The rule says what
    it wants. 4. The guards say what they allow. 5. A dry run decides, but does not apply.
    """
    mode, mode_reason = effective_mode(resource, state, now)
    known = known_capacity(state)
    current = int(known.value) if known else None
    if mode is Mode.PAUSED:
        return _hold(resource, now, current, mode_reason, ("paused",))
    if current is None:
        reason = f"the capacity of {resource.name} is not known yet"
        return _hold(resource, now, None, reason, ("capacity_unknown",))
    seen = observe(resource, state, current, now)
    decision = _guarded(resource, state, seen)
    if mode is Mode.DRY_RUN and decision.applies:
        reason = f"{decision.reason}; {mode_reason}: would scale {current} → {decision.desired}"
        limited_by = (*decision.limited_by, "dry_run")
        return replace(decision, applies=False, reason=reason, limited_by=limited_by)
    return decision


def observe(resource: Resource, state: ScalingState, capacity: int, now: datetime) -> Observation:
    """What the rule may see: samples in the window that are newer than the last change.

    Load of the time before a change must not cause another one, so it does not count any more.
    """
    start = window_start(resource, state, now)
    histories = {name: Window(samples_of(state, name)) for name in resource.metrics}
    return Observation(
        resource_name=resource.name,
        now=now,
        capacity=capacity,
        limits=resource.limits,
        metrics={name: _from(window, start) for name, window in histories.items()},
        changed_at=state.desired.changed_at if state.desired else None,
        histories=histories,
        capacities=Window(samples_of(state, CAPACITY_METRIC)),
        pending=state.desired if state.desired and state.desired.pending else None,
        goal=resource.goal,
        service=known_service(resource.service, state.learned),
        profile=state.profile,
    )


def window_start(resource: Resource, state: ScalingState, now: datetime) -> datetime:
    """From when on samples count."""
    start = now - timedelta(seconds=resource.window_seconds)
    changed_at = state.desired.changed_at if state.desired else None
    if changed_at is not None and changed_at >= start:
        start = changed_at + timedelta(microseconds=1)
    return start


def _from(window: Window, start: datetime) -> Window:
    samples = window.samples
    return window if not samples or samples[0].time >= start else Window(since(samples, start))


def samples_of(state: ScalingState, name: str) -> tuple[MetricValue, ...]:
    history = state.histories.get(name)
    return history.samples if history else ()


def known_capacity(state: ScalingState) -> MetricValue | None:
    """The newest word on how many instances there are: the target's own, or a confirmed change."""
    kept = samples_of(state, CAPACITY_METRIC)
    observed = kept[-1] if kept else None
    desired = state.desired
    if desired is None:
        return observed
    if desired.changed_at is None:
        return observed or MetricValue(desired.requested_at, desired.previous)
    if observed is not None and observed.time > desired.changed_at:
        return observed
    confirmed = desired.status is ActionStatus.CONFIRMED
    return MetricValue(desired.changed_at, desired.target if confirmed else desired.previous)


def effective_mode(resource: Resource, state: ScalingState, now: datetime) -> tuple[Mode, str]:
    """The mode in force and who says so: a person's override before the declaration."""
    override = effective_override(state, now)
    if override and override.mode:
        reason = f" ({override.reason})" if override.reason else ""
        return override.mode, f"{override.mode} by override{reason}"
    return DECLARED[resource.mode]


DECLARED = {mode: (mode, f"{mode} by scaling_rules.py") for mode in Mode}


def effective_override(state: ScalingState, now: datetime) -> Override | None:
    override = state.override
    if override and (override.expires_at is None or now < override.expires_at):
        return override
    return None


def remember(resource: Resource, state: ScalingState, decision: Decision) -> ScalingState:
    """The state with what the rule wanted, where a stabilisation window will ask for it."""
    guards = resource.guards
    seconds = max(guards.stabilisation_in_seconds, guards.stabilisation_out_seconds)
    if not seconds or not decision.candidates:
        return state
    start = decision.time - timedelta(seconds=seconds)
    wish = MetricValue(decision.time, float(decision.candidates[0].capacity))
    return replace(state, wishes=History((*since(state.wishes.samples, start), wish)))


def _guarded(resource: Resource, state: ScalingState, seen: Observation) -> Decision:
    wish = ask(resource.policy, seen)
    context = Context(
        seen=seen,
        limits=resource.limits,
        cooldown=resource.cooldown,
        guards=resource.guards,
        desired=state.desired,
        override=effective_override(state, seen.now),
        wishes=state.wishes,
        wish=wish,
        ask=partial(ask, resource.policy),
        shares=getattr(resource.policy, "utilisation_names", ()),
    )
    wanted, reasons, limited_by = wish.capacity, [wish.reason[:REASON_LENGTH_MAX]], []
    for guard in GUARDS:
        limit = guard(wanted, context)
        if limit is None:
            continue
        reasons.append(limit.reason)
        if limit.capacity != wanted:
            wanted = limit.capacity
            limited_by.append(guard.__name__)
    applies = wanted != seen.capacity
    confirmed_again = already_requested.__name__ in limited_by  # it is the order under way
    if not (applies or confirmed_again) and (revoked := _revoked(context)) is not None:
        wanted, applies = revoked.capacity, True
        reasons.append(revoked.reason)
        limited_by.append("revoked")
    return Decision(
        resource_name=resource.name,
        time=seen.now,
        current=seen.capacity,
        desired=wanted,
        reason="; ".join(reasons),
        candidates=(wish, *wish.candidates),
        limited_by=tuple(limited_by),
        evidence=wish.evidence,
        applies=applies,
    )


def _revoked(context: Context) -> Limit | None:
    """What to order instead of the order under way, where that is not wanted any more.

    A rule that stays does not take it back; one that paces itself knows of it and does.
    """
    desired, seen, wish = context.desired, context.seen, context.wish
    if desired is None or not desired.pending or desired.target == seen.capacity:
        return None
    for guard in REVOKING:
        limit = guard(desired.target, context)
        if limit is not None and limit.capacity != desired.target:
            reason = f"epoch {desired.epoch} is taken back: {limit.reason}"
            within = bounds(limit.capacity, context)
            return Limit(within.capacity if within else limit.capacity, reason)
    if wish.paced and wish.capacity == seen.capacity:
        return Limit(seen.capacity, f"epoch {desired.epoch} is taken back")
    return None


def _hold(
    resource: Resource,
    now: datetime,
    current: int | None,
    reason: str,
    limited_by: tuple[str, ...],
) -> Decision:
    return Decision(resource.name, now, current, current, reason, limited_by=limited_by)
