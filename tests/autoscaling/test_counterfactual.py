"""The counterfactual of a decision: the nearest change that would have led to another one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.autoscaling import (
    AzureMonitorMetric,
    BacklogTarget,
    Cooldown,
    Guards,
    HubMetric,
    IngestionBreaker,
    Limits,
    Missing,
    Mode,
    Observation,
    PolicyFunction,
    QueueAge,
    RateLimit,
    Recommendation,
    Resource,
    TargetTracking,
    Threshold,
    Throughput,
    ValuePerInstance,
    highest,
)
from shared.autoscaling.deciding.counterfactual import explained
from shared.autoscaling.deciding.decide import Decision, decide
from shared.autoscaling.state import ActionStatus, Override, ScalingState
from shared.autoscaling.transition import advance
from shared.values.measurements import MetricValue, Window
from tests.builders import (
    NOW,
    SOURCE,
    ago,
    confirmed,
    desired,
    history,
    metric,
    resource,
    sample,
    state,
)

ROOMY = Limits(1, 20)


def each(seen: Observation) -> Recommendation:
    """Out above 60 for each instance, in below 30."""
    latest = seen.window("backlog").latest
    if latest is None:
        return Recommendation(seen.capacity, "no samples")
    share = latest.value / seen.capacity
    change = (share > 60) - (share < 30)
    return Recommendation(seen.capacity + change, "a custom rule")


def explain(declared: Resource, held: ScalingState) -> Decision:
    return explained(declared, held, decide(declared, held, NOW))


@pytest.mark.parametrize(
    ("backlog", "text", "level"),
    [
        (70, "would have scaled in at backlog <", 60),
        (110, "would have scaled out at backlog >", 120),
        (130, "would have stayed at backlog <", 120),
        (50, "would have stayed at backlog >", 60),
    ],
)
def test_the_counterfactual_names_the_level_at_which_a_custom_rule_decides_otherwise(
    backlog: float, text: str, level: float
) -> None:
    decision = explain(resource(policy=each), state([backlog] * 3, 2))
    assert decision.counterfactual.startswith(text)
    assert float(decision.counterfactual.split()[-1]) == pytest.approx(level, rel=0.03)


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
def test_the_decision_changes_just_beyond_the_named_level_and_not_before(
    policy: Any, backlog: list[float], changes: dict[str, Any]
) -> None:
    declared = resource(policy=policy, limits=ROOMY, throughput=KNOWN, cooldown=Cooldown(0, 0))
    held = state(backlog, 4, **changes)
    decision = explain(declared, held)
    match = re.fullmatch(r"would have .* at backlog ([<>]) ([\d.e+]+)", decision.counterfactual)
    assert match, decision
    level, beyond = float(match[2]), 1.05 if match[1] == ">" else 0.95
    follows = policy is QUEUE_AGE

    def desired(at: float) -> int | None:
        samples = held.histories["backlog"].samples
        changed = samples[-1:] if follows else samples
        moved = (*samples[: -len(changed)], *[MetricValue(s.time, at) for s in changed])
        asked = held.with_history("backlog", Window(moved))
        return decide(declared, asked, NOW).desired

    assert desired(level * beyond) != decision.desired
    assert desired(level / beyond) == decision.desired


def test_a_turning_point_far_below_the_present_level_is_found() -> None:
    text = explain(
        resource(policy=Threshold("backlog", 100, 10)), state([50_000] * 6)
    ).counterfactual
    assert text.startswith("would have stayed at backlog < ")
    assert float(text.split()[-1]) == pytest.approx(100, rel=0.02)


@pytest.mark.parametrize("newest", [0.0, 10.0, 99.0, 5_000.0])
def test_for_a_rule_that_reads_a_mean_the_named_level_is_that_of_the_whole_window(
    newest: float,
) -> None:
    declared = resource(policy=Threshold("backlog", 100, 10))
    decision = explain(declared, state([300.0] * 5 + [newest]))
    match = re.search(
        r"would have (\w+( \w+)?) at backlog ([<>]) ([\d.]+)", decision.counterfactual
    )
    assert match, decision.counterfactual
    beyond = float(match[4]) * (1.05 if match[3] == ">" else 0.95)
    changed = explain(declared, state([beyond] * 6))
    assert changed.desired != decision.desired


def test_the_counterfactual_names_the_guard_if_no_level_would_change_the_decision() -> None:
    declared = resource(policy=Threshold("backlog", 100, 10), limits=ROOMY)
    resting = state([500.0] * 6, 2, confirmed(120, target=2, changed_out=True))
    early = replace(resting, histories={**resting.histories, "backlog": _since_the_change()})
    decision = explain(declared, early)
    assert decision.desired == 2
    assert decision.counterfactual == "would have scaled out to 3 without cooldown"


def _since_the_change() -> Window:
    return Window(tuple(metric(500, seconds).value for seconds in (100, 80, 60, 40, 20)))


def test_the_counterfactual_names_missing_data_if_it_prevents_a_scale_in() -> None:
    declared = resource(
        policy=lambda _: Recommendation(1, "always one"),
        guards=Guards(missing=Missing(60)),
        metrics={"backlog": SOURCE, "other": SOURCE},
    )
    decision = explain(declared, state([5.0] * 3, 2))
    assert decision.counterfactual == "would have scaled in to 1 without missing_data"


def test_a_counterfactual_in_the_same_direction_names_the_other_capacity() -> None:
    declared = resource(policy=BacklogTarget("backlog"), limits=ROOMY, throughput=KNOWN)
    text = explain(declared, state([1500.0] * 6, 2)).counterfactual
    assert re.fullmatch(r"would have scaled out to [35] at backlog [<>] .*", text)


def test_a_decision_is_explained_on_the_state_before_it_was_requested() -> None:
    declared = resource(policy=Threshold("backlog", 100, 10), limits=ROOMY)
    step = advance(declared, state([500.0] * 6, 2), [metric(600, -20)], NOW)
    assert step.decision is not None
    assert step.decision.applies
    assert step.decided_on is not None
    text = explained(declared, step.decided_on, step.decision).counterfactual
    assert text.startswith("would have stayed at backlog < ")


def test_a_decision_that_no_level_would_change_has_no_counterfactual() -> None:
    always = resource(policy=lambda seen: Recommendation(seen.capacity, "always"))
    assert explain(always, state([50])).counterfactual == ""


def test_a_rule_that_raises_at_other_levels_has_no_counterfactual() -> None:
    def picky(seen: Observation) -> Recommendation:
        latest = seen.window("backlog").latest
        if latest is None or latest.value > 100:
            raise ValueError("unexpected level")
        return Recommendation(seen.capacity, "fine")

    decision = explain(resource(policy=picky), state([50]))
    assert (decision.desired, decision.counterfactual) == (2, "")


def test_the_counterfactual_at_the_minimum_is_never_a_scale_in() -> None:
    text = explain(resource(policy=each), state([20] * 3, 1)).counterfactual
    assert text.startswith("would have scaled out at backlog >")


def test_explaining_a_decision_calls_the_rule_a_bounded_number_of_times() -> None:
    asked = []

    def counting(seen: Observation) -> Recommendation:
        asked.append(1)
        return each(seen)

    names = [f"metric{i}" for i in range(30)]
    declared = resource(
        policy=counting, metrics={"backlog": SOURCE, **dict.fromkeys(names, SOURCE)}
    )
    held = state([70.0] * 3)
    decision = decide(declared, held, NOW)
    asked.clear()
    explained(declared, held, decision)
    assert 0 < len(asked) <= 150


def levels_asked(
    resource_of: Callable[[PolicyFunction], Resource], held: ScalingState
) -> list[set[float]]:
    """The levels in the window at each call of the rule while the decision is explained."""
    asked = list[set[float]]()

    def steady(seen: Observation) -> Recommendation:
        asked.append({sample.value for sample in seen.window("backlog").samples})
        return Recommendation(seen.capacity, "always")

    declared = resource_of(steady)
    decision = decide(declared, held, NOW)
    asked.clear()
    assert explained(declared, held, decision).counterfactual == ""
    return asked


@pytest.mark.parametrize(("level", "least"), [(50.0, 50.0), (0.5, 1.0), (0.0, 1.0)])
def test_the_search_upwards_tries_four_times_the_level_then_sixteen_up_to_a_million_times(
    level: float, least: float
) -> None:
    asked = levels_asked(lambda rule: resource(policy=rule), state([level] * 3))
    assert [at for at in asked if min(at) > level] == [{least * 4**n} for n in range(1, 11)]
    assert any(min(at) < level for at in asked) is (level > 0)
    assert all(min(at) != level for at in asked)


def test_only_the_samples_inside_the_window_are_varied_and_all_to_the_same_level() -> None:
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
def test_the_named_level_is_exact_to_about_one_percent(level: float, turn: float) -> None:
    text = explain(resource(policy=above(backlog=turn)), state([level] * 3)).counterfactual
    assert float(text.split()[-1]) == pytest.approx(turn, rel=0.011)


@pytest.mark.parametrize(
    ("backlog", "other", "named"),
    [((1000, 1100), (10, 20), "backlog"), ((0, 3), (10, 30), "other")],
)
def test_of_several_metrics_the_one_with_the_smallest_relative_change_is_named(
    backlog: tuple[float, float], other: tuple[float, float], named: str
) -> None:
    """The change from a level of 0 is relative to 1."""
    declared = resource(
        policy=above(backlog=backlog[1], other=other[1]),
        metrics={"backlog": SOURCE, "other": SOURCE},
    )
    held = state([backlog[0]] * 3).with_history("other", history([other[0]] * 3))
    assert explain(declared, held).counterfactual.startswith(f"would have scaled out at {named} > ")


def test_only_the_metrics_that_the_policy_reads_are_varied() -> None:
    others = dict.fromkeys([f"metric{i}" for i in range(9)], SOURCE)
    declared = resource(policy=Threshold("backlog", 100, 10), metrics={**others, "backlog": SOURCE})
    held = state([70.0] * 6)
    for name in others:
        held = held.with_history(name, history([70.0] * 6))
    assert " at backlog " in explain(declared, held).counterfactual


NINE = resource(
    policy=lambda _: Recommendation(9, "always nine"),
    limits=ROOMY,
    guards=Guards(rate_limits=(RateLimit("out", 600, instances=1),)),
)


def test_all_guards_that_limited_the_decision_are_named() -> None:
    resting = state([50.0] * 3, 2, confirmed(120, target=2, changed_out=True))
    assert explain(NINE, resting).counterfactual == (
        "would have scaled out to 9 without rate_limits, cooldown"
    )


def test_a_guard_that_limits_a_scale_out_is_named_with_the_capacity_without_it() -> None:
    decision = explain(NINE, state([50.0] * 3, 2))
    assert (decision.desired, decision.applies) == (3, True)
    assert decision.counterfactual == "would have scaled out to 9 without rate_limits"


def test_the_capacity_without_a_guard_is_still_limited_by_the_other_guards() -> None:
    decision = explain(replace(NINE, limits=Limits(1, 5)), state([50.0] * 3, 2))
    assert decision.desired == 3
    assert decision.counterfactual == "would have scaled out to 5 without rate_limits"


def test_a_later_guard_that_allows_no_more_is_named_as_well() -> None:
    declared = replace(NINE, guards=Guards())
    refused = desired(
        status=ActionStatus.FAILED, target=9, retry_at=ago(-60), changed_at=ago(120),
        changed_out=True, requested_at=ago(90), last_error="403",
    )  # fmt: skip
    decision = explain(declared, state([50.0] * 3, 2, refused))
    assert decision.limited_by == ("cooldown",)
    assert decision.counterfactual == "would have scaled out to 9 without cooldown, failed_action"


def test_a_revoked_action_would_have_been_kept_without_the_guard_that_held_the_policy() -> None:
    declared = resource(
        policy=lambda _: Recommendation(8, "always eight"),
        limits=ROOMY,
        guards=Guards(missing=Missing(180, "hold")),
    )
    held = state((), 4, desired(target=8, previous=4))
    held = held.with_history("backlog", Window((sample(50, 300),)))
    decision = explain(declared, held)
    assert (decision.desired, decision.limited_by) == (4, ("missing_data", "revoked"))
    assert decision.counterfactual == (
        "would have kept the pending action (target 8) without missing_data"
    )


def test_a_revoked_action_would_have_been_kept_without_the_guard_that_refuses_its_target() -> None:
    declared = resource(policy=lambda _: Recommendation(4, "always four"), limits=Limits(1, 6))
    held = state([50.0] * 3, 4, desired(target=8, previous=4))
    decision = explain(declared, held)
    assert (decision.desired, decision.limited_by) == (6, ("revoked",))
    assert decision.counterfactual == "would have kept the pending action (target 8) without bounds"


def test_a_dry_run_is_not_a_counterfactual_because_it_decides_the_same() -> None:
    declared = resource(
        policy=lambda seen: Recommendation(seen.capacity + 1, "always more"), mode=Mode.DRY_RUN
    )
    decision = explain(declared, state([50.0] * 3))
    assert (decision.limited_by, decision.counterfactual) == (("dry_run",), "")


# --- only what can happen is named ---------------------------------------------------------------

NAMED = re.compile(
    r"would have (stayed|scaled out|scaled in)(?: to (\d+))? at backlog ([<>=]) (\S+)"
)


def steps(low: float, high: float, *, strict: bool) -> PolicyFunction:
    """In below one level and out above another; exactly there only if not ``strict``."""

    def rule(seen: Observation) -> Recommendation:
        latest = seen.window("backlog").latest
        value = latest.value if latest else low
        out = value > high or (value == high and not strict)
        into = value < low or (value == low and not strict)
        return Recommendation(seen.capacity + out - (into and not out), "steps")

    return rule


LEVELS = st.one_of(st.integers(0, 300).map(float), st.floats(0.01, 300))
POLICIES = st.one_of(
    st.builds(steps, LEVELS, LEVELS, strict=st.booleans()),
    st.floats(0.5, 200).map(lambda target: ValuePerInstance("backlog", target)),
    st.just(BacklogTarget("backlog")),
    st.just(QUEUE_AGE),
)


@settings(deadline=None, max_examples=300)
@given(POLICIES, st.one_of(LEVELS, st.sampled_from([0.0, 1.0, 2.0, 1e6])), st.integers(1, 20))
def test_every_named_level_can_occur_and_leads_to_the_decision_that_is_named(
    policy: PolicyFunction, backlog: float, capacity: int
) -> None:
    declared = resource(policy=policy, limits=ROOMY, throughput=KNOWN, cooldown=Cooldown(0, 0))
    held = state([backlog] * 6, capacity)
    decision = explain(declared, held)
    if not decision.counterfactual or " without " in decision.counterfactual:
        return
    match = NAMED.fullmatch(decision.counterfactual)
    assert match, decision.counterfactual
    verb, target, sign, level = match[1], match[2], match[3], float(match[4])
    assert (level == 0) if sign == "=" else level > 0 or sign == ">"
    assert level <= max(1000, 100 * backlog)
    assert level % 1 == 0 or backlog % 1 != 0
    for beyond in {"<": (level * (1 - 1e-6),), "=": (0.0,), ">": (level + 1e-6 * (level or 1),)}[
        sign
    ]:
        samples = held.histories["backlog"].samples
        varied = samples[:-1] if policy is QUEUE_AGE else ()
        varied += tuple(MetricValue(s.time, beyond) for s in samples[len(varied) :])
        other = decide(declared, held.with_history("backlog", Window(varied)), NOW).desired
        assert other is not None
        assert other != decision.desired
        assert (
            verb == ("stayed", "scaled out", "scaled in")[(other > capacity) - (other < capacity)]
        )
        assert target is None or int(target) == other


CPU = AzureMonitorMetric("id", "CpuPercentage")


@pytest.mark.parametrize(
    ("low", "high", "strict", "backlog", "text"),
    [
        (1, 100, True, 5, "scaled in at backlog = 0"),
        (0, 100, False, 5, "scaled in at backlog = 0"),
        (0.4, 1.5, True, 0.7, "scaled in at backlog < 0.4"),
        (0, 4, True, 3, "scaled out at backlog > 4"),
        (0, 119.6, True, 110, "scaled out at backlog > 120"),
        (0, 100, True, 130, "stayed at backlog < 100"),
        (0, 0, True, 0, "scaled out at backlog > 0"),
    ],
)
def test_levels_are_exact_and_those_of_a_count_are_whole_numbers(
    low: float, high: float, strict: bool, backlog: float, text: str
) -> None:
    rule = steps(low, high, strict=strict)
    assert explain(resource(policy=rule), state([backlog] * 3)).counterfactual == (
        f"would have {text}"
    )


def test_the_level_of_a_count_is_a_whole_number_although_its_mean_is_not() -> None:
    def rule(seen: Observation) -> Recommendation:
        mean = seen.window("backlog").mean or 0
        return Recommendation(seen.capacity + (mean > 5.35), "out above 5.35")

    text = explain(resource(policy=rule), state([5, 5, 6])).counterfactual
    assert text == "would have scaled out at backlog > 6"


@pytest.mark.parametrize(
    ("source", "level", "high", "named"),
    [
        (SOURCE, 5.0, 900, True),
        (SOURCE, 5.0, 5000, False),
        (SOURCE, 60.0, 5000, True),
        (CPU, 50.0, 99, True),
        (CPU, 50.0, 100, False),
        (CPU, 50.0, 150, False),
        (IngestionBreaker(), 0.0, 0, True),
        (IngestionBreaker(), 0.0, 0.5, True),
        (IngestionBreaker(), 0.0, 1, False),
    ],
)
def test_a_level_far_above_anything_that_occurs_is_not_named(
    source: Any, level: float, high: float, named: bool
) -> None:
    declared = resource(policy=above(backlog=high), metrics={"backlog": source})
    assert bool(explain(declared, state([level] * 3)).counterfactual) is named


def test_a_share_is_at_most_a_hundred_percent_wherever_it_comes_from() -> None:
    declared = resource(
        policy=TargetTracking("backlog", 70), metrics={"backlog": HubMetric()}, limits=Limits(1, 99)
    )
    text = explain(declared, state([69.5] * 3, 20)).counterfactual
    assert float(text.split()[-1]) < 100


def test_a_level_at_which_the_policy_fails_is_not_named() -> None:
    picky = resource(policy=failing_above(1000))
    decision = explain(picky, state([130.0] * 3))
    assert decision.desired == 3
    assert decision.counterfactual == ""


def failing_above(level: float) -> PolicyFunction:
    def rule(seen: Observation) -> Recommendation:
        latest = seen.window("backlog").latest
        if latest is None or latest.value > level:
            raise ValueError("unexpected level")
        return Recommendation(seen.capacity + 1, "always more")

    return rule
