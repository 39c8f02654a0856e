"""Several policies as one, conditions, and what holds for every policy."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared import autoscaling
from shared.autoscaling import (
    WORKDAYS,
    BacklogTarget,
    CapacityThresholds,
    Condition,
    Goal,
    Observation,
    PolicyFunction,
    Profile,
    Recommendation,
    Schedule,
    ScheduleEntry,
    SeasonalFloor,
    TargetTracking,
    Threshold,
    Throughput,
    ValuePerInstance,
    all_of,
    any_of,
    every,
    fallback,
    highest,
    scale_in_only_if,
    scale_out_only_if,
)
from shared.autoscaling.deciding.decide import decide
from shared.autoscaling.state import ScalingState
from shared.values.measurements import CAPACITY_METRIC, WeekProfile, Window
from tests.autoscaling.policies.test_single_metrics import seeing
from tests.builders import NOW, SOURCE, desired, history, resource, sample

COMBINATORS = {"any_of": any_of, "all_of": all_of, "highest": highest}


def wants(capacity: int, **more: Any) -> PolicyFunction:
    return lambda _: Recommendation(capacity, f"wants {capacity}", **more)


def broken(_: Observation) -> Recommendation:
    raise ValueError("oops")


# --- combinations; the present capacity is 4 ---


@pytest.mark.parametrize(
    ("wishes", "wanted"),
    [
        ([4], (4, 4, 4)),
        ([6], (6, 6, 6)),
        ([2], (2, 2, 2)),
        ([6, 5], (6, 5, 6)),
        ([6, 4], (6, 4, 6)),
        ([6, 2], (6, 4, 6)),
        ([4, 2], (4, 4, 4)),
        ([1, 3, 2], (3, 3, 3)),
        ([7, 3, 5], (7, 4, 7)),
        ([6, None], (6, 4, 6)),  # a member that fails counts as stay and hides no other
        ([2, None], (4, 4, 4)),
        ([None, None], (4, 4, 4)),
    ],
)
@pytest.mark.parametrize("kind", COMBINATORS)
def test_what_becomes_of_several_wishes(
    wishes: list[int | None], wanted: tuple[int, ...], kind: str
) -> None:
    members = [broken if wish is None else wants(wish) for wish in wishes]
    made = COMBINATORS[kind](*members)(seeing([], 4))
    assert made.capacity == dict(zip(COMBINATORS, wanted, strict=True))[kind]
    assert ["ValueError: oops" in each.reason for each in made.candidates] == [
        wish is None for wish in wishes
    ]


@pytest.mark.parametrize("candidates", [None, [1], (1,)])
def test_nonsense_among_a_members_candidates_is_its_error(candidates: Any) -> None:
    members = (wants(9, candidates=candidates), wants(5))
    wish = highest(*members)(seeing([], 4))
    assert [c.rule for c in wish.candidates] == ["error", "rule"]
    assert wish.capacity == 5


def test_candidates_are_flattened_in_order() -> None:
    wish = highest(any_of(wants(1), wants(2)), wants(3))(seeing([], 4))
    assert [c.capacity for c in wish.candidates] == [2, 1, 2, 3]


@pytest.mark.parametrize("kind", COMBINATORS)
def test_a_combination_is_paced_where_what_it_follows_is(kind: str) -> None:
    paced, hasty = wants(7, paced=True), wants(6)
    wish = COMBINATORS[kind](paced, hasty)(seeing([], 4))
    assert wish.paced is (wish.capacity == 7)
    assert not COMBINATORS[kind](wants(4, paced=True), hasty, wants(2))(seeing([], 4)).paced


def test_members_speak_through_their_combination() -> None:
    both = highest(
        any_of(Threshold("a", 1, 2), TargetTracking("cpu", 50)), ValuePerInstance("a", 0)
    )
    assert both.metric_names == ("a", "cpu")
    assert any_of(both, wants(4)).metric_names is None  # a function may read any metric
    assert scale_in_only_if(both, lambda _: True).metric_names is None
    assert both.utilisation_names == ("cpu",)
    assert both.problems() == [
        "highest[0]: any_of[0]: lower = 2: must be below upper = 1",
        "highest[1]: target_per_instance = 0: must be above 0",
    ]
    assert highest().problems() == ["highest(): at least one policy is required"]
    assert any_of(None).problems() == [  # type: ignore[arg-type]
        "any_of[0] = None: must be callable with an Observation"
    ]
    assert highest()(seeing([], 4)).capacity == 4


@given(st.lists(st.integers(0, 20), min_size=1, max_size=5), st.integers(1, 20))
def test_the_highest_is_no_lower_than_any_and_all_goes_no_further(
    wishes: list[int], capacity: int
) -> None:
    members = [wants(wish) for wish in wishes]
    seen = seeing([], capacity)
    assert highest(*members)(seen).capacity == max(wishes)
    both = all_of(*members)(seen).capacity
    either = any_of(*members)(seen).capacity
    assert both in (capacity, *wishes)
    assert abs(both - capacity) <= min(abs(wish - capacity) for wish in wishes)
    assert either in (capacity, max(wishes))
    assert either >= both or min(wishes) > capacity


# --- fallback ---


def test_another_rule_acts_until_the_first_knows_enough() -> None:
    policy = fallback(BacklogTarget("backlog"), Threshold("backlog", 100, 10))
    learned = policy(seeing([200] * 5, 4))
    assert (learned.capacity, learned.rule) == (5, "backlog_target")
    wish = policy(seeing([900] * 5, 4, throughput=Throughput()))
    assert (wish.capacity, wish.rule) == (5, "threshold")
    assert "(fallback: the rate per instance is not known" in wish.reason
    assert fallback(broken, wants(7))(seeing([], 4)).capacity == 7
    assert policy.metric_names == ("backlog",)
    assert policy.problems() == []
    assert fallback(wants(1), ValuePerInstance("a", 0)).problems() == [
        "fallback.otherwise: target_per_instance = 0: must be above 0"
    ]


def test_of_equal_recommendations_the_paced_one_counts_unless_another_lacks_its_input() -> None:
    paced, plain, lacking = wants(4, paced=True), wants(4), wants(4, missing="rate")
    assert highest(paced, plain)(seeing([], 4)).paced
    assert not highest(paced, lacking)(seeing([], 4)).paced
    assert not highest(wants(4, paced=True, missing="rate"), plain)(seeing([], 4)).paced


RECOMMENDED = st.builds(
    Recommendation,
    st.integers(2, 6),
    st.just("why"),
    paced=st.booleans(),
    missing=st.sampled_from(["", "", "backlog", "rate"]),
)
MEMBERS = st.lists(
    st.one_of(
        st.just(broken),
        RECOMMENDED.map(lambda recommended: lambda _: recommended),
        st.sampled_from(["backlog", "rate"]).map(lambda name: wants(4, missing=name)),
    ),
    min_size=1,
    max_size=4,
)


@given(st.sampled_from(list(COMBINATORS.values())), MEMBERS, st.permutations(range(4)))
def test_the_order_of_the_members_changes_nothing_but_the_texts(
    combine: Any, members: list[PolicyFunction], order: list[int]
) -> None:
    seen = seeing([], 4)
    permuted = [members[index] for index in order if index < len(members)]
    results = {
        (r.capacity, r.paced, r.missing, fallback(combine(*some), wants(9))(seen).capacity)
        for some in (members, permuted)
        for r in [combine(*some)(seen)]
    }
    assert len(results) == 1


@pytest.mark.parametrize(
    ("kind", "known", "falls_back"),
    [
        ("any_of", [6], False),  # one policy is enough to scale out
        ("any_of", [4], True),
        ("any_of", [2], True),
        ("any_of", [], True),
        ("highest", [6, 2], False),
        ("highest", [4], True),
        ("highest", [2], True),
        ("all_of", [6], True),
        ("all_of", [2], True),
        ("all_of", [4], False),  # one policy is enough to hold
        ("all_of", [6, 2], False),
        ("all_of", [], True),
    ],
)
@pytest.mark.parametrize("lacking", [broken, wants(4, missing="the rate")])
def test_a_combination_lacks_an_input_only_if_its_other_members_are_not_enough(
    kind: str, known: list[int], falls_back: bool, lacking: PolicyFunction
) -> None:
    members = [*map(wants, known), lacking]
    for some in (members, members[::-1]):
        combined = COMBINATORS[kind](*some)
        for policy in (combined, Schedule((), Profile("always"), combined)):
            wish = fallback(policy, wants(9))(seeing([], 4))
            assert (wish.capacity == 9) is falls_back
            own = "oops" if lacking is broken else "wants 4"
            assert not falls_back or own in wish.reason


def test_a_wrapped_policy_that_fails_is_replaced_by_its_fallback() -> None:
    profile = WeekProfile((5000.0,) * 168)
    seen = replace(seeing([], 4), profile=profile, throughput=Throughput(100.0))
    for wrapped in (Schedule((), Profile("always", 6), broken), SeasonalFloor(broken)):
        assert wrapped(seen).capacity > 4
        assert fallback(wrapped, wants(9))(seen).capacity == 9


# --- conditions ---

EMPTY = every("backlog", "retries")


@pytest.mark.parametrize(
    ("condition", "backlog", "retries", "said"),
    [
        (EMPTY, [0], [0], ""),
        (EMPTY, [0], [0.5, 0], ""),
        (EMPTY, [0], [1, 0], "below 1': the maximum retries is 1"),
        (EMPTY, [7], [0], "below 1': the maximum backlog is 7"),
        (EMPTY, [0], [], "no samples of retries"),
        (Condition("it is Sunday", lambda seen: seen.now.weekday() == 6), [], [], ""),
        (
            Condition("it is Monday", lambda seen: seen.now.weekday() == 0),
            [],
            [],
            "no scale-in to 2 without the condition 'it is Monday': it is false",
        ),
        (broken, [], [], "without the condition 'broken': it raised ValueError: oops"),
    ],
)
def test_only_if_a_condition_is_true_the_capacity_moves_in_the_direction_that_it_guards(
    condition: Any, backlog: list[float], retries: list[float], said: str
) -> None:
    seen = seeing({"backlog": backlog, "retries": retries}, 4)
    wish = scale_in_only_if(wants(2), condition)(seen)
    assert wish.capacity == (4 if said else 2)
    assert [each.capacity for each in wish.candidates] == ([2] if said else [])
    assert (said or "wants 2") in wish.reason
    assert scale_in_only_if(wants(6), condition)(seen).capacity == 6
    assert scale_out_only_if(wants(6), condition)(seen).capacity == (4 if said else 6)
    assert scale_out_only_if(wants(2), condition)(seen).capacity == 2


def test_conditions_are_checked_and_their_metrics_declared() -> None:
    policy = scale_in_only_if(TargetTracking("cpu", 50), EMPTY)
    assert policy.metric_names == ("cpu", "backlog", "retries")
    assert policy.utilisation_names == ("cpu",)
    assert policy.problems() == []
    wrong = scale_in_only_if(Threshold("a", 1, 2), every("", below="x"))  # type: ignore[arg-type]
    assert wrong.problems() == [
        "policy: lower = 2: must be below upper = 1",
        "condition: metric = '': must be a name",
        "condition: below = 'x': must be a number",
    ]
    assert every().problems() == ["every(): at least one metric is required"]
    assert scale_in_only_if(wants(1), None).problems() == [  # type: ignore[arg-type]
        "condition = None: must be callable with an Observation"
    ]
    assert Condition("", len).problems() == ["name = '': must be a name"]  # type: ignore[arg-type]


# --- every policy ---

BUSY = Profile("busy", 2, 8, ValuePerInstance("backlog", 10))
POLICIES: list[Any] = [
    Threshold("backlog", 100, 10),
    CapacityThresholds("backlog", ((1, 50, 0), (4, 200, 40))),
    ValuePerInstance("backlog", 1e-3, "latest"),
    BacklogTarget("backlog"),
    TargetTracking("backlog", 50, reporting_metric="other"),
    Schedule((ScheduleEntry(BUSY, WORKDAYS, time(8), time(18)),), Profile("rest", 1, 3)),
    SeasonalFloor(BacklogTarget("backlog")),
    any_of(Threshold("backlog", 100, 10), BacklogTarget("other")),
    all_of(Threshold("backlog", 100, 10), Threshold("other", 100, 10)),
    highest(ValuePerInstance("other", 5), broken),
    fallback(BacklogTarget("backlog"), Threshold("backlog", 100, 10)),
    scale_in_only_if(ValuePerInstance("backlog", 5), every("other")),
    scale_out_only_if(ValuePerInstance("backlog", 5), lambda seen: seen.metrics["x"] is None),
]

VALUES = st.lists(
    st.floats(0, allow_nan=False, allow_infinity=False) | st.floats(0, 1000), max_size=9
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    metrics=st.fixed_dictionaries({"backlog": VALUES, "other": VALUES}),
    capacity=st.integers(1, 100),
    goal=st.builds(Goal, st.floats(0, 1440)),
    throughput=st.builds(
        Throughput, st.none() | st.floats(1e-6, 1e9), st.none() | st.floats(0, 120)
    ),
    pending=st.none() | st.builds(lambda target: desired(target=target), st.integers(1, 100)),
    profile=st.none() | st.builds(lambda load: WeekProfile((load,) * 168), st.floats(0, 1e9)),
)
def test_no_policy_ever_raises_and_each_says_why(
    metrics: dict[str, list[float]], capacity: int, **changes: Any
) -> None:
    seen = seeing(metrics, capacity, **changes)
    for policy in POLICIES:
        wish = policy(seen)
        assert type(wish.capacity) is int
        assert wish.capacity >= 0 or isinstance(policy, Threshold | CapacityThresholds)
        assert wish.reason
        assert wish.rule
        for value in wish.evidence.values():
            assert value is None or isinstance(value, float | int | str | bool)
        if "error" in (wish.rule, *[c.rule for c in wish.candidates]):
            assert "oops" in str(wish)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: type(p).__name__)
def test_every_policy_can_be_declared_and_decides(policy: Any) -> None:
    assert policy.problems() == []
    known = {
        CAPACITY_METRIC: Window((sample(4),)),
        "backlog": history([500.0] * 6, 30),
        "other": history([3.0] * 6, 30),
    }
    declared = resource(policy=policy, metrics={"backlog": SOURCE, "other": SOURCE})
    decision = decide(declared, ScalingState(known), NOW)
    assert decision.current == 4
    assert len(decision.reason) > 10


PAGE = (Path(__file__).parents[3] / "docs" / "policies.md").read_text(encoding="utf-8")


def test_the_page_of_policies_shows_every_policy_and_each_example_is_sound() -> None:
    names: dict[str, Any] = {}
    exec("from shared.autoscaling import *", names)
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)
    for policy in [*names["policies"], names["schedule"]]:
        assert policy.problems() == []
        assert policy(seeing([120.0] * 24, 4)).reason
    ours = {
        n
        for n in autoscaling.__all__
        if ".policies." in getattr(vars(autoscaling)[n], "__module__", "")
    }
    assert [name for name in sorted(ours - {"QueueAge"}) if f"{name}(" not in PAGE] == []
