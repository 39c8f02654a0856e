"""The nearest counterfactual: at which level of a metric the decision would have been another.

Not what the rule alone would have wanted: the whole decision is taken again, guards and all, with
samples at another level, and the level where it turns is found by bisection. That is some thirty
decisions a metric: for the log, not for every replayed minute (``bench decide`` measures it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from shared.autoscaling.deciding.decide import decide
from shared.autoscaling.deciding.observing import window_start
from shared.autoscaling.measurements import MetricValue
from shared.autoscaling.policies.members import members
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import Decision, History, ScalingState

METRICS_MAX = 4
"""Of a rule that reads more, only the first so many are asked about."""
STRIDES_MAX = 10
STRIDE = 4.0
"""Upwards it looks at four times the level, at sixteen times and so on, up to a million times."""
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
    if wish.rule == "error":
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
    named = getattr(resource.policy, "metric_names", ()) or tuple(resource.metrics)
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
    level = history.samples[-1].value

    def desired(at: float) -> int | None:
        samples = history.samples[:changed] + tuple(
            [MetricValue(sample.time, at) for sample in history.samples[changed:]]
        )
        asked = state.with_history(name, History(samples))
        return decide(resource, asked, decision.time).desired

    def same(at: float) -> bool:
        return desired(at) == decision.desired

    upwards = [max(level, 1.0) * STRIDE**stride for stride in range(1, STRIDES_MAX + 1)]
    for sign, strides in (("<", [0.0] if level > 0 else []), (">", upwards)):
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
        if getattr(member, "follows_course", False) and getattr(member, "metric", "") == name:
            return len(samples) - 1
    start = window_start(resource, state, decision.time)
    return sum(1 for sample in samples if sample.time < start)


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
