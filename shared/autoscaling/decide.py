"""From state to decision: what is known, what the rule wants, what the guards leave of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from shared.autoscaling.guards import GUARDS, Context
from shared.autoscaling.model import (
    CAPACITY_METRIC,
    ActionStatus,
    Decision,
    MetricValue,
    Mode,
    Observation,
    Recommendation,
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
    decision = _guarded(resource, state, seen, _ask(resource, seen))
    if mode is Mode.DRY_RUN and decision.applies:
        reason = f"{decision.reason}; {mode_reason}: would scale {current} → {decision.desired}"
        limited_by = (*decision.limited_by, "dry_run")
        return replace(decision, applies=False, reason=reason, limited_by=limited_by)
    return decision


def observe(resource: Resource, state: ScalingState, capacity: int, now: datetime) -> Observation:
    """What the rule may see: samples in the window that are newer than the last change.

    Load of the time before a change must not cause another one, so it does not count any more.
    """
    start = now - timedelta(seconds=resource.window_seconds)
    changed_at = state.desired.changed_at if state.desired else None
    if changed_at is not None and changed_at >= start:
        start = changed_at + timedelta(microseconds=1)
    metrics = {
        name: Window(since(history.samples, start))
        for name, history in state.histories.items()
        if name != CAPACITY_METRIC
    }
    return Observation(resource.name, now, capacity, resource.limits, metrics, changed_at)


def known_capacity(state: ScalingState) -> MetricValue | None:
    """The newest word on how many instances there are: the target's own, or a confirmed change."""
    history = state.histories.get(CAPACITY_METRIC)
    observed = history.samples[-1] if history and history.samples else None
    desired = state.desired
    if desired is None:
        return observed
    if desired.status is not ActionStatus.CONFIRMED or desired.changed_at is None:
        return observed or MetricValue(desired.requested_at, desired.previous)
    if observed is None or observed.time <= desired.changed_at:
        return MetricValue(desired.changed_at, desired.target)
    return observed


def effective_mode(resource: Resource, state: ScalingState, now: datetime) -> tuple[Mode, str]:
    """The mode in force and who says so: a person's override before the declaration."""
    override = state.override
    if override and (override.expires_at is None or now < override.expires_at):
        reason = f" ({override.reason})" if override.reason else ""
        return override.mode, f"{override.mode} by override{reason}"
    return resource.mode, f"{resource.mode} by scaling_rules.py"


def _ask(resource: Resource, seen: Observation) -> Recommendation:
    """A rule is the user's code: whatever it does, the others go on."""
    try:
        wish = resource.policy(seen)
        if isinstance(wish, Recommendation) and type(wish.capacity) is int:
            return wish
        said = f"answered {wish!r} instead of a Recommendation with a whole capacity"
    except Exception as error:
        said = f"raised {type(error).__name__}: {error}"
    evidence = {"error": said}
    return Recommendation(seen.capacity, f"the rule {said}; holding", "error", evidence)


def _guarded(
    resource: Resource, state: ScalingState, seen: Observation, wish: Recommendation
) -> Decision:
    context = Context(seen, resource.limits, resource.cooldown, state.desired)
    wanted, reasons, limited_by = wish.capacity, [wish.reason], []
    for guard in GUARDS:
        limit = guard(wanted, context)
        if limit is not None:
            wanted = limit.capacity
            reasons.append(limit.reason)
            limited_by.append(guard.__name__)
    return Decision(
        resource_name=resource.name,
        time=seen.now,
        current=seen.capacity,
        desired=wanted,
        reason="; ".join(reasons),
        candidates=(wish,),
        limited_by=tuple(limited_by),
        evidence=wish.evidence,
        applies=wanted != seen.capacity,
    )


def _hold(
    resource: Resource,
    now: datetime,
    current: int | None,
    reason: str,
    limited_by: tuple[str, ...],
) -> Decision:
    return Decision(resource.name, now, current, current, reason, limited_by=limited_by)
