"""From state to decision: what is known, what the policy wants, what the guards leave of it.

And the nearest counterfactual: at which level of a metric the decision would have been another; and
the line of the log that a decision, or what became of it, is written as.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from statistics import fmean

from shared.autoscaling.deciding.guards import (
    GUARDS,
    GUARDS_OF_A_STAY,
    REVOKING,
    Context,
    Guard,
    Limit,
    already_requested,
    bounds,
)
from shared.autoscaling.deciding.samples import known_capacity, observe, window_start
from shared.autoscaling.declaring import Mode
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
    """What was decided, and everything that led to it.

    ``desired == current`` means hold. ``limited_by`` names the guards that changed what the policy
    wanted, in the order in which they did.
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
    """The nearest thing that would have led to another decision."""
    applies: bool = False
    """True where the desired capacity is to be ordered now."""


class EntryKind(StrEnum):
    """What a line of the decision log tells."""

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
    """Stands in for a row of the log that this version cannot read; never written."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of the decision log.

    ``entry_id`` makes writing it twice write it once, at one time and epoch.
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
    """Name and value of the sample that led to a decision."""
    value: float | None = None
    body: str = ""
    """The whole message, where the entry tells of a message that could not be processed."""


def decide(resource: Resource, state: ScalingState, now: datetime) -> Decision:
    """The decision for one resource at ``now``; a failing policy means hold, with its error.

    1. A paused resource holds. 2. So does one whose capacity is not known. 3. The policy says
    what it wants. 4. The guards say what they allow. 5. A dry run decides, but does not apply.
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
    if override is None:
        return None
    return override if override.expires_at is None or now < override.expires_at else None


def remember(resource: Resource, state: ScalingState, decision: Decision) -> ScalingState:
    """The state with what the policy wanted, where a stabilisation window will ask for it."""
    guards = resource.guards
    stable_in, stable_out = guards.stabilisation_in_seconds, guards.stabilisation_out_seconds
    if not (stable_in or stable_out) or not decision.candidates:
        return state
    start = decision.time - span(max(stable_in, stable_out))
    wish = MetricValue(decision.time, float(decision.candidates[0].capacity))
    return replace(state, wishes=Window((*since(state.wishes.samples, start), wish)))


def _guarded(resource: Resource, state: ScalingState, seen: Observation) -> Decision:
    wish = ask(resource.policy, seen)
    context = Context(resource, state, seen, effective_override(state, seen.now), wish)
    reasons, limited_by = [wish.reason[:REASON_LENGTH_MAX]], list[str]()
    guards = GUARDS if wish.capacity != seen.capacity else GUARDS_OF_A_STAY
    wanted = _allowed(wish.capacity, context, guards, reasons, limited_by)
    applies = wanted != seen.capacity
    if not applies and (revoked := _revoked(context, limited_by)) is not None:
        wanted, applies = revoked.capacity, True
        reasons.append(revoked.reason)
        limited_by.append("revoked")
    return Decision(
        resource.name,
        seen.now,
        seen.capacity,
        wanted,
        "; ".join(reasons),
        (wish, *wish.candidates),
        tuple(limited_by),
        wish.evidence,
        "",  # what would have changed it is computed only for the log: see explained()
        applies,
    )


def _allowed(
    wanted: int,
    context: Context,
    guards: Sequence[Guard],
    reasons: list[str],
    limited_by: list[str],
) -> int:
    """What the guards leave of a wish; reasons and names of those that spoke go into the lists.

    What one of them changed is for all that stand behind it: a stay may be none any more.
    """
    for guard in guards:
        limit = guard(wanted, context)
        if limit is None:
            continue
        reasons.append(limit.reason)
        if limit.capacity != wanted:
            limited_by.append(guard.__name__)
            behind = GUARDS[GUARDS.index(guard) + 1 :]
            return _allowed(limit.capacity, context, behind, reasons, limited_by)
    return wanted


