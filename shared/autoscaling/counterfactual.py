"""The nearest counterfactual: at which level of its metrics a rule would have wanted otherwise.

For any Python function: the rule is asked again with all samples of one metric at one level, and
the level where its answer turns is found by bisection. Rules that know it say so themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shared.autoscaling.model import Observation, Policy, Recommendation, Window

DOUBLINGS_MAX = 6
HALVINGS = 7
"""To within one per cent of the distance: enough for an explanation."""


def nearest(policy: Policy, seen: Observation, wish: Recommendation) -> str:
    """Such as "would have scaled in at backlog < 120"; empty where no level would have."""
    if wish.rule == "error":
        return ""
    found = []
    for name, window in seen.metrics.items():
        if window.latest is None:
            continue
        for turn in _turns(policy, seen, wish, name, window.latest.value):
            distance = abs(turn[0] - window.latest.value) / (abs(window.latest.value) or 1)
            found.append((distance, turn[1]))
    return min(found)[1] if found else ""


def _turns(
    policy: Policy, seen: Observation, wish: Recommendation, name: str, level: float
) -> list[tuple[float, str]]:
    """Below and above the present level: where the direction turns, and how to say it."""

    def direction(at: float) -> int:
        return _direction(_ask(policy, _with_level(seen, name, at)), seen)

    present = _direction(wish.capacity, seen)
    turns = []
    for sign, far in (("<", 0.0), (">", max(level, 1.0) * 2**DOUBLINGS_MAX)):
        if direction(far) != present:
            at = _bisect(direction, present, level, far)
            turns.append((at, f"would have {VERBS[direction(at)]} at {name} {sign} {at:.3g}"))
    return turns


VERBS = {-1: "scaled in", 0: "stayed", 1: "scaled out"}


def _bisect(direction: Callable[[float], int], present: int, near: float, far: float) -> float:
    for _ in range(HALVINGS):
        middle = (near * far) ** 0.5 if near > 0 and far > 0 else (near + far) / 2
        if direction(middle) == present:
            near = middle
        else:
            far = middle
    return far


def _ask(policy: Policy, seen: Observation) -> int:
    try:
        return policy(seen).capacity
    except Exception:  # a level that the rule never had to deal with
        return seen.capacity


def _direction(wish: int, seen: Observation) -> int:
    """Of what the limits leave of a wish: at the maximum nothing would have scaled out."""
    capacity = min(max(wish, seen.limits.minimum), seen.limits.maximum)
    return (capacity > seen.capacity) - (capacity < seen.capacity)


def _with_level(seen: Observation, name: str, level: float) -> Observation:
    def at_level(window: Window) -> Window:
        return Window(tuple([replace(s, value=level) for s in window.samples]))

    metrics = {**seen.metrics, name: at_level(seen.metrics[name])}
    latest = seen.history(name).samples[-1:]
    histories = {**seen.histories, name: at_level(Window(latest))}
    return replace(seen, metrics=metrics, histories=histories)
