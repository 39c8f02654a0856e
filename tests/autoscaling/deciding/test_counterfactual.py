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
    confirmed,
    desired,
    history,
    metric,
    resource,
    sample,
    state,
)

ROOMY = Limits(1, 20)
THRESHOLD = Threshold("backlog", 100, 10)
KNOWN = Throughput(100, 3)
CPU = AzureMonitorMetric("id", "CpuPercentage")


def each(seen: Observation) -> Recommendation:
    """Out above 60 for each instance, in below 30."""
    latest = seen.window("backlog").latest
    if latest is None:
        return Recommendation(seen.capacity, "no samples")
    share = latest.value / seen.capacity
    change = (share > 60) - (share < 30)
    return Recommendation(seen.capacity + change, "a custom rule")


def above(**levels: float) -> PolicyFunction:
    """Out by one where any metric is above its level."""

    def rule(seen: Observation) -> Recommendation:
        values = {name: seen.window(name).latest for name in levels}
        out = any(value and value.value > levels[name] for name, value in values.items())
        return Recommendation(seen.capacity + out, "out above a level")

    return rule


def steps(low: float, high: float, *, strict: bool) -> PolicyFunction:
    """In below one level and out above another; exactly there only if not ``strict``."""

    def rule(seen: Observation) -> Recommendation:
        latest = seen.window("backlog").latest
        value = latest.value if latest else low
        out = value > high or (value == high and not strict)
        into = value < low or (value == low and not strict)
        return Recommendation(seen.capacity + out - (into and not out), "steps")

    return rule


def mean_above(level: float) -> PolicyFunction:
    def rule(seen: Observation) -> Recommendation:
        mean = seen.window("backlog").mean or 0
        return Recommendation(seen.capacity + (mean > level), "out above a mean")

    return rule


def failing_above(level: float, change: int) -> PolicyFunction:
    def rule(seen: Observation) -> Recommendation:
        latest = seen.window("backlog").latest
        if latest is None or latest.value > level:
            raise ValueError("unexpected level")
        return Recommendation(seen.capacity + change, "always the same")

    return rule


def explain(declared: Resource, held: ScalingState) -> Decision:
    return explained(declared, held, decide(declared, held, NOW))


# --- the level of a metric ---


@pytest.mark.parametrize(
    ("policy", "backlog", "text"),
    [
        # all four directions of a custom rule
        (each, [70] * 3, "scaled in at backlog < 60"),
        (each, [110] * 3, "scaled out at backlog > 120"),
        (each, [130] * 3, "stayed at backlog < 120"),
        (each, [50] * 3, "stayed at backlog > 60"),
        # a mean or a maximum of the whole window, and a level far away
        (THRESHOLD, [40.0] * 6, "scaled in at backlog < 10"),
        (THRESHOLD, [50_000] * 6, "stayed at backlog < 100"),
        (THRESHOLD, [300] * 5 + [0], "stayed at backlog < 100"),
        (THRESHOLD, [300] * 5 + [99], "stayed at backlog < 100"),
        (THRESHOLD, [300] * 5 + [5000], "stayed at backlog < 100"),
        # the same direction names the other capacity
        (BacklogTarget("backlog"), [1500.0] * 6, "scaled out to 5 at backlog > 1600"),
        (
            highest(BacklogTarget("backlog"), each),
            [1500.0] * 6,
            "scaled out to 5 at backlog > 1600",
        ),
        # exact levels, and whole numbers for a count
        (steps(1, 100, strict=True), [5] * 3, "scaled in at backlog = 0"),
        (steps(0, 100, strict=False), [5] * 3, "scaled in at backlog = 0"),
        (steps(0.4, 1.5, strict=True), [0.7] * 3, "scaled in at backlog < 0.4"),
        (steps(0, 4, strict=True), [3] * 3, "scaled out at backlog > 4"),
        (steps(0, 119.6, strict=True), [110] * 3, "scaled out at backlog > 120"),
        (steps(0, 0, strict=True), [0] * 3, "scaled out at backlog > 0"),
        (above(backlog=101), [100] * 3, "scaled out at backlog > 101"),
        (above(backlog=0.508), [0.5] * 3, "scaled out at backlog > 0.508"),
        (above(backlog=3), [0] * 3, "scaled out at backlog > 3"),
        (above(backlog=51), [100] * 3, "stayed at backlog < 51"),
        (above(backlog=0.963), [1.9] * 3, "stayed at backlog < 0.961"),
        (mean_above(5.35), [5, 5, 6], "scaled out at backlog > 6"),
    ],
)
def test_the_counterfactual_names_the_level_at_which_the_rule_decides_otherwise(
    policy: Any, backlog: list[float], text: str
) -> None:
    declared = resource(policy=policy, limits=ROOMY, throughput=KNOWN)
    assert explain(declared, state(backlog)).counterfactual == f"would have {text}"


