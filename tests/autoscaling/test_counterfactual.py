"""What would have changed a decision: the whole decision, not only what the rule wanted."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from shared.autoscaling import (
    BacklogTarget,
    Cooldown,
    Guards,
    Limits,
    Missing,
    Observation,
    QueueAge,
    Recommendation,
    Resource,
    Threshold,
    Throughput,
    highest,
)
from shared.autoscaling.deciding.decide import Decision, decide, explained
from shared.autoscaling.measurements import MetricValue, Window
from shared.autoscaling.state import Override, ScalingState
from shared.autoscaling.transition import advance
from tests.builders import NOW, SOURCE, confirmed, metric, resource, state

ROOMY = Limits(1, 20)


def each(seen: Observation) -> Recommendation:
    """Out above 60 for each instance, in below 30."""
    latest = seen.window("backlog").latest
    if latest is None:
        return Recommendation(seen.capacity, "no samples")
    share = latest.value / seen.capacity
    change = (share > 60) - (share < 30)
    return Recommendation(seen.capacity + change, "a rule of one's own")


def told(found: Resource, held: ScalingState) -> Decision:
    return explained(found, held, decide(found, held, NOW))


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
    text = told(resource(policy=each), state([backlog] * 3, 2)).counterfactual
    assert text.startswith(said)
    assert float(text.split()[-1]) == pytest.approx(level, rel=0.03)


QUEUE_AGE = QueueAge("backlog", Threshold("backlog", 100, 10))
KNOWN = Throughput(100, 3)


@pytest.mark.parametrize(
    ("policy", "backlog", "changes"),
    [
        (each, [70.0] * 5, {}),
        (Threshold("backlog", 100, 10), [40.0] * 6, {}),
        (BacklogTarget("backlog"), [1500.0] * 6, {}),
        (highest(BacklogTarget("backlog"), each), [1500.0] * 6, {}),
        (QUEUE_AGE, [800.0] * 12, {}),
        (QUEUE_AGE, [200.0 * i for i in range(12)], {}),
        (QUEUE_AGE, [0.0] * 12, {}),
        (QUEUE_AGE, [800.0] * 12, {"override": Override(floor=6)}),
    ],
)
def test_what_is_said_is_true_of_the_decision(
    policy: Any, backlog: list[float], changes: dict[str, Any]
) -> None:
    """Just beyond the level that is named the decision is another, just before it the same."""
    found = resource(policy=policy, limits=ROOMY, throughput=KNOWN, cooldown=Cooldown(0, 0))
    held = state(backlog, 4, **changes)
    decision = told(found, held)
    match = re.fullmatch(r"would have .* at backlog ([<>]) ([\d.e+]+)", decision.counterfactual)
    assert match, decision
    level, beyond = float(match[2]), 1.05 if match[1] == ">" else 0.95
    follows = policy is QUEUE_AGE

    def desired(at: float) -> int | None:
        samples = held.histories["backlog"].samples
        changed = samples[-1:] if follows else samples
        moved = (*samples[: -len(changed)], *[MetricValue(s.time, at) for s in changed])
        asked = held.with_history("backlog", Window(moved))
        return decide(found, asked, NOW).desired

    assert desired(level * beyond) != decision.desired
    assert desired(level / beyond) == decision.desired


def test_a_guard_that_no_level_would_have_moved_is_named_instead() -> None:
    found = resource(policy=Threshold("backlog", 100, 10), limits=ROOMY)
    resting = state([500.0] * 6, 2, confirmed(120, target=2, changed_out=True))
    early = replace(resting, histories={**resting.histories, "backlog": _since_the_change()})
    decision = told(found, early)
    assert decision.desired == 2
    assert decision.counterfactual == "would have scaled out without cooldown"


def _since_the_change() -> Window:
    return Window(tuple(metric(500, seconds).value for seconds in (100, 80, 60, 40, 20)))


def test_missing_data_is_what_would_have_to_change() -> None:
    found = resource(
        policy=lambda _: Recommendation(1, "always one"),
        guards=Guards(missing=Missing(60)),
        metrics={"backlog": SOURCE, "other": SOURCE},
    )
    decision = told(found, state([5.0] * 3, 2))
    assert decision.counterfactual == "would have scaled in without missing_data"


def test_one_that_goes_further_in_the_same_direction_says_where_to() -> None:
    found = resource(policy=BacklogTarget("backlog"), limits=ROOMY, throughput=KNOWN)
    text = told(found, state([1500.0] * 6, 2)).counterfactual
    assert re.fullmatch(r"would have scaled out to [35] at backlog [<>] .*", text)


def test_the_samples_that_led_to_a_decision_explain_it_not_the_order_that_followed() -> None:
    found = resource(policy=Threshold("backlog", 100, 10), limits=ROOMY)
    step = advance(found, state([500.0] * 6, 2), metric(600, -20), NOW)
    assert step.decision is not None
    assert step.decision.applies
    assert step.decided_on is not None
    text = explained(found, step.decided_on, step.decision).counterfactual
    assert text.startswith("would have stayed at backlog < ")


def test_a_rule_that_no_level_changes_has_no_counterfactual() -> None:
    always = resource(policy=lambda seen: Recommendation(seen.capacity, "always"))
    assert told(always, state([50])).counterfactual == ""


def test_a_rule_that_only_knows_the_levels_it_met_is_still_explained_or_left_alone() -> None:
    def picky(seen: Observation) -> Recommendation:
        latest = seen.window("backlog").latest
        if latest is None or latest.value > 100:
            raise ValueError("never seen that")
        return Recommendation(seen.capacity, "fine")

    decision = told(resource(policy=picky), state([50]))
    assert (decision.desired, decision.counterfactual) == (2, "")


def test_nothing_is_said_to_have_led_beyond_the_limits() -> None:
    text = told(resource(policy=each), state([20] * 3, 1)).counterfactual
    assert text.startswith("would have scaled out at backlog >")


def test_explaining_asks_a_bounded_number_of_times() -> None:
    asked = []

    def counting(seen: Observation) -> Recommendation:
        asked.append(1)
        return each(seen)

    names = [f"metric{i}" for i in range(30)]
    found = resource(policy=counting, metrics={"backlog": SOURCE, **dict.fromkeys(names, SOURCE)})
    held = state([70.0] * 3)
    decision = decide(found, held, NOW)
    asked.clear()
    explained(found, held, decision)
    assert 0 < len(asked) <= 150
