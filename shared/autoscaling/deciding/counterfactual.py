"""Explains a decision by the smallest change of a metric that would have led to a different one.

The search sets the samples of one metric to another level and decides again. That asks the policy
dozens of times, so only changes and previews are explained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from statistics import fmean

from shared.autoscaling.azure_monitor.lag import lag_of
from shared.autoscaling.deciding.decide import (
    REVOKED,
    Decision,
    allowed,
    decide,
    effective_override,
    refusals,
)
from shared.autoscaling.deciding.guards import GUARDS, Context, already_requested
from shared.autoscaling.deciding.levels import Outcome, TurningLevel, turning_levels
from shared.autoscaling.deciding.samples import observe, window_start
from shared.autoscaling.learning.backlogs import unfallen
from shared.autoscaling.policy import Resource, members, said
from shared.autoscaling.state import ScalingState
from shared.values.measurements import MetricValue, Window

METRICS_MAX = 4
"""At most this many metrics are searched: the first ones that the policy reads."""
SHARE_MAX = 100.0
"""The highest value of a share in percent."""
PLAUSIBLE_FACTOR, PLAUSIBLE = 100, 1000.0
"""No level is named that exceeds both this many times the highest kept value and this number."""


def explained(
    resource: Resource,
    state: ScalingState,
    decision: Decision,
    given_up: Callable[[], bool] = lambda: False,
) -> Decision:
    """The decision with its counterfactual, such as "would have scaled in at backlog < 120".

    ``state`` is the state that led to the decision. If no level would have changed it, the text
    names the guards that limited it, if any: "would have scaled out to 6 without rate_limits". The
    search asks the policy up to a hundred times. It ends with TimeoutError if ``given_up`` says
    that nobody waits for it any more.
    """
    if decision.current is None or not decision.candidates:
        return decision
    recommendation = decision.candidates[0]
    if recommendation.failed:
        return decision

    def decided(varied: ScalingState) -> Decision:
        if given_up():
            raise TimeoutError
        return decide(resource, varied, decision.time)

    read = said(resource.policy, "metric_names") or tuple(resource.metrics)
    names = [name for name in read if name in resource.metrics][:METRICS_MAX]
    turns = [
        (turn, name) for name in names for turn in _turns(resource, state, decision, name, decided)
    ]
    if turns:
        turn, name = min(turns, key=lambda each: each[0].distance)
        text = f"would have {_changed(decision, turn.decided)} at {name} {turn}"
    elif decision.limited_by and recommendation.capacity != decision.desired:
        text = _without_guards(resource, state, decision, decision.current)
    else:
        text = ""
    return replace(decision, counterfactual=text)


def _without_guards(
    resource: Resource, state: ScalingState, decision: Decision, current: int
) -> str:
    """Describe the decision without the guards that limited it. If a later guard imposes the same
    limit, it is skipped as well, and the text names it."""
    recommendation, override = decision.candidates[0], effective_override(state, decision.time)
    seen = observe(resource, state, current, decision.time)
    still = unfallen(resource, state)
    context = Context(resource, state, seen, override, recommendation, unfallen=still)
    absent = set(decision.limited_by)
    revoked = state.desired if REVOKED in absent else None
    if revoked is not None:
        absent |= {name for name, _ in refusals(revoked.target, context)}
    for _ in GUARDS:
        without = ", ".join(each.__name__ for each in GUARDS if each.__name__ in absent)
        further: list[str] = []
        capacity = allowed(recommendation.capacity, context, [], further, absent)
        kept = already_requested.__name__ in further or not recommendation.paced
        if revoked is not None and capacity == current and kept:
            return f"would have kept the pending action (target {revoked.target}) without {without}"
        if capacity != decision.desired:
            to = "at" if capacity == current else "to"
            return f"would have {_verb(current, capacity)} {to} {capacity} without {without}"
        if not further:
            return ""
        absent.update(further)
    return ""


def _turns(
    resource: Resource,
    state: ScalingState,
    decision: Decision,
    name: str,
    decided: Callable[[ScalingState], Decision],
) -> Iterator[TurningLevel]:
    """The nearest turning levels below and above the present level of one metric. A level at which
    the policy fails is no turning level."""
    history = state.histories.get(name)
    if history is None or not history.samples:
        return
    first_varied = _first_varied(resource, state, decision, name)

    @cache
    def outcome(at: float) -> int | None:
        samples = history.samples[:first_varied] + tuple(
            [replace(sample, value=at) for sample in history.samples[first_varied:]]
        )
        varied = state.with_history(name, Window(samples))
        other = decided(varied)
        failed = other.candidates and other.candidates[0].failed
        return None if failed or other.desired == decision.desired else other.desired

    level = _level(history.samples[first_varied:], outcome)
    if level is not None:
        whole = all(sample.value % 1 == 0 for sample in history.samples)
        highest = _highest(resource, name, history)
        yield from turning_levels(outcome, level, highest, whole=whole)


def _highest(resource: Resource, name: str, history: Window) -> float:
    """No value of the metric can be higher, or is to be expected to be higher."""
    highest, seen = resource.source(name).highest, max(sample.value for sample in history.samples)
    if highest is None and name in said(resource.policy, "utilisation_names"):
        highest = SHARE_MAX
    if highest is not None:
        return max(float(highest), seen)
    return max(PLAUSIBLE, PLAUSIBLE_FACTOR * seen)


def _first_varied(resource: Resource, state: ScalingState, decision: Decision, name: str) -> int:
    """The index of the first sample that the search sets to another level: that of the window, or
    only the newest one if the policy follows the course of the metric."""
    samples = state.histories[name].samples
    for member in members(resource.policy):
        if said(member, "followed_metric") == name:
            return len(samples) - 1
    lag = lag_of(resource.source(name), state.histories[name], decision.time)
    start = window_start(resource, state, decision.time, lag)
    return sum(1 for sample in samples if sample.time < start)


def _level(samples: Sequence[MetricValue], outcome: Outcome) -> float | None:
    """The level from which the search starts: the newest value, or else the mean. With it in all
    samples, the decision must be the actual one; None if neither leads to it."""
    values = [sample.value for sample in samples]
    if len(set(values)) == 1:
        return values[0]
    if not values:
        return None
    return next((at for at in (values[-1], fmean(values)) if outcome(at) is None), None)


def _changed(decision: Decision, desired: int) -> str:
    """Describe an alternative decision by its direction. If the actual decision has the same
    direction, add the capacity of the alternative."""
    verb = _verb(decision.current, desired)
    return f"{verb} to {desired}" if verb == _verb(decision.current, decision.desired) else verb


def _verb(current: int | None, desired: int | None) -> str:
    if current is None or desired is None or desired == current:
        return "stayed"
    return "scaled out" if desired > current else "scaled in"
