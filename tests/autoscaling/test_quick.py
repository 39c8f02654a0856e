"""Values that are made quickly are as frozen, comparable and copyable as before."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace

import pytest

from shared.autoscaling.measurements import MetricValue
from shared.autoscaling.policy import Observation, Recommendation
from shared.quick import quick
from tests.builders import NOW


@quick
@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2
    names: list[str] = field(default_factory=list)


def test_a_quick_value_is_a_frozen_dataclass() -> None:
    point = Point(1)
    assert (point.x, point.y, point.names) == (1, 2, [])
    with pytest.raises(FrozenInstanceError):
        point.x = 3  # type: ignore[misc]
    assert not hasattr(point, "__dict__")
    assert repr(point) == "Point(x=1, y=2, names=[])"
    assert replace(point, y=5) == Point(1, 5)
    assert asdict(point) == {"x": 1, "y": 2, "names": []}
    assert [f.name for f in fields(Point)] == ["x", "y", "names"]
    assert point.__slots__ == Point.__slots__


@quick
@dataclass(frozen=True, slots=True)
class Even:
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError(f"{self.number} is odd")


def test_a_value_is_checked_however_it_is_made() -> None:
    with pytest.raises(ValueError, match="1 is odd"):
        Even(1)
    with pytest.raises(ValueError, match="3 is odd"):
        replace(Even(2), number=3)
    assert replace(Even(2), number=4) == Even(4)


def test_defaults_that_can_change_are_not_shared() -> None:
    assert Point(1).names is not Point(1).names


def test_quick_values_can_be_copied_pickled_and_hashed() -> None:
    value = MetricValue(NOW, 5.0)
    assert copy.deepcopy(value) == pickle.loads(pickle.dumps(value)) == value
    assert len({value, MetricValue(NOW, 5.0)}) == 1


def test_a_value_without_what_it_needs_is_refused_as_by_any_dataclass() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'value'"):
        MetricValue(NOW)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword"):
        Recommendation(1, "why", nonsense=2)  # type: ignore[call-arg]
    assert Observation.__name__ == "Observation"