@pytest.mark.parametrize(
    ("declared", "held"),
    [
        (resource(policy=lambda seen: Recommendation(seen.capacity, "always")), state([50])),
        (resource(policy=failing_above(100, 0)), state([50])),
        (resource(policy=failing_above(1000, 1)), state([130.0] * 3)),
        (resource(policy=mean_above(-1), mode=Mode.DRY_RUN), state([50.0] * 3)),
    ],
    ids=["no level", "holds or fails", "scales out or fails", "a dry run decides the same"],
)
def test_a_decision_that_no_possible_level_would_change_has_no_counterfactual(
    declared: Resource, held: ScalingState
) -> None:
    assert explain(declared, held).counterfactual == ""


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
    held = state([70.0] * 6)
    for name in others:
        held = held.with_history(name, history([70.0] * 6))
    declared = resource(policy=THRESHOLD, metrics={**others, "backlog": SOURCE})
    assert " at backlog " in explain(declared, held).counterfactual


def test_a_decision_is_explained_on_the_state_before_it_was_requested() -> None:
    declared = resource(policy=THRESHOLD, limits=ROOMY)
    step = advance(declared, state([500.0] * 6, 2), [metric(600, -20)], NOW)
    assert step.decision is not None
    assert step.decision.applies
    assert step.decided_on is not None
    text = explained(declared, step.decided_on, step.decision).counterfactual
    assert text.startswith("would have stayed at backlog < ")


# --- the guards ---

MISSING = Guards(missing=Missing(60))
HOLD = Guards(missing=Missing(180, "hold"))
ONE_OUT = Guards(rate_limits=(RateLimit("out", 600, instances=1),))
RESTING = confirmed(120, target=2, changed_out=True)
SINCE_THEN = Window(tuple(metric(500, age).value for age in (100, 80, 60, 40, 20)))
REFUSED = replace(
    RESTING, status=ActionStatus.FAILED, target=9, retry_at=NOW.replace(minute=1), last_error="403"
)
PENDING_8 = desired(target=8, previous=4)


def always(capacity: int, limits: Limits = ROOMY, **changes: Any) -> Resource:
    recommendation = Recommendation(capacity, "always the same")
    return resource(policy=lambda _: recommendation, limits=limits, **changes)


@pytest.mark.parametrize(
    ("declared", "held", "decided", "text"),
    [
        (
            resource(policy=THRESHOLD, limits=ROOMY),
            state(desired=RESTING).with_history("backlog", SINCE_THEN),
            2,
            "scaled out to 3 without cooldown",
        ),
        (
            always(1, guards=MISSING, metrics={"backlog": SOURCE, "other": SOURCE}),
            state([5.0] * 3),
            2,
            "scaled in to 1 without missing_data",
        ),
        (
            always(9, guards=ONE_OUT),
            state([50.0] * 3, 2, RESTING),
            2,
            "scaled out to 9 without rate_limits, cooldown",
        ),
        (always(9, guards=ONE_OUT), state([50.0]), 3, "scaled out to 9 without rate_limits"),
        (
            always(9, Limits(1, 5), guards=ONE_OUT),
            state([50.0]),
            3,
            "scaled out to 5 without rate_limits",
        ),
        (
            always(9),
            state([50.0], 2, REFUSED),
            2,
            "scaled out to 9 without cooldown, failed_action",
        ),
        (
            always(8, guards=HOLD),
            state((), 4, PENDING_8).with_history("backlog", Window((sample(50, 300),))),
            4,
            "kept the pending action (target 8) without missing_data",
        ),
        (
            always(4, Limits(1, 6)),
            state([50.0] * 3, 4, PENDING_8),
            6,
            "kept the pending action (target 8) without bounds",
        ),
        (resource(policy=each), state([20] * 3, 1), 1, "scaled out at backlog > 60"),
    ],
    ids=[
        "the guard that held a scale-out",
        "the guard that held a scale-in",
        "all guards that limited the decision",
        "the capacity without the guard",
        "that capacity is still limited by the other guards",
        "a later guard that allows no more",
        "the guard that held the policy, of a revoked action",
        "the guard that refuses the target of a revoked action",
        "never a scale-in at the minimum",
    ],
)
def test_the_counterfactual_names_the_guards_if_no_level_would_change_the_decision(
    declared: Resource, held: ScalingState, decided: int, text: str
) -> None:
    decision = explain(declared, held)
    assert (decision.desired, decision.counterfactual) == (decided, f"would have {text}")


