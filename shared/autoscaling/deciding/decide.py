"""Decide a resource's capacity from its state: ask the policy, then apply the guards.

The module also explains a decision by its counterfactual: the smallest change of a metric that
would have led to a different decision. It also defines the entries of the decision log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from statistics import fmean

from shared.autoscaling.deciding.guards import (
    GUARDS,
    GUARDS_WHEN_HOLDING,
    REVOKING,
    Context,
    Guard,
    Limit,
    already_requested,
    bounds,
)
from shared.autoscaling.deciding.samples import known_capacity, observe, window_start
from shared.autoscaling.declaring import Mode
from shared.autoscaling.lag import lag_of
from shared.autoscaling.measurements import NOTHING, Evidence, MetricValue, Window, since, span
from shared.autoscaling.policy import (
    REASON_LENGTH_MAX,
    Observation,
    Recommendation,
    Resource,
    ask,
    described,
    members,
)
from shared.autoscaling.state import Override, ScalingState


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about the capacity of one resource, and everything that led to it.

    If ``desired`` equals ``current``, the decision is to hold, or, if ``applies`` is true, to
    revoke the pending action. ``limited_by`` names the guards that changed the recommended
    capacity, in the order in which they were applied.
    """

    resource_name: str
    time: datetime
    current: int | None
    desired: int | None
    reason: str
    candidates: tuple[Recommendation, ...] = ()
    limited_by: tuple[str, ...] = ()
    evidence: Evidence = field(default_factory=lambda: NOTHING)
    counterfactual: str = ""
    """What would have led to a different decision: another level of a metric, or fewer guards."""
    applies: bool = False
    """True if the app must request the desired capacity now."""


class EntryKind(StrEnum):
    """The event that an entry of the decision log records."""

    DECISION = "decision"
    CONFIRMED = "confirmed"
    DEFERRED = "deferred"
    FAILED = "failed"
    IGNORED = "ignored"
    RESENT = "resent"
    REOPENED = "reopened"
    MANUAL_CHANGE = "manual_change"
    OVERRIDE = "override"
    POISON = "poison"
    UNREADABLE = "unreadable"
    """Replaces a row of the log that this version cannot read. It is never written."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of the decision log.

    Writing the same ``entry_id`` twice, with the same time and epoch, leaves one entry.
    """

    resource_name: str
    time: datetime
    kind: EntryKind
    entry_id: str
    reason: str
    current: int | None = None
    desired: int | None = None
    epoch: int | None = None
    applies: bool = False
    limited_by: tuple[str, ...] = ()
    candidates: tuple[Recommendation, ...] = ()
    evidence: Evidence = field(default_factory=lambda: NOTHING)
    counterfactual: str = ""
    metric: str = ""
    """The metric whose sample led to the decision. ``value`` is the value of that sample."""
    value: float | None = None
    body: str = ""
    """The complete body of a message that could not be processed."""


def decide(resource: Resource, state: ScalingState, now: datetime) -> Decision:
    """Decide the capacity of one resource at ``now``. If the policy fails, hold.

    1. If the resource is paused, hold. 2. If its capacity is not known yet, hold. 3. Ask the policy
    for a capacity. 4. Let the guards limit that capacity. 5. In a dry run, do not apply the
    decision.
    """
    mode, mode_reason = effective_mode(resource, state, now)
    capacity = known_capacity(state)
    current = int(capacity.value) if capacity else None
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


def effective_mode(resource: Resource, state: ScalingState, now: datetime) -> tuple[Mode, str]:
    """The mode in force, and where it is set. An override wins over scaling_rules.py."""
    override = effective_override(state, now)
    if override and override.mode:
        reason = f" ({override.reason})" if override.reason else ""
        return override.mode, f"mode {override.mode}, set by an override{reason}"
    return DECLARED_MODES[resource.mode]


DECLARED_MODES = {mode: (mode, f"mode {mode}, set in scaling_rules.py") for mode in Mode}


def effective_override(state: ScalingState, now: datetime) -> Override | None:
    """The operator's override; None if there is none or it has expired."""
    override = state.override
    if override is None:
        return None
    return override if override.expires_at is None or now < override.expires_at else None


def remember(resource: Resource, state: ScalingState, decision: Decision) -> ScalingState:
    """Add the recommendation to the state if a stabilization window will need it."""
    guards = resource.guards
    stable_in, stable_out = guards.stabilisation_in_seconds, guards.stabilisation_out_seconds
    if not (stable_in or stable_out) or not decision.candidates:
        return state
    start = decision.time - span(max(stable_in, stable_out))
    recommended = MetricValue(decision.time, float(decision.candidates[0].capacity))
    return replace(
        state, recommendations=Window((*since(state.recommendations.samples, start), recommended))
    )


