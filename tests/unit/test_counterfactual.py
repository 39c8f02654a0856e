from __future__ import annotations

import pytest

from shared.autoscaling import Observation, Recommendation
from shared.autoscaling.decide import decide, explained
from tests.builders import NOW, resource, state


def each(seen: Observation) -> Recommendation:
    """Out above 60 for each instance, in below 30."""
    latest = seen.window("backlog").latest
    if latest is None:
        return Recommendation(seen.capacity, "no samples")
    share = latest.value / seen.capacity
    change = (share > 60) - (share < 30)
    return Recommendation(seen.capacity + change, "a rule of one's own")


@pytest.mark.parametrize(
    ("backlog", "said", "level"),
    [
        (70, "would have scaled in at backlog <", 60),
        (110, "would have scaled out at backlog >", 120),
        (130, "would have stayed at backlog <", 120),
        (50, "would have stayed at backlog >", 60),
    ],
)
def test_any_rule_is_explained_by_where_it_would_have_turned(
    backlog: float, said: str, level: float
) -> None:
    found, held = resource(policy=each), state([backlog] * 3, 2)
    text = explained(found, held, decide(found, held, NOW)).counterfactual
    assert text.startswith(said)
    assert float(text.split()[-1]) == pytest.approx(level, rel=0.03)


def test_a_rule_that_no_level_changes_has_no_counterfactual() -> None:
    always = resource(policy=lambda seen: Recommendation(seen.capacity, "always"))
    decision = explained(always, state([50]), decide(always, state([50]), NOW))
    assert decision.counterfactual == ""


def test_a_rule_that_only_knows_the_levels_it_met_is_still_explained_or_left_alone() -> None:
    def picky(seen: Observation) -> Recommendation:
        latest = seen.window("backlog").latest
        if latest is None or latest.value > 100:
            raise ValueError("never seen that")
        return Recommendation(seen.capacity, "fine")

    found = resource(policy=picky)
    decision = explained(found, state([50]), decide(found, state([50]), NOW))
    assert (decision.desired, decision.counterfactual) == (2, "")


def test_nothing_is_said_to_have_led_beyond_the_limits() -> None:
    found, held = resource(policy=each), state([20] * 3, 1)
    text = explained(found, held, decide(found, held, NOW)).counterfactual
    assert text.startswith("would have scaled out at backlog >")
