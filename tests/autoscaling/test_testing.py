"""The helper for the unit tests of a user's rules."""

from typing import Any

import pytest

from shared.autoscaling import Limits
from shared.autoscaling.policy import UnknownMetric
from shared.autoscaling.testing import decision_for
from tests.builders import resource


def test_a_backlog_above_the_threshold_scales_out_and_one_below_scales_in() -> None:
    plan = resource(limits=Limits(1, 5))
    decision = decision_for(plan, {"backlog": [150, 150, 180, 180, 240]}, capacity=2)
    assert (decision.current, decision.desired, decision.applies) == (2, 3, True)
    assert decision_for(plan, {"backlog": [0] * 5}, capacity=2).desired == 1


def test_the_guards_of_the_resource_apply() -> None:
    decision = decision_for(resource(limits=Limits(1, 2)), {"backlog": [500] * 5}, capacity=2)
    assert decision.desired == 2


def test_the_samples_end_now_and_have_the_given_distance() -> None:
    values = [500] * 30 + [0] * 12
    close = decision_for(resource(), {"backlog": values}, capacity=2, every_seconds=15)
    apart = decision_for(resource(), {"backlog": values}, capacity=2, every_seconds=60)
    assert (close.desired, apart.desired) == (3, 1), "only the samples inside the window count"


def test_a_metric_without_samples_is_missing_and_not_zero() -> None:
    decision = decision_for(resource(), {}, capacity=2)
    assert (decision.desired, decision.applies) == (2, False)


def test_a_metric_that_the_resource_does_not_declare_is_an_error() -> None:
    with pytest.raises(
        UnknownMetric, match=r"'baklog' is not one of the resource's metrics \(backlog\)"
    ):
        decision_for(resource(), {"baklog": [1]}, capacity=2)


@pytest.mark.parametrize("value", [None, -1, float("nan"), True, "5"])
def test_a_value_that_the_app_would_refuse_is_an_error(value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^backlog = {value!r}: must be a number of at least 0"):
        decision_for(resource(), {"backlog": [1, value]}, capacity=2)
    with pytest.raises(ValueError, match=rf"^capacity = {value!r}: must be a number"):
        decision_for(resource(), {"backlog": [1]}, capacity=value)
