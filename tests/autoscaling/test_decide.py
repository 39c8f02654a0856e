from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.autoscaling import Cooldown, Limits, Mode, Observation, Recommendation, Threshold
from shared.autoscaling.deciding.decide import decide
from shared.autoscaling.deciding.samples import known_capacity
from shared.autoscaling.state import ActionStatus, Desired, Override, ScalingState
from shared.values.measurements import CAPACITY_METRIC, MetricValue, Window
from tests.builders import NOW, SOURCE, ago, confirmed, desired, history, resource, sample, state

HIGH = [200.0] * 6
LOW = [1.0] * 6


# --- thresholds ---


@pytest.mark.parametrize(
    ("backlog", "target", "why"),
    [
        ([101] * 5, 3, "the mean backlog is 101, above the upper threshold 100: adding 1 instance"),
        ([100] * 5, 2, "not above the upper threshold 100"),
        ([0, 0, 0, 0, 501], 3, "the mean backlog is 100.2, above the upper threshold 100"),
        ([9] * 5, 1, "the maximum backlog is 9, below the lower threshold 10: removing 1"),
        ([0, 0, 0, 0, 10], 2, "not above the upper threshold 100"),
        ([10] * 5, 2, "not above the upper threshold 100"),
        ([500] * 4, 2, "4 of 5 required samples"),
        ([], 2, "0 of 5 required samples"),
    ],
)
def test_threshold_scales_out_on_a_high_mean_and_in_on_a_low_maximum(
    backlog: list[float], target: int, why: str
) -> None:
    decision = decide(resource(), state(backlog), NOW)
    assert (decision.current, decision.desired) == (2, target)
    assert why in decision.reason
    assert decision.applies == (target != 2)


def test_the_steps_of_a_threshold_are_configurable() -> None:
    two = resource(policy=Threshold("backlog", 100, 10, step_out=2, step_in=3))
    assert decide(two, state(HIGH, 2), NOW).desired == 4
    assert decide(two, state(LOW, 5), NOW).desired == 2


def test_only_samples_inside_the_window_are_used() -> None:
    old = {"backlog": Window(tuple(sample(500, 601 + i) for i in range(5)))}
    seen = replace(state(), histories={**state().histories, **old})
    assert "0 of 5 required samples" in decide(resource(), seen, NOW).reason


def test_samples_from_before_the_last_change_are_not_used() -> None:
    short = resource(cooldown=Cooldown(0, 0))
    decision = decide(short, state(HIGH, 3, confirmed(90, target=3)), NOW)
    assert decision.desired == 3
    assert "2 of 5 required samples" in decision.reason


def test_the_decision_has_the_numbers_behind_it_as_evidence() -> None:
    decision = decide(resource(), state([200, 100, 300, 200, 200]), NOW)
    assert decision.evidence == {
        "metric": "backlog",
        "samples": 5,
        "mean": 200,
        "maximum": 300,
        "latest": 200,
        "upper": 100,
        "lower": 10,
    }
    assert decision.candidates[0].capacity == 3


# --- guards ---


@pytest.mark.parametrize(
    ("backlog", "seconds_ago", "scales"),
    [(HIGH, 300, False), (HIGH, 301, True), (LOW, 600, False), (LOW, 601, True)],
)
def test_the_cooldown_of_each_direction_runs_from_the_confirmed_change(
    backlog: list[float], seconds_ago: float, scales: bool
) -> None:
    ruled = resource(
        policy=Threshold("backlog", 100, 10, minimum_samples=1), cooldown=Cooldown(300, 600)
    )
    decision = decide(ruled, state(backlog, 2, confirmed(seconds_ago)), NOW)
    assert decision.applies is scales
    assert (decision.limited_by == ()) is scales


def test_capacity_stays_inside_its_limits() -> None:
    at_maximum = decide(resource(), state(HIGH, 5), NOW)
    assert (at_maximum.desired, at_maximum.limited_by) == (5, ("bounds",))
    at_minimum = decide(resource(), state(LOW, 1), NOW)
    assert (at_minimum.desired, at_minimum.limited_by) == (1, ("bounds",))


