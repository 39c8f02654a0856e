"""Explain a decision by the smallest change of a metric that would have led to a different one.

The search sets the samples of one metric to another level and decides again. It looks for the level
nearest to the present one at which the decision is different. That asks the policy dozens of times,
so only changes and previews are explained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from shared.autoscaling.backlogs import unfallen
from shared.autoscaling.deciding.decide import (
    REVOKED,
    Decision,
    allowed,
    decide,
    effective_override,
    refusals,
)
from shared.autoscaling.deciding.guards import GUARDS, Context, already_requested
from shared.autoscaling.deciding.samples import observe, window_start
from shared.autoscaling.lag import lag_of
from shared.autoscaling.measurements import MetricValue, Window
from shared.autoscaling.policy import Resource, members, said
from shared.autoscaling.state import ScalingState

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


def explained(
    resource: Resource,
    state: ScalingState,
    decision: Decision,
    given_up: Callable[[], bool] = lambda: False,
) -> Decision:
    """The decision with its counterfactual, such as "would have scaled in at backlog < 120".

    The search asks the policy up to a hundred times. It ends with TimeoutError if ``given_up`` says
    that nobody waits for it any more.

    ``state`` is the state that led to the decision. If no level of a metric would have changed the
    decision, the counterfactual names the guards that limited the capacity: "would have scaled out
    to 6 without rate_limits". If no guard limited it, the counterfactual is empty.
    """
    if decision.current is None or not decision.candidates:
        return decision
    recommendation = decision.candidates[0]
    if recommendation.failed:
        return decision

    def decided(varied: ScalingState) -> int | None:
        if given_up():
            raise TimeoutError
        return decide(resource, varied, decision.time).desired

    names = _varied(resource)
    turns = [t for name in names for t in _turns(resource, state, decision, name, decided)]
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
    still = unfallen(resource, state)
    context = Context(resource, state, seen, override, recommendation, unfallen=still)
    absent = set(decision.limited_by)
    revoked = state.desired if REVOKED in absent else None
    if revoked is not None:
        absent |= {name for name, _ in refusals(revoked.target, context)}
    for _ in GUARDS:
        without = ", ".join(each.__name__ for each in GUARDS if each.__name__ in absent)
        further: list[str] = []
        capacity = allowed(recommendation.capacity, context, GUARDS, [], further, absent)
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
    names = said(resource.policy, "metric_names") or tuple(resource.metrics)
    return tuple(name for name in names if name in resource.metrics)[:METRICS_MAX]


def _turns(
    resource: Resource,
    state: ScalingState,
    decision: Decision,
    name: str,
    decided: Callable[[ScalingState], int | None],
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
        return decided(state.with_history(name, Window(samples)))

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
        if said(member, "followed_metric") == name:
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
