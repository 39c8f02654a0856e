"""Asking a rule: the user's code, whatever it does, must not stop the others."""

from __future__ import annotations

from collections.abc import Mapping

from shared.autoscaling.policy import Observation, Policy, Recommendation

REASON_LENGTH_MAX = 500
"""Of what a rule says about itself; the decision log has its limits."""

CAPACITY_MAX = 10**6
"""A larger wish is a mistake, and too large a number for other arithmetic."""


def ask(policy: Policy, seen: Observation) -> Recommendation:
    """What the rule wants; where it fails, the present capacity with its error."""
    try:
        wish = policy(seen)
        fault = _fault(wish)
    except (Exception, SystemExit) as error:
        fault = f"raised {type(error).__name__}: {error}"
    if fault is None:
        return wish
    said = f"the rule {fault}"[:REASON_LENGTH_MAX]
    return Recommendation(seen.capacity, f"{said}; holding", "error", {"error": said})


def _fault(wish: object) -> str | None:
    """What keeps an answer from being a recommendation that can be carried out and logged."""
    if not isinstance(wish, Recommendation) or type(wish.capacity) is not int:
        return f"answered {wish!r} instead of a Recommendation with a whole capacity"
    if not -CAPACITY_MAX <= wish.capacity <= CAPACITY_MAX:
        return f"wants more than {CAPACITY_MAX} instances either way"
    if not isinstance(wish.reason, str) or not isinstance(wish.rule, str):
        return f"gave {wish.reason!r} as reason of {wish.rule!r}: both must be text"
    if type(wish.evidence) is not dict and not isinstance(wish.evidence, Mapping):
        return f"gave {wish.evidence!r} as evidence: a mapping is needed"
    if not isinstance(wish.counterfactual, str):
        return f"gave {wish.counterfactual!r} as counterfactual: text is needed"
    if wish.candidates != () and not _recommendations(wish.candidates):
        return f"gave {wish.candidates!r} as candidates: a tuple of Recommendation is needed"
    return None


def _recommendations(candidates: object) -> bool:
    return isinstance(candidates, tuple) and all(isinstance(c, Recommendation) for c in candidates)