def test_a_capacity_outside_its_limits_is_brought_back_even_in_cooldown() -> None:
    assert decide(resource(), state([50] * 5, 9, confirmed(10, target=9)), NOW).desired == 5
    assert decide(resource(limits=Limits(3, 5)), state([], 1), NOW).desired == 3


def test_a_pending_action_is_not_requested_again() -> None:
    decision = decide(resource(), state(HIGH, 2, desired(target=3)), NOW)
    assert not decision.applies
    assert "already requested as epoch 7" in decision.reason


def test_a_pending_action_is_replaced_by_a_different_recommendation() -> None:
    decision = decide(resource(), state(LOW, 2, desired(target=3)), NOW)
    assert (decision.applies, decision.desired) == (True, 1)


def test_after_a_failure_the_next_action_waits_for_the_retry_time() -> None:
    failed = desired(status=ActionStatus.FAILED, last_error="403", retry_at=ago(-60))
    held = decide(resource(), state(HIGH, 2, failed), NOW)
    assert (held.applies, held.limited_by) == (False, ("failed_action",))
    assert "403" in held.reason
    assert decide(resource(), state(HIGH, 2, replace(failed, retry_at=NOW)), NOW).applies


# --- modes ---


def test_a_dry_run_decides_and_applies_nothing() -> None:
    decision = decide(resource(mode=Mode.DRY_RUN), state(HIGH), NOW)
    assert (decision.desired, decision.applies) == (3, False)
    assert "would scale 2 → 3" in decision.reason


def test_a_paused_resource_holds() -> None:
    decision = decide(resource(mode=Mode.PAUSED), state(HIGH), NOW)
    assert (decision.desired, decision.limited_by) == (2, ("paused",))


@pytest.mark.parametrize(
    ("expires_at", "applies"), [(None, False), (ago(-1), False), (NOW, True), (ago(1), True)]
)
def test_an_override_holds_until_it_expires(expires_at: Any, applies: bool) -> None:
    paused = state(HIGH, override=Override(Mode.PAUSED, "incident 42", expires_at))
    decision = decide(resource(), paused, NOW)
    assert decision.applies is applies
    assert ("incident 42" in decision.reason) is not applies


def test_an_override_can_resume_what_the_rules_file_pauses() -> None:
    running = state(HIGH, override=Override(Mode.ACTIVE))
    assert decide(resource(mode=Mode.PAUSED), running, NOW).applies


# --- the known capacity ---


def test_a_resource_with_unknown_capacity_holds() -> None:
    decision = decide(resource(), state(HIGH, None), NOW)
    assert (decision.current, decision.desired, decision.applies) == (None, None, False)


@pytest.mark.parametrize(
    ("observed", "last", "known"),
    [
        (None, None, None),
        ((4, 10), None, 4),
        ((4, 10), confirmed(5, target=3), 3),
        ((4, 10), confirmed(15, target=3), 4),
        ((2, 10), desired(target=3, previous=2), 2),
        ((9, 10), desired(target=3, previous=2, changed_at=ago(5)), 2),
        ((4, 10), desired(target=3, previous=2, changed_at=ago(15)), 4),
        ((9, 10), desired(previous=2, changed_at=ago(5), status=ActionStatus.FAILED), 2),
        (None, desired(target=3, previous=2), 2),
        (None, confirmed(5, target=3), 3),
    ],
)
def test_the_newest_of_observed_and_confirmed_capacity_is_the_known_one(
    observed: tuple[int, int] | None, last: Desired | None, known: int | None
) -> None:
    histories = {CAPACITY_METRIC: Window((sample(*observed),))} if observed else {}
    capacity = known_capacity(ScalingState(histories, last))
    assert (capacity.value if capacity else None) == known


# --- policies of rule authors ---


def raising(_: Observation) -> Recommendation:
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (raising, "raised ZeroDivisionError: division by zero"),
        (lambda _: None, "returned None"),
        (lambda _: Recommendation(2.5, "half"), "instead of a Recommendation"),  # type: ignore[arg-type]
        (
            lambda _: Recommendation(10**400, "all"),
            "returned a capacity that is not from -1000000 to 1000000",
        ),
        (lambda _: Recommendation(2, None), "returned the reason None"),  # type: ignore[arg-type]
        (
            lambda _: Recommendation(2, "x", evidence=[1]),  # type: ignore[arg-type]
            "returned the evidence [1]: must be a mapping",
        ),
    ],
)
def test_a_policy_that_fails_leads_to_a_hold_with_its_error(policy: Any, error: str) -> None:
    decision = decide(resource(policy=policy), state(HIGH), NOW)
    assert (decision.desired, decision.applies) == (2, False)
    assert error in decision.reason