def _guarded(resource: Resource, state: ScalingState, seen: Observation) -> Decision:
    recommendation = ask(resource.policy, seen)
    context = Context(resource, state, seen, effective_override(state, seen.now), recommendation)
    reasons, limited_by = [recommendation.reason[:REASON_LENGTH_MAX]], list[str]()
    guards = GUARDS if recommendation.capacity != seen.capacity else GUARDS_WHEN_HOLDING
    desired = _allowed(recommendation.capacity, context, guards, reasons, limited_by)
    applies = desired != seen.capacity
    if not applies and (revoked := _revoked(context, limited_by)) is not None:
        desired, applies = revoked.capacity, True
        reasons.append(revoked.reason)
        limited_by.append(REVOKED)
    return Decision(
        resource.name,
        seen.now,
        seen.capacity,
        desired,
        "; ".join(reasons),
        (recommendation, *recommendation.candidates),
        tuple(limited_by),
        recommendation.evidence,
        "",  # the counterfactual is computed only for the log, by explained()
        applies,
    )


REVOKED = "revoked"
"""In ``limited_by``: the decision revokes the pending action."""


def _allowed(
    capacity: int,
    context: Context,
    guards: Sequence[Guard],
    reasons: list[str],
    limited_by: list[str],
    skipped: Collection[str] = (),
) -> int:
    """The capacity that the guards allow.

    For each guard that applies, its reason is added to ``reasons``. For each guard that changed the
    capacity, its name is added to ``limited_by``. ``guards`` may be the shorter list
    GUARDS_WHEN_HOLDING. But once a guard has changed the capacity, all guards that follow it in
    GUARDS are asked, not only those of the shorter list. Guards named in ``skipped`` are not asked.
    """
    for guard in guards:
        limit = None if skipped and guard.__name__ in skipped else guard(capacity, context)
        if limit is None:
            continue
        reasons.append(limit.reason)
        if limit.capacity != capacity:
            limited_by.append(guard.__name__)
            later = GUARDS[GUARDS.index(guard) + 1 :]
            return _allowed(limit.capacity, context, later, reasons, limited_by, skipped)
    return capacity


def _revoked(context: Context, limited_by: Sequence[str]) -> Limit | None:
    """The capacity to request instead of the pending action; None if that action is not revoked.

    The action is revoked if a guard no longer allows its target. A recommendation to hold revokes
    the action only if the policy is paced, that is, if it already takes pending actions into
    account.
    """
    desired, seen, recommendation = context.state.desired, context.seen, context.recommendation
    if desired is None or not desired.pending or desired.target == seen.capacity:
        return None
    if already_requested.__name__ in limited_by:
        return None  # the guards allow exactly the pending action
    for _, limit in _refusals(desired.target, context):
        reason = f"the action of epoch {desired.epoch} is revoked because {limit.reason}"
        within = bounds(limit.capacity, context)
        return Limit(within.capacity if within else limit.capacity, reason)
    if recommendation.paced and recommendation.capacity == seen.capacity:
        return Limit(seen.capacity, f"the action of epoch {desired.epoch} is revoked")
    return None


def _refusals(target: int, context: Context) -> Iterator[tuple[str, Limit]]:
    """The guards that no longer allow the target of the pending action, each with its limit."""
    for guard in REVOKING:
        limit = guard(target, context)
        if limit is not None and limit.capacity != target:
            yield guard.__name__, limit


def _hold(
    resource: Resource,
    now: datetime,
    current: int | None,
    reason: str,
    limited_by: tuple[str, ...],
) -> Decision:
    return Decision(resource.name, now, current, current, reason, limited_by=limited_by)


# --- what would have led to a different decision -------------------------------------------------

# The search sets the samples of one metric to another level and decides again. It looks for the
# level nearest to the present one at which the decision is different.
METRICS_MAX = 4
"""At most this many metrics are searched: the first ones that the policy reads."""
STRIDES_MAX = 10
STRIDE = 4.0
"""The search multiplies the present level by 4, 16, 64 and so on, up to about a million. Downwards
it divides the level by the same factors, and then tries 0."""
HALVINGS = 7
"""How many times a stride is bisected. Seven bisections find the level to about one percent."""


@dataclass(frozen=True, slots=True)
class TurningPoint:
    """The level of a metric beyond which the decision would have been different.

    ``distance`` is the distance from the present level, as a share of that level.
    """

    distance: float
    text: str


def explained(resource: Resource, state: ScalingState, decision: Decision) -> Decision:
    """The decision with its counterfactual, such as "would have scaled in at backlog < 120".

    ``state`` is the state that led to the decision. If no level of a metric would have changed the
    decision, the counterfactual names the guards that limited the capacity: "would have scaled out
    to 6 without rate_limits". If no guard limited it, the counterfactual is empty.
    """
    if decision.current is None or not decision.candidates:
        return decision
    recommendation = decision.candidates[0]
    if recommendation.failed:
        return decision
    turns = [turn for name in _varied(resource) for turn in _turns(resource, state, decision, name)]
    if turns:
        text = min(turns, key=lambda turn: turn.distance).text
    elif decision.limited_by and recommendation.capacity != decision.desired:
        text = _without_guards(resource, state, decision, decision.current)
    else:
        text = ""
    return replace(decision, counterfactual=text)


