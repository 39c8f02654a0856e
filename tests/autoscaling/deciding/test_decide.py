"""A decision: what the policy sees, what the guards allow in turn, and the revoked actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from shared.autoscaling import Cooldown, Limits, Mode, Observation, Recommendation, Threshold
from shared.autoscaling.acting.actions import request
from shared.autoscaling.deciding.decide import Decision, decide
from shared.autoscaling.deciding.guards import GUARDS
from shared.autoscaling.deciding.samples import known_capacity
from shared.autoscaling.declaring import Guards, Missing, RateLimit
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import ActionStatus, Desired, Override, ScalingState
from shared.values.measurements import CAPACITY_METRIC, Window
from tests.builders import NOW, SOURCE, ago, confirmed, desired, history, resource, sample, state

HIGH = [200.0] * 6
LOW = [1.0] * 6
TWO_METRICS = {"backlog": SOURCE, "breaker": SOURCE}


def recommending(capacity: int, *, paced: bool = False, **changes: Any) -> Resource:
    """A resource whose policy always recommends this capacity, without cooldown."""
    recommendation = Recommendation(capacity, f"{capacity} recommended", paced=paced)
    fields = {
        "limits": Limits(1, 20),
        "guards": Guards(flap_projection=False),
        "cooldown": Cooldown(0, 0),
        **changes,
    }
    return resource(policy=lambda _: recommendation, **fields)


def silent(held: ScalingState, seconds: float = 300) -> ScalingState:
    """The state with a newest backlog sample of this age."""
    return held.with_history("backlog", Window((sample(50, seconds),)))


def broken(held: ScalingState) -> ScalingState:
    """The state with an open breaker of the consumer."""
    return held.with_history("breaker", Window((sample(1),)))


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


def test_the_decision_has_the_numbers_behind_it_as_evidence() -> None:
    decision = decide(resource(), state([200, 100, 300, 200, 200]), NOW)
    numbers = {"samples": 5, "mean": 200, "maximum": 300, "latest": 200, "upper": 100, "lower": 10}
    assert decision.evidence == {"metric": "backlog", **numbers}
    assert decision.candidates[0].capacity == 3


@pytest.mark.parametrize(
    ("samples", "last", "count"),
    [
        ([601, 602, 603, 604, 605], None, "0 of 5"),
        ([300, 240, 180, 120, 60, 0], confirmed(90), "2 of 5"),
    ],
    ids=["outside the window", "before the last change"],
)
def test_only_samples_inside_the_window_and_after_the_last_change_are_used(
    samples: list[float], last: Desired | None, count: str
) -> None:
    kept = Window(tuple(sample(500, age) for age in sorted(samples, reverse=True)))
    short = resource(cooldown=Cooldown(0, 0))
    decision = decide(short, state((), 2, last).with_history("backlog", kept), NOW)
    assert decision.desired == 2
    assert f"{count} required samples" in decision.reason


# --- the fields of a decision and the mode ---


@pytest.mark.parametrize("capacity", [2, None])
def test_a_paused_resource_holds_its_known_capacity_and_gives_the_reason(
    capacity: int | None,
) -> None:
    reason, by = "mode paused, set in scaling_rules.py", ("paused",)
    held = Decision("plan-1", NOW, capacity, capacity, reason, limited_by=by)
    assert decide(resource(mode=Mode.PAUSED), state(HIGH, capacity), NOW) == held


def test_without_a_known_capacity_the_decision_names_the_resource_and_the_reason() -> None:
    reason = "the capacity of plan-1 is not known yet"
    unknown = Decision("plan-1", NOW, None, None, reason, limited_by=("capacity_unknown",))
    assert decide(resource(), state(HIGH, None), NOW) == unknown


def test_a_dry_run_decides_and_applies_nothing_and_is_named_beside_the_guards() -> None:
    decision = decide(recommending(30, mode=Mode.DRY_RUN), state([50], 4), NOW)
    assert (decision.desired, decision.applies) == (20, False)
    assert decision.limited_by == ("bounds", "dry_run")
    mode = "mode dry_run, set in scaling_rules.py"
    text = f"30 recommended; the maximum is 20; {mode}: would scale 4 → 20"
    assert decision.reason == text


def test_a_decision_carries_recommendation_and_evidence_and_no_counterfactual_yet() -> None:
    recommendation = Recommendation(6, "busy", evidence={"backlog": 50})
    declared = replace(recommending(6), policy=lambda _: recommendation)
    assert decide(declared, state([50], 4), NOW) == Decision(
        "plan-1", NOW, 4, 6, "busy", (recommendation,), (), {"backlog": 50}, "", applies=True
    )


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
        (None, desired(target=15, previous=3, reached=9), 9),
        ((9, 10), desired(target=15, previous=3, changed_at=ago(15)), 9),
        ((4, 10), confirmed(5, target=9, previous=3, reached=7, given_up=15), 9),
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


def returning(*fields: Any, **evidence: Any) -> Any:
    return lambda _: Recommendation(*fields, **evidence)


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (raising, "raised ZeroDivisionError: division by zero"),
        (lambda _: None, "returned None"),
        (returning(2.5, "half"), "instead of a Recommendation"),
        (returning(10**400, "all"), "returned a capacity that is not from -1000000 to 1000000"),
        (returning(2, None), "returned the reason None"),
        (returning(2, "x", evidence=[1]), "returned the evidence [1]: must be a mapping"),
        (
            lambda seen: Recommendation(seen.window("backlgo").count, "counting"),
            "UnknownMetric: 'backlgo' is not one of the resource's metrics (backlog)",
        ),
        (
            lambda seen: Recommendation(seen.history("backlgo").count, "counting"),
            "UnknownMetric: 'backlgo' is not one of the resource's metrics (backlog)",
        ),
    ],
)
def test_a_policy_that_fails_leads_to_a_hold_with_its_error(
    policy: Callable[[Observation], Any], error: str
) -> None:
    decision = decide(resource(policy=policy), state(HIGH), NOW)
    assert (decision.desired, decision.applies) == (2, False)
    assert error in decision.reason


def observed(held: ScalingState, **changes: Any) -> Observation:
    """What a policy sees of this state."""
    seen: list[Observation] = []

    def look(observation: Observation) -> Recommendation:
        seen.append(observation)
        return Recommendation(observation.capacity, "looking")

    decide(resource(policy=look, **changes), held, NOW)
    return seen[0]


def test_a_policy_sees_the_windows_of_all_declared_metrics_and_of_no_other() -> None:
    held = state([1, 2]).with_history("other", history([7])).with_history("gone", history([8]))
    declared = {"backlog": SOURCE, "other": SOURCE, "never_read": SOURCE}
    seen = observed(held, metrics=declared)
    assert seen.window("backlog").mean == 1.5
    assert seen.window("other").maximum == 7
    assert seen.metrics["never_read"].mean is None  # present, so that it cannot be overlooked
    assert set(seen.metrics) == set(declared)


def test_a_policy_may_look_back_beyond_the_last_change() -> None:
    capacities = Window((sample(1, 900), sample(2, 0)))
    held = state([1, 2, 3, 4], desired=confirmed(90)).with_history(CAPACITY_METRIC, capacities)
    seen = observed(held)
    assert seen.window("backlog").count == 2
    assert seen.history("backlog").count == 4
    assert [s.value for s in seen.capacities.samples] == [1, 2]


# --- the guards in turn ---


def test_guards_apply_to_data_then_rate_of_change_then_overrides_and_bounds_then_actions() -> None:
    assert [guard.__name__ for guard in GUARDS] == [
        "missing_data",
        "entity_disabled",
        "consumer_broken",
        "stabilisation",
        "flap_projection",
        "nothing_finished",
        "rate_limits",
        "cooldown",
        "filling",
        "scale_changes",
        "override",
        "bounds",
        "failed_action",
        "already_requested",
    ]


FALLBACK = Missing(180, 9)
BREAKER = Guards(
    missing_by_metric={"backlog": FALLBACK, "breaker": Missing(180)}, breaker_metric="breaker"
)
ONE_AT_A_TIME = Guards(FALLBACK, rate_limits=(RateLimit("out", 300, instances=1),))
REFUSED = desired(status=ActionStatus.FAILED, last_error="403", retry_at=ago(-60), previous=4)
PENDING_3 = desired(target=3)


@pytest.mark.parametrize(
    ("declared", "held", "expected", "by", "text"),
    [
        (recommending(30), state(HIGH, 4), 20, "bounds", "the maximum is 20"),
        (
            recommending(2, guards=Guards(Missing(180, "hold"))),
            silent(state(capacity=4)),
            4,
            "missing_data",
            "2 recommended; backlog has had no sample for 300 s: holding",
        ),
        (
            recommending(4, metrics=TWO_METRICS, guards=BREAKER),
            broken(silent(state(capacity=4))),
            4,
            "missing_data consumer_broken",
            "falling back to 9",
        ),
        (
            recommending(4, guards=ONE_AT_A_TIME),
            silent(state(capacity=4)),
            5,
            "missing_data rate_limits",
            "at most 1 in 300 s",
        ),
        (
            recommending(4),
            state([50], 4, REFUSED, override=Override(floor=6)),
            4,
            "override failed_action",
            "the last action failed (403)",
        ),
        (resource(), state(HIGH, 2, PENDING_3), 2, "already_requested", "requested as epoch 7"),
        (
            resource(cooldown=Cooldown(600, 600)),
            state([50] * 5, 9, confirmed(10, target=9)),
            5,
            "bounds",
            "the maximum is 5",
        ),
        (
            recommending(0, limits=Limits(1, 9)),
            state((), 10, desired(target=9, previous=10)),
            10,
            "missing_data bounds already_requested",
            "already requested as epoch 7",
        ),
    ],
    ids=[
        "the limits",
        "a guard is not applied again to the capacity that it allowed",
        "a fallback of missing data passes the breaker",
        "a fallback that replaces a recommendation to stay passes all later guards",
        "an override waits after a failed action",
        "a pending action is not requested again",
        "the limits apply during the cooldown",
        "a pending action to the capacity that the guards allow is not revoked",
    ],
)
def test_each_guard_is_applied_to_the_capacity_that_the_previous_guard_allowed(
    declared: Resource, held: ScalingState, expected: int, by: str, text: str
) -> None:
    decision = decide(declared, held, NOW)
    assert (decision.desired, " ".join(decision.limited_by)) == (expected, by)
    assert text in decision.reason
    assert decision.applies is (expected != decision.current)


# --- pending actions ---


def under_way(target: int, capacity: int = 5, **changes: Any) -> ScalingState:
    """A state with a pending action from this capacity to another one."""
    return state([50], capacity, desired(target=target, previous=capacity), **changes)


LOWERED = recommending(4, limits=Limits(1, 6))
OPEN = recommending(4, metrics=TWO_METRICS, guards=Guards(breaker_metric="breaker"))
FROZEN, EXACTLY, AT_LEAST = Override(freeze_scale_in=True), Override(exact=5), Override(floor=5)
FAILED_8 = desired(target=8, previous=5, status=ActionStatus.FAILED)


@pytest.mark.parametrize(
    ("declared", "held", "expected", "by", "text"),
    [
        (recommending(5), under_way(3, override=FROZEN), 5, "", "an override prevents scale-in"),
        (recommending(5), under_way(3, override=EXACTLY), 5, "", "an override sets exactly 5"),
        (recommending(5), under_way(3, override=AT_LEAST), 5, "", "an override sets at least 5"),
        (recommending(5), silent(under_way(3), 500), 5, "", "backlog has had no sample"),
        (OPEN, broken(under_way(8, 4)), 4, "", "the consumer's circuit breaker is open"),
        (LOWERED, under_way(8, 4), 6, "", "the maximum is 6"),
        (
            recommending(20),
            under_way(15, 20, override=Override(exact=30)),
            20,
            "override bounds",
            "an override sets exactly 30",
        ),
        (recommending(5, paced=True), under_way(8), 5, "", ""),
    ],
    ids=[
        "freeze",
        "exact",
        "floor",
        "missing data",
        "the consumer's breaker",
        "limits that were lowered",
        "within the limits",
        "a paced policy that stays",
    ],
)
def test_a_pending_action_that_is_no_longer_allowed_is_revoked(
    declared: Resource, held: ScalingState, expected: int, by: str, text: str
) -> None:
    decision = decide(declared, held, NOW)
    assert (decision.desired, decision.applies) == (expected, True)
    assert decision.limited_by == (*by.split(), "revoked")
    because = f" because {text}" if text else ""
    assert f"the action of epoch 7 is revoked{because}" in decision.reason
    assert request(decision, held.desired).epoch == 8


@pytest.mark.parametrize(
    ("declared", "held"),
    [
        (recommending(5), under_way(8)),
        (recommending(8, paced=True), under_way(8)),
        (recommending(5, paced=True), state([50], 5, confirmed(900, target=5))),
        (recommending(5, paced=True), state([50], 5, FAILED_8, override=EXACTLY)),
        (recommending(5, paced=True), under_way(5, override=EXACTLY)),
    ],
    ids=["not paced", "still needed", "confirmed", "failed", "no change"],
)
def test_only_a_pending_action_that_changes_the_capacity_is_revoked(
    declared: Resource, held: ScalingState
) -> None:
    assert not decide(declared, held, NOW).applies


def test_a_pending_action_is_replaced_by_a_different_recommendation() -> None:
    decision = decide(resource(), state(LOW, 2, PENDING_3), NOW)
    assert (decision.applies, decision.desired) == (True, 1)
