"""The app accepts each recipe of the cookbook, and the recipe does what its sentence says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shared.autoscaling import Resource
from shared.autoscaling.deciding.decide import Decision, decide
from shared.autoscaling.deciding.validation import problems
from shared.autoscaling.state import ScalingState
from shared.values.measurements import CAPACITY_METRIC, MetricValue, WeekProfile, Window

PAGE = (Path(__file__).parents[2] / "docs" / "cookbook.md").read_text(encoding="utf-8")
INTRODUCTION, *RECIPES = PAGE.split("\n## ")
NOON = datetime(2026, 3, 2, 11, 0, tzinfo=UTC)  # a Monday, noon in Zurich


def block(text: str) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return str(code)


def recipe(number: int) -> Resource:
    names: dict[str, Any] = {}
    exec(block(INTRODUCTION), names)
    exec(block(RECIPES[number - 1]), names)
    resource = names["recipe"]
    assert isinstance(resource, Resource)
    return resource


def constant(value: float, now: datetime) -> Window:
    return rising(value, 0, now)


def rising(value: float, each_minute: float, now: datetime) -> Window:
    """Half an hour of samples that rise at a constant rate and end with this value."""
    minutes = [n / 4 for n in range(120, -1, -1)]
    samples = [MetricValue(now - timedelta(minutes=m), value - m * each_minute) for m in minutes]
    return Window(tuple(samples))


def decided(
    number: int,
    capacity: int,
    metrics: Mapping[str, float | Window],
    now: datetime = NOON,
    **changes: Any,
) -> Decision:
    resource = recipe(number)
    assert set(metrics) == set(resource.metrics)
    histories = {
        name: value if isinstance(value, Window) else constant(value, now)
        for name, value in metrics.items()
    }
    histories[CAPACITY_METRIC] = constant(capacity, now)
    return decide(resource, ScalingState(histories, **changes), now)


def test_the_cookbook_has_eleven_recipes_and_the_app_accepts_each() -> None:
    assert len(RECIPES) == 11
    for number in range(1, 12):
        assert problems([recipe(number)]) == []


@pytest.mark.parametrize(
    ("number", "capacity", "metrics", "desired"),
    [
        (1, 2, {"orders": 100, "retries": 70, "reports": 0}, 4),
        (1, 4, {"orders": 10, "retries": 0, "reports": 0}, 4),
        (1, 4, {"orders": 0, "retries": 0, "reports": 0}, 1),
        (2, 2, {"orders": rising(1000, 40, NOON)}, 12),
        (2, 6, {"orders": 0}, 3),
        (3, 3, {"orders": 500}, 6),
        (3, 6, {"orders": 0}, 5),
        (4, 4, {"orders": 0}, 3),
        (6, 4, {"cpu": 90}, 6),
        (6, 4, {"cpu": 62}, 4),
        (7, 4, {"open_jobs": 70}, 7),
        (8, 3, {"orders": 400, "dead": 17}, 8),
        (8, 3, {"orders": 400, "dead": rising(47, 3, NOON)}, 3),
        (10, 2, {"orders": 150}, 3),
        (10, 3, {"orders": 120}, 3),
        (11, 4, {"open_jobs": 70}, 7),
    ],
)
def test_a_recipe_decides_as_its_sentence_says(
    number: int, capacity: int, metrics: Mapping[str, float | Window], desired: int
) -> None:
    decision = decided(number, capacity, metrics)
    assert decision.desired == desired, decision.reason


def test_the_page_says_how_far_an_empty_queue_lets_the_capacity_fall() -> None:
    assert f"6 instances become {decided(2, 6, {'orders': 0}).desired}." in PAGE


def test_the_minimum_of_office_hours_ends_with_them() -> None:
    midnight = NOON + timedelta(hours=12)
    assert decided(4, 4, {"orders": 0}, midnight).desired == 1


def test_the_minimum_of_a_known_date_applies_on_that_date_only() -> None:
    sale = datetime(2026, 11, 27, 12, 0, tzinfo=UTC)
    assert decided(5, 2, {"orders": 0}, sale).desired == 8
    assert decided(5, 2, {"orders": 500}, sale + timedelta(days=7)).desired == 6


def test_the_minimum_follows_the_expected_load_of_the_hour() -> None:
    hours = [100.0 if hour in (11, 12) else 0.0 for hour in range(168)]
    profile = WeekProfile(tuple(hours))
    assert decided(9, 1, {"orders": 0}, profile=profile).desired == 4
    tuesday = NOON + timedelta(days=1)
    assert decided(9, 1, {"orders": 0}, tuesday, profile=profile).desired == 1
