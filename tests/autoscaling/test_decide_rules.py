"""What a decision says of itself, and what guards do after one another and to orders under way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.autoscaling import Cooldown, Limits, Mode, Recommendation
from shared.autoscaling.deciding.decide import Decision, decide, remember
from shared.autoscaling.deciding.guards import GUARDS
from shared.autoscaling.declaring import Guards, Missing, RateLimit
from shared.autoscaling.measurements import CAPACITY_METRIC, Window
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import ActionStatus, Override, ScalingState
from tests.builders import NOW, ago, confirmed, desired, resource, sample, state

CALM = Guards(flap_projection=False)
TWENTY = Limits(1, 20)


def wants(capacity: int, guards: Guards = CALM, limits: Limits = TWENTY) -> Resource:
    """A resource whose rule always wants the same."""
    return resource(
        policy=lambda _: Recommendation(capacity, f"{capacity} wanted"),
        limits=limits,
        guards=guards,
        cooldown=Cooldown(0, 0),
    )


def silent(seconds: float, capacity: int, capacity_seconds: float = 0) -> ScalingState:
    """The backlog was last read so long ago, and the capacity first so long ago."""
    held = state(capacity=capacity)
    capacities = Window((sample(capacity, max(capacity_seconds, 1)), sample(capacity)))
    backlog = Window((sample(50, seconds),))
    return replace(held, histories={"backlog": backlog, CAPACITY_METRIC: capacities})


# --- what a decision says ---


def test_a_paused_resource_holds_now_at_what_is_known_for_that_reason() -> None:
    paused = resource(mode=Mode.PAUSED)
    reason, by = "paused by scaling_rules.py", ("paused",)
    held = Decision("plan-1", NOW, 2, 2, reason, limited_by=by)
    assert decide(paused, state([200] * 6), NOW) == held
    unknown = Decision("plan-1", NOW, None, None, reason, limited_by=by)
    assert decide(paused, state([200] * 6, None), NOW) == unknown


def test_without_a_known_capacity_the_decision_names_the_resource_and_the_reason() -> None:
    reason = "the capacity of plan-1 is not known yet"
    unknown = Decision("plan-1", NOW, None, None, reason, limited_by=("capacity_unknown",))
    assert decide(resource(), state([200] * 6, None), NOW) == unknown


def test_a_dry_run_names_itself_beside_the_guards_that_spoke() -> None:
    dry = replace(wants(30), mode=Mode.DRY_RUN)
    decision = decide(dry, state([50], 4), NOW)
    assert (decision.desired, decision.applies) == (20, False)
    assert decision.limited_by == ("bounds", "dry_run")
    said = "30 wanted; maximum is 20; dry_run by scaling_rules.py: would scale 4 → 20"
    assert decision.reason == said


def test_a_decision_carries_rule_and_evidence_and_no_counterfactual_yet() -> None:
    wish = Recommendation(6, "busy", evidence={"backlog": 50})
    found = replace(wants(6), policy=lambda _: wish)
    assert decide(found, state([50], 4), NOW) == Decision(
        "plan-1", NOW, 4, 6, "busy", (wish,), (), {"backlog": 50}, "", applies=True
    )


# --- guards after one another ---


def test_a_guard_that_has_spoken_is_not_asked_again_about_its_own_answer() -> None:
    decision = decide(wants(2, Guards(missing=Missing(180, "hold"))), silent(300, 4), NOW)
    assert decision.reason == "2 wanted; backlog is missing for 300 s: holding"
    assert decision.limited_by == ("missing_data",)


def test_the_very_next_guard_is_asked_about_what_the_one_before_made_of_a_wish() -> None:
    """Data missing: 9. Breaker: not above 4, because the consumer is broken."""
    missing = {"backlog": Missing(180, 9), "breaker": Missing(180)}
    guards = Guards(missing_by_metric=missing, breaker_metric="breaker", flap_projection=False)
    held = silent(300, 4)
    held = replace(held, histories={**held.histories, "breaker": Window((sample(1),))})
    metrics = resource().metrics
    both = replace(wants(4, guards), metrics={**metrics, "breaker": metrics["backlog"]})
    decision = decide(both, held, NOW)
    assert decision.limited_by == ("missing_data", "consumer_broken")
    assert decision.desired == 4


def test_what_a_guard_makes_of_a_wish_to_stay_has_to_pass_all_guards_behind_it() -> None:
    """A stay is asked of few guards; a fallback that replaces it is a change like any other."""
    limits = (RateLimit("out", 300, instances=1),)
    guards = Guards(missing=Missing(180, 9), rate_limits=limits, flap_projection=False)
    decision = decide(wants(4, guards), silent(300, 4), NOW)
    assert decision.limited_by == ("missing_data", "rate_limits")
    assert decision.desired == 5


def test_a_floor_for_a_rule_that_stays_waits_until_a_refused_action_may_be_tried_again() -> None:
    refused = desired(status=ActionStatus.FAILED, last_error="403", retry_at=ago(-60), previous=4)
    held = state([50], 4, refused, override=Override(floor=6))
    decision = decide(wants(4), held, NOW)
    assert decision.limited_by == ("override", "failed_action")
    assert (decision.desired, decision.applies) == (4, False)


# --- orders under way ---


def test_an_order_that_takes_another_back_keeps_to_the_limits_itself() -> None:
    """A person wants 30 where 20 are the maximum, 20 are there, and 15 are on their way."""
    held = state([50], 20, desired(target=15, previous=20), override=Override(exact=30))
    decision = decide(wants(20), held, NOW)
    assert (decision.desired, decision.applies) == (20, True)
    assert "epoch 7 is taken back: exactly 30 by override" in decision.reason
    assert decision.limited_by == ("override", "bounds", "revoked")


def test_a_rule_that_knows_of_an_order_and_stays_takes_it_back_to_what_there_is() -> None:
    paced = replace(wants(5), policy=lambda _: Recommendation(5, "enough", paced=True))
    decision = decide(paced, state([50], 5, desired(target=8, previous=5)), NOW)
    assert decision.reason == "enough; epoch 7 is taken back"
    assert (decision.desired, decision.applies, decision.limited_by) == (5, True, ("revoked",))


@pytest.mark.parametrize(
    "last",
    [
        confirmed(900, target=5),
        desired(target=8, previous=5, status=ActionStatus.FAILED),
        desired(target=5, previous=5),
    ],
)
def test_what_is_not_under_way_or_changes_nothing_is_not_taken_back(last: object) -> None:
    paced = replace(wants(5), policy=lambda _: Recommendation(5, "enough", paced=True))
    held = state([50], 5, last, override=Override(exact=5))  # type: ignore[arg-type]
    assert not decide(paced, held, NOW).applies


# --- what was never read ---


@pytest.mark.parametrize(
    ("known_seconds", "desired", "said"),
    [
        (60, 4, "backlog was never read yet"),
        (180, 4, "backlog was never read yet"),
        (181, 9, "backlog was never read: falling back to 9"),
    ],
)
def test_what_was_never_read_counts_as_missing_once_there_was_time_to_read_it(
    known_seconds: float, desired: int, said: str
) -> None:
    held = silent(0, 4, known_seconds)
    held = replace(held, histories={CAPACITY_METRIC: held.histories[CAPACITY_METRIC]})
    guards = Guards(missing=Missing(180, 9), flap_projection=False)
    decision = decide(wants(2, guards), held, NOW)
    assert decision.desired == desired
    assert said in decision.reason


# --- wishes ---


@pytest.mark.parametrize(
    "guards", [Guards(stabilisation_in_seconds=240), Guards(stabilisation_out_seconds=240)]
)
def test_wishes_are_kept_for_the_length_of_the_only_window(guards: Guards) -> None:
    kept = (sample(3, 241), sample(4, 240), sample(5, 60))
    held = state([50], 4, wishes=Window(kept))
    found = wants(6, guards)
    remembered = remember(found, held, decide(found, held, NOW)).wishes
    assert remembered.samples == (*kept[1:], sample(6))


def test_wishes_are_kept_for_the_longer_of_two_windows() -> None:
    guards = Guards(
        stabilisation_in_seconds=60, stabilisation_out_seconds=240, flap_projection=False
    )
    kept = (sample(4, 240), sample(5, 60))
    held = state([50], 4, wishes=Window(kept))
    found = wants(6, guards)
    assert remember(found, held, decide(found, held, NOW)).wishes.samples == (*kept, sample(6))


def test_a_resource_that_was_paused_has_no_wish_to_remember() -> None:
    found = replace(wants(6, Guards(stabilisation_in_seconds=240)), mode=Mode.PAUSED)
    held = state([50], 4)
    assert remember(found, held, decide(found, held, NOW)) is held


# --- who is asked, and when ---


def test_guards_are_asked_for_data_then_calm_then_people_and_bounds_then_orders_under_way() -> None:
    assert [guard.__name__ for guard in GUARDS] == [
        "missing_data",
        "consumer_broken",
        "stabilisation",
        "flap_projection",
        "rate_limits",
        "cooldown",
        "override",
        "bounds",
        "failed_action",
        "already_requested",
    ]


def test_a_scale_out_under_way_is_taken_back_when_the_consumers_breaker_opens() -> None:
    guards = Guards(breaker_metric="breaker", flap_projection=False)
    held = state([50], 4, desired(target=8, previous=4))
    held = replace(held, histories={**held.histories, "breaker": Window((sample(1),))})
    metrics = resource().metrics
    both = replace(wants(4, guards), metrics={**metrics, "breaker": metrics["backlog"]})
    decision = decide(both, held, NOW)
    assert (decision.desired, decision.limited_by) == (4, ("revoked",))
    assert "epoch 7 is taken back: the consumer's circuit breaker is open" in decision.reason


def test_an_order_beyond_limits_that_were_lowered_meanwhile_is_taken_back() -> None:
    held = state([50], 4, desired(target=8, previous=4))
    decision = decide(wants(4, limits=Limits(1, 6)), held, NOW)
    assert (decision.desired, decision.applies, decision.limited_by) == (6, True, ("revoked",))
    assert decision.reason == "4 wanted; epoch 7 is taken back: maximum is 6"
