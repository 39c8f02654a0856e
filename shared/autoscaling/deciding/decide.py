"""Decide a resource's capacity from its state: ask the policy, then apply the guards.

The module also defines the entries of the decision log. counterfactual.py explains a decision.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from shared.autoscaling.deciding.guards import (
    GUARDS,
    REVOKING,
    Context,
    Limit,
    already_requested,
    bounds,
    missing_data,
)
from shared.autoscaling.deciding.samples import known_capacity, observe
from shared.autoscaling.declaring import Mode
from shared.autoscaling.learning.backlogs import stalls, unfallen, with_longest_age
from shared.autoscaling.policy import (
    REASON_LENGTH_MAX,
    Observation,
    Recommendation,
    Resource,
    ask,
)
from shared.autoscaling.state import Override, ScalingState, Stall
from shared.values.measurements import (
    NOTHING,
    Evidence,
    MetricValue,
    Samples,
    Window,
    since,
    span,
)

NUMBER = re.compile(r"\d+(?:\.\d+)?")
HOUR, GAP_MAX = timedelta(hours=1), timedelta(minutes=15)
"""The capacity counts as unknown between two decisions that are further apart."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision about the capacity of one resource, and everything that led to it. If ``desired``
    equals ``current``, it is to hold, or with ``applies`` to revoke the pending action.
    ``limited_by`` names the guards that changed the recommended capacity, in order."""

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
    fallback: int | None = None
    """The fallback capacity of a missing metric, if it is above the recommended capacity."""

    @property
    def is_change(self) -> bool:
        """False if the decision is to hold. In a dry run, a change is not applied."""
        return self.applies or self.desired != self.current


class EntryKind(StrEnum):
    """The event that an entry of the decision log records."""

    DECISION = "decision"
    CONFIRMED = "confirmed"
    PROGRESS = "progress"
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
    """One entry of the decision log. Writing the same ``entry_id`` twice, with the same time and
    epoch, leaves one entry."""

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
    samples: Mapping[str, Samples] = field(default_factory=lambda: NOTHING)
    """The new samples of each metric that the decision saw; empty in entries of older versions."""
    body: str = ""
    """The complete body of a message that could not be processed."""
    repeated: int = 0
    """How many decisions before this one requested nothing either and said the same in a row,
    numbers aside."""
    repeated_since: datetime | None = None
    """The time of the first of them."""
    set_back: int = 0
    """How often the clock of the store was set back before this decision."""
    hours: tuple[float, ...] = ()
    """The instance-hours of the day and of the month, in UTC, each followed by the hours in which
    the capacity was known."""

    @property
    def guard(self) -> str:
        """The guard that limited the capacity last, or ``none``."""
        return self.limited_by[-1] if self.limited_by else "none"

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a log line about the entry. What is not known is left out."""
        fields = {name: getattr(self, name) for name in ("epoch", "current", "desired")}
        fields |= {"guard": self.guard} if self.kind is EntryKind.DECISION else {}
        fields |= {f"value.{name}": each[-1].value for name, each in self.samples.items()}
        fields |= {f"evidence.{name}": each for name, each in self.evidence.items()}
        return {name: each for name, each in fields.items() if each is not None}

    def after(self, before: LogEntry | None) -> LogEntry:
        """The entry with the count of its repetitions. ``before`` is the decision before it. Once
        the clock was set back, the ID says how often, because it may otherwise be that of an
        earlier decision, which must not be replaced."""
        if before is None:
            return self
        is_back = before.time > self.time
        count = before.set_back + is_back
        entry_id = f"{self.entry_id}-clock-{count}" if count else self.entry_id
        new = replace(self, entry_id=entry_id, set_back=count, hours=self._hours(before))
        if is_back or self._said() != before._said():
            return new
        first = before.repeated_since or before.time
        return replace(new, repeated=before.repeated + 1, repeated_since=first)

    def _hours(self, before: LogEntry) -> tuple[float, ...]:
        gap, known, hours = self.time - before.time, 0.0, before.hours or (0.0,) * 4
        if before.current is not None and timedelta() < gap <= GAP_MAX:
            known = gap / HOUR
        more = ((before.current or 0) * known, known) * 2
        kept = before.time.date() == self.time.date(), before.time.month == self.time.month
        return tuple(
            round(more[n] + (hours[n] if kept[n // 2] else 0), 9) for n in range(len(more))
        )

    def _said(self) -> tuple[object, ...]:
        said = self.current, self.desired, self.epoch, self.limited_by
        text = NUMBER.sub("", self.reason)
        return (*said, text) if self.requests_nothing else (self.entry_id, self.time)

    @property
    def requests_nothing(self) -> bool:
        """True for a decision that only holds, or whose change is not applied in a dry run."""
        return self.kind is EntryKind.DECISION and not self.applies

    def is_within(self, since: datetime | None, before: datetime | None) -> bool:
        """Whether the entry is not from before ``since``, and is from before ``before``."""
        return (since is None or self.time >= since) and (before is None or self.time < before)

    @property
    def seen(self) -> Mapping[str, Samples]:
        """``samples``. An entry of an older version has one value, whose time is about its own."""
        if self.samples or not self.metric or self.value is None:
            return self.samples
        return {self.metric: (MetricValue(self.time, self.value),)}


def quarter_of(time: datetime) -> datetime:
    """The start of the quarter of an hour of this time. The log keeps decisions that request
    nothing together for a quarter of an hour."""
    return time.replace(minute=time.minute // 15 * 15, second=0, microsecond=0)


def decide(
    resource: Resource,
    state: ScalingState,
    now: datetime,
    stalled: Sequence[Stall] | None = None,
) -> Decision:
    """Decide the capacity of one resource at ``now``. If the policy fails, hold.

    1. If the resource is paused, its capacity is unknown, or the app must not scale the plan, hold.
    2. Ask the policy for a capacity. 3. Let the guards limit it. 4. In a dry run, do not apply the
    decision. ``stalled`` is the result of ``stalls``, if the caller has it already.
    """
    mode, mode_reason = effective_mode(resource, state, now)
    capacity = known_capacity(state)
    current = int(capacity.value) if capacity else None
    if mode is Mode.PAUSED:
        return _hold(resource, now, current, mode_reason, ("paused",))
    if current is None:
        reason = f"the capacity of {resource.name} is not known yet"
        return _hold(resource, now, None, reason, ("capacity_unknown",))
    if state.plan and state.plan.unscalable:
        reason = f"{state.plan.unscalable}: holding"
        return _hold(resource, now, current, reason, ("plan_unscalable",))
    within = within_plan(resource, state)
    seen = observe(within, state, current, now)
    decision = _guarded(
        within, state, seen, stalls(resource, state) if stalled is None else stalled
    )
    narrowed = state.plan.narrowed(resource.limits) if state.plan else {}
    if told := narrowed.get(decision.desired or 0, ""):
        decision = replace(decision, reason=f"{decision.reason}; {told}")
    if mode is Mode.DRY_RUN and decision.applies:
        reason = f"{decision.reason}; {mode_reason}: would scale {current} → {decision.desired}"
        limited_by = (*decision.limited_by, "dry_run")
        return replace(decision, applies=False, reason=reason, limited_by=limited_by)
    return decision


def within_plan(resource: Resource, state: ScalingState) -> Resource:
    """The resource with limits that its plan can have."""
    limits = state.plan.limits(resource.limits) if state.plan else resource.limits
    return resource if limits is resource.limits else replace(resource, limits=limits)


def effective_mode(resource: Resource, state: ScalingState, now: datetime) -> tuple[Mode, str]:
    """The mode in force, and where it is set. An override wins over scaling_rules.py."""
    override = effective_override(state, now)
    if override and override.mode:
        reason = f" ({override.reason})" if override.reason else ""
        return override.mode, f"mode {override.mode}, set by an override{reason}"
    return resource.mode, f"mode {resource.mode}, set in scaling_rules.py"


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
    wanted = decision.candidates[0].capacity if decision.fallback is None else decision.fallback
    recommended = MetricValue(decision.time, float(wanted))
    return replace(
        state, recommendations=Window((*since(state.recommendations.samples, start), recommended))
    )


def _guarded(
    resource: Resource, state: ScalingState, seen: Observation, stalled: Sequence[Stall]
) -> Decision:
    recommendation = ask(resource.policy, seen)
    still = unfallen(resource, state, stalled)
    override = effective_override(state, seen.now)
    context = Context(resource, state, seen, override, recommendation, unfallen=still)
    reasons = [recommendation.reason[:REASON_LENGTH_MAX], *[each.text for each in still]]
    limited_by: list[str] = []
    if recommendation.failed and RUNNING_SINCE in recommendation.evidence:
        limited_by.append(POLICY_UNANSWERED)
    desired = allowed(recommendation.capacity, context, reasons, limited_by)
    fallback = _fallback(context) if missing_data.__name__ in limited_by else None
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
        with_longest_age(resource, stalled, recommendation.evidence, seen.now),
        "",  # the counterfactual is computed only for the log, by counterfactual.py
        applies,
        fallback,
    )


def _fallback(context: Context) -> int | None:
    recommended = context.recommendation.capacity
    limit = missing_data(recommended, context)
    is_raised = limit and limit.capacity > max(recommended, context.seen.capacity)
    return limit.capacity if limit and is_raised else None


POLICY_UNANSWERED = "policy_unanswered"
"""In ``limited_by``: the policy did not answer in time. The evidence has RUNNING_SINCE."""

RUNNING_SINCE = "running_since"

REVOKED = "revoked"
"""In ``limited_by``: the decision revokes the pending action."""


def allowed(
    capacity: int,
    context: Context,
    reasons: list[str],
    limited_by: list[str],
    skipped: Collection[str] = (),
) -> int:
    """The capacity that the guards allow. The reason of each guard that applies is added to
    ``reasons``, and the name of each that changed the capacity to ``limited_by``."""
    for guard in GUARDS:
        limit = None if skipped and guard.__name__ in skipped else guard(capacity, context)
        if limit is None:
            continue
        reasons.append(limit.reason)
        if limit.capacity != capacity:
            limited_by.append(guard.__name__)
            capacity = limit.capacity
    return capacity


def _revoked(context: Context, limited_by: Sequence[str]) -> Limit | None:
    """The capacity to request instead of the pending action; None if that action is not revoked,
    because the guards allow its target. A recommendation to hold revokes it only if the policy is
    paced."""
    desired, seen, recommendation = context.state.desired, context.seen, context.recommendation
    if desired is None or not desired.pending or desired.target == seen.capacity:
        return None
    if already_requested.__name__ in limited_by:
        return None  # the guards allow exactly the pending action
    for _, limit in refusals(desired.target, context):
        if seen.capacity < desired.target < limit.capacity:
            continue  # the action leads towards the limit, and the guards delay the rest
        reason = f"the action of epoch {desired.epoch} is revoked because {limit.reason}"
        within = bounds(limit.capacity, context)
        return Limit(within.capacity if within else limit.capacity, reason)
    if recommendation.paced and recommendation.capacity == seen.capacity:
        return Limit(seen.capacity, f"the action of epoch {desired.epoch} is revoked")
    return None


def refusals(target: int, context: Context) -> Iterator[tuple[str, Limit]]:
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