def _revoked(context: Context, limited_by: Sequence[str]) -> Limit | None:
    """What to order instead of the order under way, where that is not wanted any more.

    A policy that stays does not take it back; one that paces itself knows of it and does.
    """
    desired, seen, wish = context.state.desired, context.seen, context.wish
    if desired is None or not desired.pending or desired.target == seen.capacity:
        return None
    if already_requested.__name__ in limited_by:
        return None  # what the guards came to is the order under way
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


# --- what would have led to another decision -----------------------------------------------------

METRICS_MAX = 4
"""Of a policy that reads more, only the first so many are asked about."""
STRIDES_MAX = 10
STRIDE = 4.0
"""It looks at four times the level, at sixteen times and so on, up to a million times; downwards at
a quarter of it, at a sixteenth and so on, and at 0."""
HALVINGS = 7
"""To within one per cent of the distance: enough for an explanation."""


@dataclass(frozen=True, slots=True)
class TurningPoint:
    """From this level on the decision would have been this one; distance relative to now."""

    distance: float
    text: str


def explained(resource: Resource, state: ScalingState, decision: Decision) -> Decision:
    """The decision with what would have changed it: "would have scaled in at backlog < 120".

    ``state`` is the one that the decision was taken from. Where no level of any metric would have
    changed it and a guard has spoken, that guard is what would have; else there is nothing to say.
    """
    if decision.current is None or not decision.candidates:
        return decision
    wish = decision.candidates[0]
    if wish.failed:
        return decision
    turns = [
        turn for name in _asked_about(resource) for turn in _turns(resource, state, decision, name)
    ]
    if turns:
        text = min(turns, key=lambda turn: turn.distance).text
    elif decision.limited_by and wish.capacity != decision.desired:
        verb = _verb(decision.current, wish.capacity)
        text = f"would have {verb} without {', '.join(decision.limited_by)}"
    else:
        text = ""
    return replace(decision, counterfactual=text)


def _asked_about(resource: Resource) -> tuple[str, ...]:
    named = described(resource.policy).metric_names or tuple(resource.metrics)
    return tuple(name for name in named if name in resource.metrics)[:METRICS_MAX]


def _turns(
    resource: Resource, state: ScalingState, decision: Decision, name: str
) -> Iterator[TurningPoint]:
    """Below and above the present level: where the decision turns, and how to say it."""
    history = state.histories.get(name)
    assert decision.current is not None
    if history is None or not history.samples:
        return
    changed = _changed_from(resource, state, decision, name)

    def desired(at: float) -> int | None:
        samples = history.samples[:changed] + tuple(
            [MetricValue(sample.time, at) for sample in history.samples[changed:]]
        )
        asked = state.with_history(name, Window(samples))
        return decide(resource, asked, decision.time).desired

    def same(at: float) -> bool:
        return desired(at) == decision.desired

    level = _level(history.samples[changed:], same)
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
                said = _said(decision, desired(at))
                distance = abs(at - level) / (level or 1.0)
                yield TurningPoint(distance, f"would have {said} at {name} {sign} {at:.3g}")
                break
            near = far


def _changed_from(resource: Resource, state: ScalingState, decision: Decision, name: str) -> int:
    """From which sample on the level is another: all that count now, or the newest alone.

    Rules that read a mean or a maximum ask about the level of the window; those that follow the
    course of a backlog, about its end.
    """
    samples = state.histories[name].samples
    for member in members(resource.policy):
        if described(member).followed_metric == name:
            return len(samples) - 1
    start = window_start(resource, state, decision.time)
    return sum(1 for sample in samples if sample.time < start)


def _level(samples: Sequence[MetricValue], same: Callable[[float], bool]) -> float | None:
    """The one level that all these samples could have and lead to the same decision; the newest
    value or else the mean, None where neither would."""
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


def _said(decision: Decision, desired: int | None) -> str:
    """Another direction; or, where it is the same, another capacity."""
    assert decision.current is not None
    assert desired is not None
    verb = _verb(decision.current, desired)
    same = decision.desired is not None and verb == _verb(decision.current, decision.desired)
    return f"{verb} to {desired}" if same else verb


def _verb(current: int, desired: int) -> str:
    if desired == current:
        return "stayed"
    return "scaled out" if desired > current else "scaled in"
