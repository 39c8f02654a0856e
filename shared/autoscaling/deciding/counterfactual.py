"""Explains a decision by the smallest change of a metric that would have led to a different one.

The search sets the samples of one metric to another level and decides again. That asks the policy
dozens of times, so only changes and previews are explained.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import floor
from statistics import fmean

from shared.autoscaling.deciding.decide import (
    REVOKED,
    Decision,
    allowed,
    decide,
    effective_override,
    refusals,
)
from shared.autoscaling.deciding.guards import GUARDS, Context, already_requested
from shared.autoscaling.deciding.samples import lag_of, observe, window_start
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
    lag = lag_of(resource.source(name), samples, decision.time)
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


Outcome = Callable[[float], int | None]

STRIDES_MAX = 10
STRIDE = 4.0
"""The search multiplies and divides the present level by 4, 16, 64 and so on, and then tries 0."""
HALVINGS = 8
"""How many times a stride is bisected. Eight bisections find the level to about half a percent."""
BEYOND = 1e-6
"""A level is named only if the decision is another one just beyond it, by this share of it."""


@dataclass(frozen=True, slots=True)
class TurningLevel:
    """The level, the side of it on which the decision is another one, and that decision.
    ``distance`` is that from the present level, as a share of it."""

    sign: str
    level: float
    decided: int
    distance: float = 0.0

    def __str__(self) -> str:
        return f"{self.sign} {self.level:.15g}"


def turning_levels(
    outcome: Outcome, level: float, highest: float, *, whole: bool
) -> Iterator[TurningLevel]:
    """The nearest turning levels below and above ``level`` that can occur: from 0, below
    ``highest``, and whole numbers if the metric has no others."""
    directions = [] if level == 0 or outcome(0.0) is None else [_downwards(level, whole=whole)]
    for strides in (*directions, [max(level, 1.0) * each for each in FACTORS]):
        near = level
        for far in strides:
            if outcome(far) is not None:
                closest = _bisected(outcome, near, far, whole=whole)
                if found := _named(outcome, *closest, highest, whole=whole):
                    yield replace(found, distance=abs(found.level - level) / (level or 1.0))
                break
            near = far


FACTORS = [STRIDE**stride for stride in range(1, STRIDES_MAX + 1)]


def _downwards(level: float, *, whole: bool) -> list[float]:
    levels = [level / factor for factor in FACTORS]
    return [*(map(float, map(floor, levels)) if whole else levels), 0.0]


def _bisected(outcome: Outcome, near: float, far: float, *, whole: bool) -> tuple[float, float]:
    """Two levels closer together. At the first one, the decision is still the actual one."""
    for _ in range(HALVINGS):
        middle = (near * far) ** 0.5 if near > 0 and far > 0 else (near + far) / 2
        middle = float(round(middle)) if whole else middle
        if middle in (near, far):
            break
        near, far = (middle, far) if outcome(middle) is None else (near, middle)
    return near, far


def _named(
    outcome: Outcome, near: float, far: float, highest: float, *, whole: bool
) -> TurningLevel | None:
    """The roundest level beyond which the decision is another one; None if there is none."""
    below = far < near
    for level in _round_levels(near, far):
        if level >= highest and not below:
            continue
        if below and level <= (1 if whole else 0):
            decided = outcome(0.0)
            return None if decided is None else TurningLevel("=", 0.0, decided)
        decided = outcome(level * (1 - BEYOND) if below else level + (level or 1.0) * BEYOND)
        if decided is not None:
            return TurningLevel("<" if below else ">", level, decided)
    decided = outcome(highest) if whole and near == highest - 1 else None
    return None if decided is None else TurningLevel(">", near, decided)


def _round_levels(near: float, far: float) -> Iterator[float]:
    """Levels between the two with one to three digits, and then levels a little beyond ``far``."""
    onwards, back = decimal.ROUND_CEILING, decimal.ROUND_FLOOR
    if far < near:
        onwards, back = back, onwards
    for digits in (1, 2, 3):
        for level in (_rounded(near, digits, onwards), _rounded(far, digits, back)):
            if min(near, far) <= level <= max(near, far):
                yield level
    yield from (_rounded(far, digits, onwards) for digits in (3, 6, 15))


def _rounded(value: float, digits: int, rounding: str) -> float:
    context = decimal.Context(prec=digits, rounding=rounding)
    return float(context.create_decimal(repr(value)))
