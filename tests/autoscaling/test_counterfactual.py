"""What would have changed a decision: the whole decision, not only what the rule wanted."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from shared.autoscaling import (
    BacklogTarget,
    Cooldown,
    Guards,
    Limits,
    Missing,
    Mode,
    Observation,
    PolicyFunction,
    QueueAge,
    RateLimit,
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
from tests.builders import NOW, SOURCE, confirmed, history, metric, resource, state

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


def test_a_level_far_below_the_present_one_is_found() -> None:
    text = told(resource(policy=Threshold("backlog", 100, 10)), state([50_000] * 6)).counterfactual
    assert text.startswith("would have stayed at backlog < ")
    assert float(text.split()[-1]) == pytest.approx(100, rel=0.02)


@pytest.mark.parametrize("newest", [0.0, 10.0, 99.0, 5_000.0])
def test_what_is_said_of_a_rule_that_reads_the_mean_is_true_of_the_window(newest: float) -> None:
    found = resource(policy=Threshold("backlog", 100, 10))
    decision = told(found, state([300.0] * 5 + [newest]))
    match = re.search(
        r"would have (\w+( \w+)?) at backlog ([<>]) ([\d.]+)", decision.counterfactual
    )
    assert match, decision.counterfactual
    beyond = float(match[4]) * (1.05 if match[3] == ">" else 0.95)
    changed = told(found, state([beyond] * 6))
    assert changed.desired != decision.desired


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


def levels_asked(
    resource_of: Callable[[PolicyFunction], Resource], held: ScalingState
) -> list[set[float]]:
    """The levels in the window, each time that a rule is asked what it would have wanted."""
    asked = list[set[float]]()

    def steady(seen: Observation) -> Recommendation:
        asked.append({sample.value for sample in seen.window("backlog").samples})
        return Recommendation(seen.capacity, "always")

    found = resource_of(steady)
    decision = decide(found, held, NOW)
    asked.clear()
    assert explained(found, held, decision).counterfactual == ""
    return asked


@pytest.mark.parametrize(("level", "least"), [(50.0, 50.0), (0.5, 1.0), (0.0, 1.0)])
def test_upwards_it_looks_at_four_times_the_level_and_at_sixteen_up_to_a_million(
    level: float, least: float
) -> None:
    asked = levels_asked(lambda rule: resource(policy=rule), state([level] * 3))
    assert [at for at in asked if min(at) > level] == [{least * 4**n} for n in range(1, 11)]
    assert any(min(at) < level for at in asked) is (level > 0)
    assert all(min(at) != level for at in asked)


def test_a_level_is_that_of_all_samples_that_count_and_of_no_other() -> None:
    distinct = [float(value) for value in range(101, 111)]
    held = state(distinct)
    samples = held.histories["backlog"].samples
    asked = levels_asked(
        lambda rule: resource(policy=rule, window_seconds=(NOW - samples[4].time).seconds), held
    )
    assert asked
    assert all(len(at) == 1 for at in asked)


def above(**levels: float) -> PolicyFunction:
    """Out by one where any metric is above its level."""

    def rule(seen: Observation) -> Recommendation:
        values = {name: seen.window(name).latest for name in levels}
        out = any(value and value.value > levels[name] for name, value in values.items())
        return Recommendation(seen.capacity + out, "out above a level")

    return rule


@pytest.mark.parametrize(
    ("level", "turn"), [(100, 101), (0.5, 0.508), (0, 3), (100, 51), (1.9, 0.963)]
)
def test_the_level_that_is_named_is_the_right_one_to_about_a_hundredth(
    level: float, turn: float
) -> None:
    text = told(resource(policy=above(backlog=turn)), state([level] * 3)).counterfactual
    assert float(text.split()[-1]) == pytest.approx(turn, rel=0.011)


@pytest.mark.parametrize(
    ("backlog", "other", "named"),
    [((1000, 1100), (10, 20), "backlog"), ((0, 3), (10, 30), "other")],
)
def test_of_several_metrics_the_one_that_had_the_least_way_to_go_for_its_size_is_named(
    backlog: tuple[float, float], other: tuple[float, float], named: str
) -> None:
    """A level of 0 counts as 1."""
    found = resource(
        policy=above(backlog=backlog[1], other=other[1]),
        metrics={"backlog": SOURCE, "other": SOURCE},
    )
    held = state([backlog[0]] * 3).with_history("other", history([other[0]] * 3))
    assert told(found, held).counterfactual.startswith(f"would have scaled out at {named} > ")


def test_only_the_metrics_that_a_rule_reads_are_asked_about_however_many_there_are() -> None:
    others = dict.fromkeys([f"metric{i}" for i in range(9)], SOURCE)
    found = resource(policy=Threshold("backlog", 100, 10), metrics={**others, "backlog": SOURCE})
    held = state([70.0] * 6)
    for name in others:
        held = held.with_history(name, history([70.0] * 6))
    assert " at backlog " in told(found, held).counterfactual


def test_every_guard_that_stood_in_the_way_is_named() -> None:
    found = resource(
        policy=lambda _: Recommendation(9, "always nine"),
        limits=ROOMY,
        guards=Guards(rate_limits=(RateLimit("out", 600, instances=1),)),
    )
    resting = state([50.0] * 3, 2, confirmed(120, target=2, changed_out=True))
    assert told(found, resting).counterfactual == (
        "would have scaled out without rate_limits, cooldown"
    )


def test_a_dry_run_decides_the_same_so_it_is_not_what_would_have_to_change() -> None:
    found = resource(
        policy=lambda seen: Recommendation(seen.capacity + 1, "always more"), mode=Mode.DRY_RUN
    )
    decision = told(found, state([50.0] * 3))
    assert (decision.limited_by, decision.counterfactual) == (("dry_run",), "")
