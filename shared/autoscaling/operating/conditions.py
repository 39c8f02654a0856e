"""What is wrong with a resource now, which of its metrics are silent, and how the silence of each
affects decisions. All functions are pure.

A metric that decisions use is silent after ``Missing.after_seconds`` and the usual lag of its
source. A count of finished or incoming items, from which only the rate per instance is learned, is
silent once it is too old to learn from, and never if it comes from Azure Monitor, which publishes
no values while no messages arrive. In both cases, a declaration for the missing metric takes
precedence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import takewhile

from shared.autoscaling.acting.actions import as_of
from shared.autoscaling.acting.activation import DEPLOYMENT, told
from shared.autoscaling.deciding import clocks
from shared.autoscaling.deciding.decide import (
    POLICY_UNANSWERED,
    LogEntry,
    effective_mode,
    effective_override,
    within_plan,
)
from shared.autoscaling.deciding.guards import few_changes_left, standstill, waited_seconds
from shared.autoscaling.deciding.samples import known_capacity, samples_of
from shared.autoscaling.declaring import Limits, Mode
from shared.autoscaling.learning.backlogs import Unfallen, age_minutes, unfallen
from shared.autoscaling.learning.throughput import contradiction, rate_estimate
from shared.autoscaling.operating.overrides import described
from shared.autoscaling.plan_facts import PlanFacts
from shared.autoscaling.policy import Resource, held_at_maximum
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.sources import PLAN_READ_SECONDS
from shared.autoscaling.state import ActionStatus, ScalingState
from shared.notifications.conditions import LastingCondition
from shared.values.measurements import CAPACITY_METRIC
from shared.values.news import NewsKind, Severity

PENDING_MAX = timedelta(minutes=5)
"""Actions that are pending for longer are shown. App Service adds instances within minutes."""
RECENT = timedelta(hours=1)
"""Older decisions do not tell the age of the oldest item."""
CAPACITY_SECONDS_MAX = 2 * PLAN_READ_SECONDS
"""A capacity that is older was not read when it was due."""
CHECK = "Run python -m shared validate --connect to find the cause."
DEPLOY = "Deploy the version of the app that wrote them, which can read them."

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


def conditions(
    resource: Resource, snapshot: Snapshot, at_maximum_minutes: float
) -> list[LastingCondition]:
    """What is wrong at the time of the snapshot, the most severe first."""
    now, name, decided = snapshot.read_at, resource.name, snapshot.decided
    state = as_of(snapshot.state, now)
    declared, resource = resource.limits, within_plan(resource, state)
    found = [
        *_action(state, decided, now),
        *_plan(resource, state, declared, now),
        *_silent(resource, state, now),
        *_disabled(resource, state, now),
        *_unfallen(resource, state, now),
        *_refuted(resource, state, now),
        *_unhelpful(resource, state, now),
        *_unreadable(snapshot.unreadable),
        *_mode(resource, state, now),
    ]
    if decided is not None:
        found += _policy(decided)
        found += _late(resource, state, decided, now)
        found += _at_maximum(resource, state, decided, now, timedelta(minutes=at_maximum_minutes))
    return [
        replace(
            each,
            subject=f"{name}/{each.subject}".rstrip("/"),
            what=f"{name}: {each.what}",
            resource=name,
        )
        for each in sorted(found, key=lambda each: each.rank)
    ]


def state_unreadable(name: str, reason: str) -> LastingCondition:
    """The condition that a row of the state cannot be read, so that no other one is known."""
    what = f"{name}: the state cannot be read, so nothing is decided"
    todo = "Deploy the version of the app that wrote the row, or correct or delete it."
    return LastingCondition(name, ERROR, what, reason, todo, NewsKind.UNREADABLE, resource=name)


def _policy(decided: LogEntry) -> Iterator[LastingCondition]:
    if POLICY_UNANSWERED in decided.limited_by:
        what = "the policy does not answer, so the capacity is held"
        todo = "Find what the policy waits for, and restart the app."
        yield LastingCondition("", ERROR, what, decided.reason, todo, NewsKind.POLICY_UNANSWERED)
    elif decided.candidates and decided.candidates[0].rule == "error":
        yield LastingCondition(
            "", ERROR, decided.candidates[0].reason, todo="Fix scaling_rules.py."
        )


def _action(
    state: ScalingState, decided: LogEntry | None, now: datetime
) -> Iterator[LastingCondition]:
    """An action that is pending for long, or that was refused or ended too early although the
    policy still wants more."""
    desired, capacity = state.desired, known_capacity(state)
    wanted = decided.candidates[0].capacity if decided and decided.candidates else None
    if desired is None:
        return
    scaling, stood = f"scaling to {desired.requested} instances", now - desired.waiting_since
    still_wanted, told = not capacity or wanted != capacity.value, desired.last_error
    since, incomplete = f"{stood / timedelta(minutes=1):.0f} min", NewsKind.SCALING_INCOMPLETE
    if desired.status is ActionStatus.FAILED and still_wanted:
        why = told or "No reason was given."
        yield LastingCondition("", ERROR, f"{scaling} was refused", why, CHECK)
    elif desired.pending and stood > PENDING_MAX and desired.reached is None:
        what = f"{scaling} was requested {since} ago and is not confirmed"
        yield LastingCondition("", WARNING, what, told, CHECK)
    elif desired.pending and stood > PENDING_MAX:
        what = f"{scaling} reached {desired.reached} and has stood still for {since}"
        yield LastingCondition("", WARNING, what, told, CHECK, incomplete)
    elif desired.given_up is not None and not desired.pending and still_wanted:
        what = f"{scaling} ended at {desired.target}"
        yield LastingCondition("", WARNING, what, told, CHECK, incomplete)


def _plan(
    resource: Resource, state: ScalingState, declared: Limits, now: datetime
) -> Iterator[LastingCondition]:
    """What Azure says about the plan, and that few changes are left within the hour."""
    plan = state.plan or PlanFacts()
    if plan.unscalable:
        todo = "Choose a plan that the app may scale, or remove it from scaling_rules.py."
        yield LastingCondition(
            "plan", ERROR, f"{plan.unscalable}, so the app holds", "", todo, NewsKind.PLAN
        )
    if plan.autoscale:
        todo = "Disable or delete the autoscale setting, or remove the plan from scaling_rules.py."
        meaning = "Each undoes the changes of the other."
        if plan.unlisted:
            meaning += f" It may be gone by now: it cannot be listed ({plan.unlisted})."
        yield LastingCondition("autoscale", WARNING, plan.autoscale, meaning, todo, NewsKind.PLAN)
    for note in plan.notes(declared):
        yield LastingCondition("plan", INFO, note)
    none_left = few_changes_left(resource, state.desired, now, 0)
    if why := none_left or few_changes_left(resource, state.desired, now):
        yield LastingCondition("", WARNING, why, todo="Lengthen the cooldowns.")


def _silent(resource: Resource, state: ScalingState, now: datetime) -> Iterator[LastingCondition]:
    """Metrics without recent samples, and clocks that differ. Operators are notified of a metric
    that never had a sample once the first sample of any other metric is old enough."""
    first = [each.samples[0].time for each in state.histories.values() if each.samples]
    silent = silences(resource, state, now)
    for name, effect in silent.items():
        samples = samples_of(state, name)
        since = samples[-1].time if samples else min(first, default=now)
        seconds = (now - since).total_seconds()
        is_told = seconds > silent_after_seconds(resource, name)
        lasting = f"for {seconds / 60:.0f} min" if is_told else "yet"
        kind = NewsKind.SOURCE_STALE if is_told else None
        yield LastingCondition(name, WARNING, f"no sample of {name} {lasting}", effect, CHECK, kind)
    read = [name for name, source in resource.metrics.items() if not source.pushed]
    ages = [_age_seconds(state, name, now) for name in (CAPACITY_METRIC, *read)]
    if CAPACITY_METRIC not in silent and ages[0] - min(ages) > CAPACITY_SECONDS_MAX:
        what = f"no sample of {CAPACITY_METRIC} for {ages[0] / 60:.0f} min"
        effect, kind = "Other sources have samples.", NewsKind.SOURCE_STALE
        yield LastingCondition(CAPACITY_METRIC, WARNING, what, effect, CHECK, kind)
    if difference := clocks.told(state):
        meaning = "Samples are dated by the clock of the storage account."
        yield LastingCondition("clock", WARNING, difference, meaning, kind=NewsKind.SOURCE_STALE)


def _disabled(resource: Resource, state: ScalingState, now: datetime) -> Iterator[LastingCondition]:
    what, is_all = standstill(resource, state, now)
    if what:
        meaning = "The rules hold the capacity." if is_all else "The rules do not scale in."
        todo = "Make it active once the reason for disabling it has passed."
        kind = NewsKind.ENTITY_DISABLED
        what = f"{what}, so nothing can be received from it"
        yield LastingCondition("entity", WARNING, what, meaning, todo, kind)


def _age_seconds(state: ScalingState, name: str, now: datetime) -> float:
    samples = samples_of(state, name)
    return (now - samples[-1].time).total_seconds() if samples else math.inf


def _late(
    resource: Resource, state: ScalingState, decided: LogEntry, now: datetime
) -> Iterator[LastingCondition]:
    age, capacity = age_minutes(decided.evidence), known_capacity(state)
    if age is None or age <= resource.goal.age_limit_minutes or now - decided.time > RECENT:
        return
    what, maximum = "the oldest item has waited longer than the age limit", resource.limits.maximum
    if capacity and capacity.value >= maximum:
        what = f"{what}, at the maximum of {maximum} instances"
        todo = f"{_more(resource, state)}, or find out why the instances are slow."
        yield LastingCondition("", ERROR, what, todo=todo)
    else:
        yield LastingCondition("", WARNING, what)


def _at_maximum(
    resource: Resource, state: ScalingState, decided: LogEntry, now: datetime, lasting: timedelta
) -> Iterator[LastingCondition]:
    """The condition that the resource has long been at its maximum and the policy recommends no
    less. The first sample of a run of equal capacities is always kept."""
    limits, samples = resource.limits, samples_of(state, CAPACITY_METRIC)
    at_maximum = list(takewhile(lambda each: each.value >= limits.maximum, reversed(samples)))
    if not at_maximum or now - at_maximum[-1].time < lasting:
        return
    if held_at_maximum(decided.current, decided.candidates, limits):
        minutes = (now - at_maximum[-1].time) / timedelta(minutes=1)
        policy = decided.candidates[0]
        what = f"at its maximum of {limits.maximum} for {minutes:.0f} min"
        meaning = f"The policy recommends {policy.capacity}: {policy.reason}"
        todo = f"{_more(resource, state)}, or find the cause of the load."
        yield LastingCondition("", WARNING, what, meaning, todo, NewsKind.AT_MAXIMUM)


def _more(resource: Resource, state: ScalingState) -> str:
    """How to allow more instances than the maximum."""
    is_tier = state.plan is not None and resource.limits.maximum >= state.plan.maximum
    return "Choose a larger tier" if is_tier else "Raise the maximum"


def _unfallen(resource: Resource, state: ScalingState, now: datetime) -> Iterator[LastingCondition]:
    for each in unfallen(resource, state):
        meaning = _waiting(resource, state, each, now)
        yield LastingCondition(
            each.stall.metric, WARNING, each.text, *meaning, kind=NewsKind.BACKLOG_UNFALLEN
        )


def _waiting(
    resource: Resource, state: ScalingState, found: Unfallen, now: datetime
) -> tuple[str, str]:
    """How long the items of a backlog may have waited, and what to check: nothing if the capacity
    cannot rise, because the backlog may then not fall although all instances work."""
    oldest_at, capacity = found.stall.oldest_at, known_capacity(state)
    waited = (
        f"The oldest item arrived at {oldest_at:%Y-%m-%d %H:%M} UTC or later." if oldest_at else ""
    )
    fixed = effective_mode(resource, state, now)[0] is not Mode.ACTIVE
    if fixed or (capacity is not None and capacity.value >= resource.limits.maximum):
        return waited, ""
    if not found.none_finished:
        cause = "Either more work arrives than the instances finish, or they do not work."
        waited = f"{waited} {cause}".lstrip()
    return waited, "Check that the instances process items."


def _refuted(resource: Resource, state: ScalingState, now: datetime) -> Iterator[LastingCondition]:
    if what := contradiction(resource.throughput, state.learned, now):
        meaning = "Decisions use what is seen until the setting is changed."
        todo = "Correct rate_per_instance_minute, or set trust_rate=True to use it all the same."
        yield LastingCondition("rate", WARNING, what, meaning, todo, NewsKind.RATE_REFUTED)


def _unhelpful(
    resource: Resource, state: ScalingState, now: datetime
) -> Iterator[LastingCondition]:
    estimate = rate_estimate(resource.throughput, state.learned)
    found = estimate and estimate.unhelpful
    if found and found.lasts(resource.guards.nothing_finished_seconds, now):
        meaning = "The limit lies behind the instances, so no more are added."
        todo = "Find what they wait for, such as a database."
        kind = NewsKind.SCALING_UNHELPFUL
        yield LastingCondition("instances", WARNING, str(found), meaning, todo, kind)


def _unreadable(rows: Sequence[str]) -> Iterator[LastingCondition]:
    if rows:
        what = f"decisions ignore {len(rows)} row(s) that cannot be read"
        yield LastingCondition("", WARNING, what, "; ".join(rows), DEPLOY, NewsKind.UNREADABLE)


def _mode(resource: Resource, state: ScalingState, now: datetime) -> Iterator[LastingCondition]:
    """Copies of the app with different rules, and an override or a mode other than active.
    Operators are not notified of old copies during a deployment."""
    rules, beside = state.rules, told(state.rules, now)
    if rules is not None and beside:
        what = "copies of the app run with different rules"
        todo = "If no deployment is under way, stop that copy."
        kind = NewsKind.RULES_DIFFER if now - rules.activated_at > DEPLOYMENT else None
        yield LastingCondition("", WARNING, what, beside, todo, kind)
    mode, reason = effective_mode(resource, state, now)
    if override := effective_override(state, now):
        what = f"{described(override)} ({override.reason})"
        yield LastingCondition("", INFO, what, "An operator's override is in force.")
    elif mode is Mode.DRY_RUN:
        what = "dry run: decisions are logged, but the capacity does not change"
        yield LastingCondition("", INFO, what, todo="Set DryRun to false to let the app scale.")
    elif mode is not Mode.ACTIVE:
        yield LastingCondition("", INFO, f"{mode}: nothing is decided", reason)


def silences(resource: Resource, state: ScalingState, now: datetime) -> dict[str, str]:
    """The capacity and the metrics that are silent, each with the effect on decisions."""
    return {
        name: _meanwhile(resource, state, name, now)
        for name in (CAPACITY_METRIC, *resource.metrics)
        if _age_seconds(state, name, now) > silent_after_seconds(resource, name)
    }


def silent_after_seconds(resource: Resource, name: str) -> float:
    """The age of the newest sample, in seconds, at which the metric counts as silent."""
    guards, source = resource.guards, resource.source(name)
    if name == CAPACITY_METRIC:
        return max(guards.missing_for(name).after_seconds, CAPACITY_SECONDS_MAX)
    if name == resource.throughput.counted_metric and name not in guards.missing_by_metric:
        return math.inf if source.series else resource.kept_history_seconds
    return guards.missing_for(name).after_seconds + float(source.usual_lag_seconds)


def _meanwhile(resource: Resource, state: ScalingState, name: str, now: datetime) -> str:
    mode, _ = effective_mode(resource, state, now)
    if mode is Mode.PAUSED:
        return "The resource is paused, so no decision is made."
    if known_capacity(state) is None:
        cause = "was never read" if name == CAPACITY_METRIC else "is not known"
        return f"The capacity of the plan {cause}, so no decision is made."
    if name == CAPACITY_METRIC:
        return "The plan cannot be read, so decisions use its last known capacity."
    if name == resource.throughput.counted_metric:
        return (
            "Decisions do not use this metric. Meanwhile the rate per instance stays as it is set "
            "or was counted before, or is estimated from the backlog."
        )
    override = effective_override(state, now)
    if override is not None and override.exact is not None:
        return "An override sets the capacity, so decisions do not use this metric."
    text = _effect(resource, state, name, now)
    if name == resource.guards.breaker_metric:
        text += " Whether the circuit breaker is open is unknown, so it does not prevent scale-out."
    if mode is Mode.DRY_RUN:
        text += " This is a dry run, so only what is logged changes."
    return text


def _effect(resource: Resource, state: ScalingState, name: str, now: datetime) -> str:
    rule = resource.guards.missing_for(name)
    waited = waited_seconds(samples_of(state, CAPACITY_METRIC), now)
    if isinstance(rule.then, int) and not samples_of(state, name) and waited <= rule.after_seconds:
        after = f"{rule.after_seconds:g} s after the first one of the capacity"
        return f"The resource is not scaled in until a sample arrives, or until {after}."
    return {
        "hold_in": "The resource is not scaled in meanwhile.",
        "hold": "The capacity does not change meanwhile.",
    }.get(
        str(rule.then),
        "The resource is not scaled in meanwhile. With fewer instances, the capacity falls back to "
        f"{rule.then}, within the limits.",
    )