def test_any_python_function_can_be_a_policy() -> None:
    def per_instance(seen: Observation) -> Recommendation:
        latest = seen.window("backlog").latest or MetricValue(seen.now, 0)
        return Recommendation(round(latest.value / 50), "50 each")

    assert decide(resource(policy=per_instance), state([200]), NOW).desired == 4


@given(
    backlog=st.lists(st.floats(0, 1e6), max_size=12),
    capacity=st.integers(1, 30),
    low=st.integers(1, 5),
    span=st.integers(0, 10),
    recommended=st.integers(-100, 100),
    last=st.sampled_from([None, confirmed(30), confirmed(900), desired(), desired(target=9)]),
)
def test_no_policy_and_no_state_leads_to_a_capacity_out_of_bounds(
    backlog: list[float], capacity: int, low: int, span: int, recommended: int, last: Desired | None
) -> None:
    ruled = resource(
        policy=lambda _: Recommendation(recommended, "any capacity"), limits=Limits(low, low + span)
    )
    decision = decide(ruled, state(backlog, capacity, last), NOW)
    if decision.applies:
        assert decision.desired is not None
        assert low <= decision.desired <= low + span
        assert decision.desired != decision.current or "revoked" in decision.limited_by


def test_a_policy_sees_the_windows_of_all_declared_metrics() -> None:
    seen: list[Observation] = []

    def look(observation: Observation) -> Recommendation:
        seen.append(observation)
        return Recommendation(observation.capacity, "looking")

    both = replace(state(), histories={**state([1, 2]).histories, "other": history([7])})
    declared = {"backlog": SOURCE, "other": SOURCE, "never_read": SOURCE}
    decide(resource(policy=look, metrics=declared), both, NOW)
    assert seen[0].window("backlog").mean == 1.5
    assert seen[0].window("other").maximum == 7
    assert (
        seen[0].metrics["never_read"].mean is None
    )  # present, so that a policy cannot overlook it
    assert CAPACITY_METRIC not in seen[0].metrics


@pytest.mark.parametrize("ask", [Observation.window, Observation.history])
def test_a_policy_that_reads_an_undeclared_metric_holds_and_names_the_declared_ones(
    ask: Callable[[Observation, str], Window],
) -> None:
    def mistyped(seen: Observation) -> Recommendation:
        return Recommendation(ask(seen, "backlgo").count, "counting")

    decision = decide(resource(policy=mistyped), state(HIGH), NOW)
    assert (decision.desired, decision.applies) == (2, False)
    assert "UnknownMetric: 'backlgo' is not one of the resource's metrics (backlog)" in (
        decision.reason
    )


def test_a_policy_does_not_see_a_metric_that_is_no_longer_declared() -> None:
    seen: list[Observation] = []

    def look(observation: Observation) -> Recommendation:
        seen.append(observation)
        return Recommendation(observation.capacity, "looking")

    old = replace(state(), histories={**state([1]).histories, "removed": history([7])})
    decide(resource(policy=look), old, NOW)
    assert set(seen[0].metrics) == {"backlog"}


def test_a_policy_may_look_back_beyond_the_last_change() -> None:
    seen: list[Observation] = []

    def look(observation: Observation) -> Recommendation:
        seen.append(observation)
        return Recommendation(observation.capacity, "looking")

    capacities = Window((sample(1, 900), sample(2, 0)))
    changed = state([1, 2, 3, 4], desired=confirmed(90))
    changed = replace(changed, histories={**changed.histories, CAPACITY_METRIC: capacities})
    decide(resource(policy=look), changed, NOW)
    assert seen[0].window("backlog").count == 2
    assert seen[0].history("backlog").count == 4
    assert [s.value for s in seen[0].capacities.samples] == [1, 2]