# --- the search ---


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
    held = state([float(value) for value in range(101, 111)])
    seconds = (NOW - held.histories["backlog"].samples[4].time).seconds
    asked = levels_asked(lambda rule: resource(policy=rule, window_seconds=seconds), held)
    assert asked
    assert all(len(at) == 1 for at in asked)


def test_explaining_a_decision_calls_the_rule_a_bounded_number_of_times() -> None:
    names = [f"metric{i}" for i in range(30)]
    metrics = {"backlog": SOURCE, **dict.fromkeys(names, SOURCE)}
    asked = levels_asked(lambda rule: resource(policy=rule, metrics=metrics), state([70.0] * 3))
    assert 0 < len(asked) <= 150


# --- only what can happen is named ---

NAMED = re.compile(
    r"would have (stayed|scaled out|scaled in)(?: to (\d+))? at backlog ([<>=]) (\S+)"
)
QUEUE_AGE = QueueAge("backlog", THRESHOLD)
LEVELS = st.one_of(st.integers(0, 300).map(float), st.floats(0.01, 300))
POLICIES = st.one_of(
    st.builds(steps, LEVELS, LEVELS, strict=st.booleans()),
    st.floats(0.5, 200).map(lambda target: ValuePerInstance("backlog", target)),
    st.just(BacklogTarget("backlog")),
    st.just(QUEUE_AGE),
)


def assert_the_named_level_leads_to_the_named_decision(
    policy: PolicyFunction, held: ScalingState
) -> bool:
    """False if the counterfactual names no level."""
    declared = resource(policy=policy, limits=ROOMY, throughput=KNOWN, cooldown=Cooldown(0, 0))
    decision, samples = explain(declared, held), held.histories["backlog"].samples
    if not decision.counterfactual or " without " in decision.counterfactual:
        return False
    match = NAMED.fullmatch(decision.counterfactual)
    assert match, decision.counterfactual
    verb, target, sign, level = match[1], match[2], match[3], float(match[4])
    assert (level == 0) if sign == "=" else level > 0 or sign == ">"
    assert level <= max(1000, *[100 * each.value for each in samples])
    assert level % 1 == 0 or any(each.value % 1 for each in samples)
    beyond = {"<": level * (1 - 1e-6), "=": 0.0, ">": level + 1e-6 * (level or 1)}[sign]
    varied = samples[:-1] if policy is QUEUE_AGE else ()
    varied += tuple(MetricValue(s.time, beyond) for s in samples[len(varied) :])
    other = decide(declared, held.with_history("backlog", Window(varied)), NOW).desired
    assert other is not None
    assert decision.current is not None
    assert other != decision.desired
    direction = (other > decision.current) - (other < decision.current)
    assert verb == ("stayed", "scaled out", "scaled in")[direction]
    assert target is None or int(target) == other
    return True


@settings(deadline=None, max_examples=100)
@given(POLICIES, st.one_of(LEVELS, st.sampled_from([0.0, 1.0, 2.0, 1e6])), st.integers(1, 20))
def test_every_named_level_can_occur_and_leads_to_the_decision_that_is_named(
    policy: PolicyFunction, backlog: float, capacity: int
) -> None:
    assert_the_named_level_leads_to_the_named_decision(policy, state([backlog] * 6, capacity))


@pytest.mark.parametrize(
    ("backlog", "override"),
    [
        ([800.0] * 12, None),
        ([200.0 * i for i in range(12)], None),
        ([0.0] * 12, None),
        ([800.0] * 12, Override(floor=6)),
    ],
)
def test_of_a_policy_that_follows_a_course_only_the_newest_sample_is_varied(
    backlog: list[float], override: Override | None
) -> None:
    held = state(backlog, 4, override=override)
    assert assert_the_named_level_leads_to_the_named_decision(QUEUE_AGE, held)