def _without_guards(
    resource: Resource, state: ScalingState, decision: Decision, current: int
) -> str:
    """Describe the decision that would have been taken without the guards that limited it.

    If a later guard imposes the same limit, it is skipped as well, and the text names it.
    """
    recommendation, override = decision.candidates[0], effective_override(state, decision.time)
    seen = observe(resource, state, current, decision.time)
    context = Context(resource, state, seen, override, recommendation)
    absent = set(decision.limited_by)
    revoked = state.desired if REVOKED in absent else None
    if revoked is not None:
        absent |= {name for name, _ in _refusals(revoked.target, context)}
    for _ in GUARDS:
        without = ", ".join(each.__name__ for each in GUARDS if each.__name__ in absent)
        context.forced = False  # a guard may have set it in the previous round
        further: list[str] = []
        capacity = _allowed(recommendation.capacity, context, GUARDS, [], further, absent)
        kept = already_requested.__name__ in further or not recommendation.paced
        if revoked is not None and capacity == current and kept:
            return f"would have kept the pending action (target {revoked.target}) without {without}"
        if capacity != decision.desired:
            return f"would have {_verb_to(current, capacity)} without {without}"
        if not further:
            return ""
        absent.update(further)
    return ""


def _varied(resource: Resource) -> tuple[str, ...]:
    """The names of the metrics that are searched."""
    names = described(resource.policy).metric_names or tuple(resource.metrics)
    return tuple(name for name in names if name in resource.metrics)[:METRICS_MAX]


def _turns(
    resource: Resource, state: ScalingState, decision: Decision, name: str
) -> Iterator[TurningPoint]:
    """The nearest turning points below and above the present level of one metric."""
    history = state.histories.get(name)
    assert decision.current is not None
    if history is None or not history.samples:
        return
    first_varied = _first_varied(resource, state, decision, name)

    def desired(at: float) -> int | None:
        samples = history.samples[:first_varied] + tuple(
            [MetricValue(sample.time, at) for sample in history.samples[first_varied:]]
        )
        varied = state.with_history(name, Window(samples))
        return decide(resource, varied, decision.time).desired

    def same(at: float) -> bool:
        return desired(at) == decision.desired

    level = _level(history.samples[first_varied:], same)
    if level is None:
        return
    powers = [STRIDE**stride for stride in range(1, STRIDES_MAX + 1)]
    upwards = [max(level, 1.0) * power for power in powers]
    downwards = [*[level / power for power in powers], 0.0]
    for sign, strides in (("<", downwards if level > 0 and not same(0.0) else []), (">", upwards)):
        near = level
        for far in strides:
            if not same(far):
                at = _bisect(same, near, far)
                other = _described_change(decision, desired(at))
                distance = abs(at - level) / (level or 1.0)
                yield TurningPoint(distance, f"would have {other} at {name} {sign} {at:.3g}")
                break
            near = far


def _first_varied(resource: Resource, state: ScalingState, decision: Decision, name: str) -> int:
    """The index of the first sample that the search sets to another level.

    If the policy reads a mean or a maximum, the search changes all samples of the window. If the
    policy follows the course of a metric, the search changes only the newest sample.
    """
    samples = state.histories[name].samples
    for member in members(resource.policy):
        if described(member).followed_metric == name:
            return len(samples) - 1
    lag = lag_of(resource.metrics.get(name), state.histories[name], decision.time)
    start = window_start(resource, state, decision.time, lag)
    return sum(1 for sample in samples if sample.time < start)


def _level(samples: Sequence[MetricValue], same: Callable[[float], bool]) -> float | None:
    """The level from which the search starts: the newest value, or else the mean.

    With this level in all samples, the decision must be the same as the actual one. The result is
    None if neither value meets this condition.
    """
    values = [sample.value for sample in samples]
    if len(set(values)) == 1:
        return values[0]
    return next((at for at in (values[-1], fmean(values)) if same(at)), None) if values else None


def _bisect(same: Callable[[float], bool], near: float, far: float) -> float:
    for _ in range(HALVINGS):
        middle = (near * far) ** 0.5 if near > 0 and far > 0 else (near + far) / 2
        if same(middle):
            near = middle
        else:
            far = middle
    return far


def _described_change(decision: Decision, desired: int | None) -> str:
    """Describe an alternative decision by its direction. If the actual decision has the same
    direction, add the capacity of the alternative."""
    assert decision.current is not None
    assert desired is not None
    verb = _verb(decision.current, desired)
    same = decision.desired is not None and verb == _verb(decision.current, decision.desired)
    return f"{verb} to {desired}" if same else verb


def _verb_to(current: int, desired: int) -> str:
    return f"{_verb(current, desired)} {'at' if desired == current else 'to'} {desired}"


def _verb(current: int, desired: int) -> str:
    if desired == current:
        return "stayed"
    return "scaled out" if desired > current else "scaled in"
