"""The fields of a decision, the sequence of the guards, and the revoking of pending actions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.autoscaling import Cooldown, Limits, Mode, Recommendation
from shared.autoscaling.deciding.decide import Decision, decide, remember
from shared.autoscaling.deciding.guards import GUARDS
from shared.autoscaling.declaring import Guards, Missing, RateLimit
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import ActionStatus, Override, ScalingState
from shared.values.measurements import CAPACITY_METRIC, Window
from tests.builders import NOW, ago, confirmed, desired, resource, sample, state

CALM = Guards(flap_projection=False)
TWENTY = Limits(1, 20)


def recommending(capacity: int, guards: Guards = CALM, limits: Limits = TWENTY) -> Resource:
    """A resource whose policy always recommends this capacity."""
    return resource(
        policy=lambda _: Recommendation(capacity, f"{capacity} recommended"),
        limits=limits,
        guards=guards,
        cooldown=Cooldown(0, 0),
    )


def silent(seconds: float, capacity: int, capacity_seconds: float = 0) -> ScalingState:
    """A state whose newest backlog sample and whose first capacity sample have these ages."""
    held = state(capacity=capacity)
    capacities = Window((sample(capacity, max(capacity_seconds, 1)), sample(capacity)))
    backlog = Window((sample(50, seconds),))
    return replace(held, histories={"backlog": backlog, CAPACITY_METRIC: capacities})


# --- the fields of a decision ---


def test_a_paused_resource_holds_its_known_capacity_and_gives_the_reason() -> None:
    paused = resource(mode=Mode.PAUSED)
    reason, by = "mode paused, set in scaling_rules.py", ("paused",)
    held = Decision("plan-1", NOW, 2, 2, reason, limited_by=by)
    assert decide(paused, state([200] * 6), NOW) == held
    unknown = Decision("plan-1", NOW, None, None, reason, limited_by=by)
    assert decide(paused, state([200] * 6, None), NOW) == unknown


def test_without_a_known_capacity_the_decision_names_the_resource_and_the_reason() -> None:
    reason = "the capacity of plan-1 is not known yet"
    unknown = Decision("plan-1", NOW, None, None, reason, limited_by=("capacity_unknown",))
    assert decide(resource(), state([200] * 6, None), NOW) == unknown


def test_a_dry_run_is_named_beside_the_guards_that_limited_the_decision() -> None:
    dry = replace(recommending(30), mode=Mode.DRY_RUN)
    decision = decide(dry, state([50], 4), NOW)
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


# --- the sequence of the guards ---


def test_a_guard_is_not_applied_again_to_the_capacity_that_it_allowed() -> None:
    decision = decide(recommending(2, Guards(missing=Missing(180, "hold"))), silent(300, 4), NOW)
    assert decision.reason == "2 recommended; backlog has had no sample for 300 s: holding"
    assert decision.limited_by == ("missing_data",)


def test_each_guard_is_applied_to_the_capacity_that_the_previous_guard_allowed() -> None:
    """Missing data falls back to 9. The open breaker then allows no more than the current 4."""
    missing = {"backlog": Missing(180, 9), "breaker": Missing(180)}
    guards = Guards(missing_by_metric=missing, breaker_metric="breaker", flap_projection=False)
    held = silent(300, 4)
    held = replace(held, histories={**held.histories, "breaker": Window((sample(1),))})
    metrics = resource().metrics
    both = replace(recommending(4, guards), metrics={**metrics, "breaker": metrics["backlog"]})
    decision = decide(both, held, NOW)
    assert decision.limited_by == ("missing_data", "consumer_broken")
    assert decision.desired == 4


def test_a_fallback_that_replaces_a_recommendation_to_stay_passes_all_later_guards() -> None:
    """Only some guards apply to a recommendation to stay, but a fallback is a change."""
    limits = (RateLimit("out", 300, instances=1),)
    guards = Guards(missing=Missing(180, 9), rate_limits=limits, flap_projection=False)
    decision = decide(recommending(4, guards), silent(300, 4), NOW)
    assert decision.limited_by == ("missing_data", "rate_limits")
    assert decision.desired == 5


def test_after_a_failed_action_an_override_with_a_floor_waits_for_the_next_attempt() -> None:
    refused = desired(status=ActionStatus.FAILED, last_error="403", retry_at=ago(-60), previous=4)
    held = state([50], 4, refused, override=Override(floor=6))
    decision = decide(recommending(4), held, NOW)
    assert decision.limited_by == ("override", "failed_action")
    assert (decision.desired, decision.applies) == (4, False)


# --- pending actions ---


def test_the_action_that_replaces_a_revoked_one_stays_within_the_limits() -> None:
    """The override says 30, the maximum is 20, the capacity is 20, and 15 are pending."""
    held = state([50], 20, desired(target=15, previous=20), override=Override(exact=30))
    decision = decide(recommending(20), held, NOW)
    assert (decision.desired, decision.applies) == (20, True)
    assert "the action of epoch 7 is revoked because an override sets exactly 30" in decision.reason
    assert decision.limited_by == ("override", "bounds", "revoked")


def test_a_paced_policy_that_stays_revokes_the_pending_action() -> None:
    paced = replace(recommending(5), policy=lambda _: Recommendation(5, "enough", paced=True))
    decision = decide(paced, state([50], 5, desired(target=8, previous=5)), NOW)
    assert decision.reason == "enough; the action of epoch 7 is revoked"
    assert (decision.desired, decision.applies, decision.limited_by) == (5, True, ("revoked",))


@pytest.mark.parametrize(
    "last",
    [
        confirmed(900, target=5),
        desired(target=8, previous=5, status=ActionStatus.FAILED),
        desired(target=5, previous=5),
    ],
)
def test_only_a_pending_action_that_changes_the_capacity_is_revoked(last: object) -> None:
    paced = replace(recommending(5), policy=lambda _: Recommendation(5, "enough", paced=True))
    held = state([50], 5, last, override=Override(exact=5))  # type: ignore[arg-type]
    assert not decide(paced, held, NOW).applies


# --- metrics without samples ---


@pytest.mark.parametrize(
    ("known_seconds", "desired", "text"),
    [
        (60, 4, "no samples yet: holding; falls back to 9 if none arrives within 180 s"),
        (180, 4, "no samples yet: holding; falls back to 9 if none arrives within 180 s"),
        (181, 9, "backlog has no samples yet: falling back to 9"),
    ],
)
def test_a_metric_without_samples_counts_as_missing_once_the_app_has_had_time_to_read_it(
    known_seconds: float, desired: int, text: str
) -> None:
    held = silent(0, 4, known_seconds)
    held = replace(held, histories={CAPACITY_METRIC: held.histories[CAPACITY_METRIC]})
    guards = Guards(missing=Missing(180, 9), flap_projection=False)
    decision = decide(recommending(2, guards), held, NOW)
    assert decision.desired == desired
    assert text in decision.reason


# --- recommendations in the stabilization window ---


@pytest.mark.parametrize(
    "guards", [Guards(stabilisation_in_seconds=240), Guards(stabilisation_out_seconds=240)]
)
def test_recommendations_are_kept_for_the_length_of_the_only_window(guards: Guards) -> None:
    kept = (sample(3, 241), sample(4, 240), sample(5, 60))
    held = state([50], 4, recommendations=Window(kept))
    declared = recommending(6, guards)
    remembered = remember(declared, held, decide(declared, held, NOW)).recommendations
    assert remembered.samples == (*kept[1:], sample(6))


def test_recommendations_are_kept_for_the_longer_of_two_windows() -> None:
    guards = Guards(
        stabilisation_in_seconds=60, stabilisation_out_seconds=240, flap_projection=False
    )
    kept = (sample(4, 240), sample(5, 60))
    held = state([50], 4, recommendations=Window(kept))
    declared = recommending(6, guards)
    assert remember(declared, held, decide(declared, held, NOW)).recommendations.samples == (
        *kept,
        sample(6),
    )


def test_a_paused_resource_has_no_recommendation_to_remember() -> None:
    declared = replace(recommending(6, Guards(stabilisation_in_seconds=240)), mode=Mode.PAUSED)
    held = state([50], 4)
    assert remember(declared, held, decide(declared, held, NOW)) is held


# --- the order of the guards ---


def test_guards_apply_to_data_then_rate_of_change_then_overrides_and_bounds_then_actions() -> None:
    assert [guard.__name__ for guard in GUARDS] == [
        "missing_data",
        "consumer_broken",
        "nothing_finished",
        "stabilisation",
        "flap_projection",
        "rate_limits",
        "cooldown",
        "override",
        "bounds",
        "failed_action",
        "already_requested",
    ]


def test_a_pending_scale_out_is_revoked_when_the_consumers_breaker_opens() -> None:
    guards = Guards(breaker_metric="breaker", flap_projection=False)
    held = state([50], 4, desired(target=8, previous=4))
    held = replace(held, histories={**held.histories, "breaker": Window((sample(1),))})
    metrics = resource().metrics
    both = replace(recommending(4, guards), metrics={**metrics, "breaker": metrics["backlog"]})
    decision = decide(both, held, NOW)
    assert (decision.desired, decision.limited_by) == (4, ("revoked",))
    reason = "the action of epoch 7 is revoked because the consumer's circuit breaker is open"
    assert reason in decision.reason


def test_a_pending_action_beyond_limits_that_were_lowered_meanwhile_is_revoked() -> None:
    held = state([50], 4, desired(target=8, previous=4))
    decision = decide(recommending(4, limits=Limits(1, 6)), held, NOW)
    assert (decision.desired, decision.applies, decision.limited_by) == (6, True, ("revoked",))
    assert decision.reason == (
        "4 recommended; the action of epoch 7 is revoked because the maximum is 6"
    )
