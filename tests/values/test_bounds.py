from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, get_type_hints

import pytest

from shared import autoscaling
from shared.autoscaling import (
    Cooldown,
    Goal,
    Guards,
    Limits,
    MetricValue,
    Observation,
    Policy,
    QueueAge,
    Recommendation,
    Resource,
    Threshold,
    Throughput,
)
from shared.autoscaling.deciding.validation import problems
from shared.settings import SETTINGS
from shared.values.bounds import Bounds, Flag, Name, Share, declared_by, matching, problems_of
from shared.values.text import UUID
from tests.builders import resource


@dataclass(frozen=True)
class Declared:
    share: Share = 1
    hours: Annotated[float, Bounds(0, 24)] | None = None
    tolerance: Annotated[float, Bounds(0, 1, below=True)] = 0
    steps: Annotated[int, Bounds(1)] = 1
    instances: Annotated[int, Bounds(high=100)] = 1
    late: Annotated[int, Bounds(0, 1_000_000)] = 0
    name: Name = "name"
    flag: Flag = True
    identity: Annotated[str, matching(UUID, "must be a UUID")] | None = None
    side: Literal["out", "in"] = "out"
    either: Literal["hold"] | int = 5
    plain: float = 0


VALID: tuple[Mapping[str, object], ...] = (
    {},
    {"share": 0.001, "hours": 24, "tolerance": 0.99, "steps": 10**400, "instances": -1},
    {"hours": 0, "side": "in", "either": "anything", "plain": "anything"},
)


@pytest.mark.parametrize("given", VALID)
def test_a_value_within_its_bounds_is_no_problem(given: Mapping[str, Any]) -> None:
    assert problems_of(Declared(**given)) == []


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"share": 0}, "share = 0: must be above 0 and at most 1"),
        ({"share": True}, "share = True: must be a number"),
        ({"share": None}, "share = None: must be a number"),
        ({"share": float("nan")}, "share = nan: must be a number"),
        ({"share": 10**400}, "must be a number"),
        ({"late": -1}, "late = -1: must be a whole number from 0 to 1000000"),
        ({"hours": 24.5}, "hours = 24.5: must be 0 to 24"),
        ({"hours": "1"}, "hours = '1': must be a number"),
        ({"tolerance": 1}, "tolerance = 1: must be at least 0 and below 1"),
        ({"steps": 1.0}, "steps = 1.0: must be a whole number of at least 1"),
        ({"steps": 0}, "steps = 0: must be a whole number of at least 1"),
        ({"instances": 101}, "instances = 101: must be a whole number of at most 100"),
        ({"name": ""}, "name = '': must be a name"),
        ({"name": "a "}, "name = 'a ': must be a name without spaces at its ends"),
        ({"flag": 1}, "flag = 1: must be True or False"),
        ({"identity": "me"}, "identity = 'me': must be a UUID"),
        ({"side": "up"}, "side = 'up': must be one of out, in"),
    ],
)
def test_a_problem_names_field_value_and_bound(given: Mapping[str, Any], problem: str) -> None:
    (found,) = problems_of(Declared(**given))
    assert problem in found


def test_all_problems_of_an_object_are_found_at_once() -> None:
    wrong = Declared(share=2, hours=-1, steps=0)
    assert [each.partition(" ")[0] for each in problems_of(wrong, "a.")] == [
        "a.share",
        "a.hours",
        "a.steps",
    ]


@dataclass(frozen=True)
class Own(Policy):
    """A user's policy that declares bounds and has no checks of its own."""

    margin: Annotated[float, Bounds(0, 1)] = 0.2

    def __call__(self, seen: Observation, /) -> Recommendation:
        return Recommendation(seen.capacity, "holding")


def test_the_bounds_of_a_users_own_policy_are_checked_with_the_rules() -> None:
    assert problems([resource(policy=Own())]) == []
    assert problems([resource(policy=Own(5))]) == [
        "resource 'plan-1': policy.margin = 5: must be 0 to 1"
    ]


DECLARATIONS = [
    each
    for each in (getattr(autoscaling, name) for name in autoscaling.__all__)
    if is_dataclass(each) and each not in (MetricValue, Observation, Recommendation)
]
UNDECLARED = {"period_seconds"}
"""The bound depends on the history of its resource."""


@pytest.mark.parametrize("declaration", DECLARATIONS, ids=lambda each: each.__name__)
def test_each_number_that_a_user_declares_has_bounds(declaration: type) -> None:
    hints = get_type_hints(declaration)
    numbers = {
        each.name
        for each in fields(declaration)
        if hints[each.name] in (int, float, int | None, float | None)
    }
    wrong: Any = object.__new__(declaration)
    for each in fields(declaration):
        object.__setattr__(wrong, each.name, object())
    found = " ".join(problems_of(wrong))
    assert {name for name in numbers - UNDECLARED if f"{name} = " not in found} == set()


@pytest.mark.parametrize(
    ("name", "declaration", "field"),
    [
        ("WindowSeconds", Resource, "window_seconds"),
        ("MinimumSamples", Threshold, "minimum_samples"),
        ("ScaleOutStep", Threshold, "step_out"),
        ("ScaleInStep", Threshold, "step_in"),
        ("ScaleChangesPerHour", Guards, "scale_changes_per_hour"),
        ("ScaleOutCooldownSeconds", Cooldown, "scale_out_seconds"),
        ("ScaleInCooldownSeconds", Cooldown, "scale_in_seconds"),
        ("MinimumCapacity", Limits, "minimum"),
        ("MaximumCapacity", Limits, "maximum"),
        ("AgeLimitMinutes", Goal, "age_limit_minutes"),
        ("SwitchCost", Goal, "switch_cost"),
        ("LatePenalty", Goal, "late_penalty"),
        ("InstanceRatePerMinute", Throughput, "rate_per_instance_minute"),
        ("DeadTimeMinutes", Throughput, "start_up_minutes"),
        ("PlanningStepSeconds", QueueAge, "step_seconds"),
    ],
)
def test_a_valid_setting_is_valid_in_the_rules_that_it_is_passed_to(
    name: str, declaration: type, field: str
) -> None:
    setting = SETTINGS[name].bounds
    _, bounds, _ = declared_by(get_type_hints(declaration, include_extras=True)[field])
    assert setting is not None
    assert bounds is not None
    assert setting.low in bounds
    assert setting.high in bounds
