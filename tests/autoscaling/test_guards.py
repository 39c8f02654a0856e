"""How each guard changes the recommended capacity in a decision."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.autoscaling import Cooldown, Limits, Mode, Observation, Recommendation, Threshold
from shared.autoscaling.acting.actions import adopt, request
from shared.autoscaling.deciding.decide import Decision, decide, remember
from shared.autoscaling.deciding.guards import GUARDS, GUARDS_WHEN_HOLDING, Context
from shared.autoscaling.deciding.samples import observe
from shared.autoscaling.declaring import Guards, Missing, RateLimit
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import ActionStatus, Override, ScalingState
from shared.values.measurements import CAPACITY_METRIC, Window
from tests.builders import NOW, SOURCE, ago, confirmed, desired, history, resource, sample, state


def recommending(capacity: int, **changes: Any) -> Resource:
    """A resource whose policy always recommends this capacity."""
    return resource(
        policy=lambda _: Recommendation(capacity, f"{capacity} recommended"),
        limits=Limits(1, 20),
        **changes,
    )


def decided(declared: Resource, held: ScalingState) -> tuple[int | None, tuple[str, ...]]:
    decision = decide(declared, held, NOW)
    return decision.desired, decision.limited_by


def silent(seconds: float, capacity: int = 4) -> ScalingState:
    """A state whose newest backlog sample has this age."""
    held = state([50], capacity)
    return replace(held, histories={**held.histories, "backlog": Window((sample(50, seconds),))})


# --- missing data ---


@pytest.mark.parametrize(
    ("then", "recommended", "seconds", "desired", "by"),
    [
        ("hold_in", 2, 180, 2, ()),
        ("hold_in", 2, 181, 4, ("missing_data",)),
        ("hold_in", 6, 181, 6, ()),
        ("hold", 6, 181, 4, ("missing_data",)),
        ("hold", 2, 181, 4, ("missing_data",)),
        (9, 2, 181, 9, ("missing_data",)),
        (9, 2, 180, 2, ()),
    ],
)
def test_missing_data_holds_or_falls_back(
    then: Any, recommended: int, seconds: float, desired: int, by: tuple[str, ...]
) -> None:
    guards = Guards(missing=Missing(180, then), flap_projection=False)
    assert decided(recommending(recommended, guards=guards), silent(seconds)) == (desired, by)


def test_each_metric_may_have_its_own_rule_for_missing_data() -> None:
    guards = Guards(missing_by_metric={"backlog": Missing(600, "hold")}, flap_projection=False)
    assert decided(recommending(2, guards=guards), silent(599)) == (2, ())
    assert decided(recommending(2, guards=guards), silent(601)) == (4, ("missing_data",))


def test_one_missing_metric_of_two_prevents_scale_in() -> None:
    both = recommending(2, metrics={"backlog": SOURCE, "other": SOURCE})
    decision = decide(both, state([1, 1], 4), NOW)
    assert decision.desired == 4
    assert "other has no samples yet: no scale-in" in decision.reason


@pytest.mark.parametrize("names", [("first", "second"), ("second", "first")])
def test_the_highest_fallback_of_several_missing_metrics_wins(names: tuple[str, str]) -> None:
    rules = {"first": Missing(180, 8), "second": Missing(180, 3), "third": Missing(180, "hold")}
    guards = Guards(missing_by_metric=rules, flap_projection=False)
    old = Window((sample(50, 500),))
    held = state(capacity=4)
    held = replace(held, histories={**held.histories, **dict.fromkeys((*names, "third"), old)})
    declared = recommending(2, guards=guards, metrics=dict.fromkeys((*names, "third"), SOURCE))
    assert decide(declared, held, NOW).desired == 8


def test_a_metric_without_samples_leads_to_its_fallback_only_after_its_time() -> None:
    guards = Guards(missing=Missing(180, 9))
    fresh = state(capacity=4)
    fresh = replace(fresh, histories={CAPACITY_METRIC: Window((sample(4, 60),))})
    assert decided(recommending(2, guards=guards), fresh)[0] == 4
    assert decided(recommending(6, guards=guards), fresh) == (6, ())
    waiting = replace(fresh, histories={CAPACITY_METRIC: Window((sample(4, 300), sample(4)))})
    assert decided(recommending(2, guards=guards), waiting)[0] == 9


# --- circuit breaker ---


@pytest.mark.parametrize(("open_", "recommended", "desired"), [(1, 6, 4), (0, 6, 6), (1, 2, 2)])
def test_an_open_breaker_of_the_consumer_prevents_scale_out(
    open_: float, recommended: int, desired: int
) -> None:
    held = state([900], 4)
    held = replace(held, histories={**held.histories, "breaker": history([open_])})
    both = recommending(
        recommended,
        metrics={"backlog": SOURCE, "breaker": SOURCE},
        guards=Guards(breaker_metric="breaker", flap_projection=False),
    )
    assert decide(both, held, NOW).desired == desired


# --- stabilisation ---


def decided_after(declared: Resource, recommended: list[int], held: ScalingState) -> Decision:
    """The decision after these recommendations, one per minute, the last one now."""
    for age, capacity in zip(range(len(recommended) - 1, -1, -1), recommended, strict=True):
        declared = replace(declared, policy=recommending(capacity).policy)
        decision = decide(declared, held, ago(60 * age))
        held = remember(declared, held, decision)
    return decision


@pytest.mark.parametrize(
    ("recommended", "desired"),
    [([6, 2], 4), ([3, 2], 3), ([3, 2, 2, 2, 2, 2], 2), ([2, 6], 4), ([5, 6], 5), ([6], 6)],
)
def test_a_recommendation_takes_effect_once_it_has_lasted(
    recommended: list[int], desired: int
) -> None:
    guards = Guards(
        stabilisation_in_seconds=240, stabilisation_out_seconds=240, flap_projection=False
    )
    declared = recommending(4, guards=guards)
    assert decided_after(declared, recommended, state([50], 4)).desired == desired


def test_recommendations_are_kept_only_for_a_stabilization_window() -> None:
    held = state([50], 4)
    assert remember(recommending(6), held, decide(recommending(6), held, NOW)) == held


# --- rate limits ---


@pytest.mark.parametrize(
    ("limit", "recommended", "desired"),
    [
        (RateLimit("out", 300, instances=2), 12, 6),
        (RateLimit("out", 300, percent=50), 12, 6),
        (RateLimit("out", 300, instances=1), 12, 5),
        (RateLimit("out", 30, instances=1), 12, 6),
        (RateLimit("in", 300, instances=1), 1, 3),
        (RateLimit("in", 300, percent=100), 1, 1),
        (RateLimit("out", 300, instances=2), 1, 1),
    ],
)
def test_rate_limits_count_from_the_capacity_at_the_start_of_their_period(
    limit: RateLimit, recommended: int, desired: int
) -> None:
    """There were four instances until a minute ago, and five since then."""
    held = state([50], 5)
    capacities = Window((sample(4, 900), sample(4, 75), sample(5, 60), sample(5)))
    held = replace(held, histories={**held.histories, CAPACITY_METRIC: capacities})
    guards = Guards(rate_limits=(limit,), flap_projection=False)
    assert decide(recommending(recommended, guards=guards), held, NOW).desired == desired


def test_the_strictest_rate_limit_wins() -> None:
    limits = (RateLimit("out", 300, instances=3), RateLimit("out", 300, percent=50))
    guards = Guards(rate_limits=limits)
    assert decide(recommending(12, guards=guards), state([50], 4), NOW).desired == 6


# --- cooldown by direction ---


@pytest.mark.parametrize(
    ("changed_out", "recommended", "pierces", "desired"),
    [(False, 6, True, 6), (False, 6, False, 4), (True, 6, True, 4), (False, 2, True, 4)],
)
def test_a_scale_out_need_not_wait_after_a_scale_in_if_it_pierces_the_cooldown(
    changed_out: bool, recommended: int, pierces: bool, desired: int
) -> None:
    held = state([50] * 3, 4, confirmed(120, target=4, changed_out=changed_out))
    cooldown = Cooldown(600, 600, scale_out_pierces=pierces)
    assert decide(recommending(recommended, cooldown=cooldown), held, NOW).desired == desired


def test_no_cooldown_applies_to_a_paced_policy() -> None:
    held = state([50] * 3, 4, confirmed(120, target=4, changed_out=True))
    paced = recommending(6)
    paced = replace(paced, policy=lambda _: Recommendation(6, "now", paced=True))
    assert decide(paced, held, NOW).desired == 6


# --- flaps ---


def relative(seen: Observation) -> Recommendation:
    """Flaps between four and three: 100 items are too few for four, and too many for three."""
    waiting = seen.window("backlog").latest
    assert waiting is not None
    each = waiting.value / seen.capacity
    if each > 30:
        return Recommendation(seen.capacity + 1, "too many for each")
    if each < 26:
        return Recommendation(seen.capacity - 1, "too few for each")
    return Recommendation(seen.capacity, "fine")


def test_no_scale_in_to_a_capacity_at_which_the_policy_would_scale_out_again() -> None:
    flapping = resource(policy=relative)
    assert decided(flapping, state([100], 4)) == (4, ("flap_projection",))
    assert decided(flapping, state([60], 4)) == (3, ())
    guards = Guards(flap_projection=False)
    assert decided(replace(flapping, guards=guards), state([100], 4)) == (3, ())


# --- overrides ---


@pytest.mark.parametrize(
    ("override", "recommended", "desired"),
    [
        (Override(exact=7), 2, 7),
        (Override(exact=99), 2, 20),
        (Override(floor=3), 2, 3),
        (Override(floor=3), 6, 6),
        (Override(freeze_scale_in=True), 2, 4),
        (Override(freeze_scale_in=True), 6, 6),
        (Override(floor=3, expires_at=ago(1)), 2, 2),
        (Override(Mode.PAUSED, floor=9), 2, 4),
    ],
)
def test_an_override_wins_over_the_policy_but_not_over_the_limits(
    override: Override, recommended: int, desired: int
) -> None:
    held = replace(state([50], 4), override=override)
    guards = Guards(flap_projection=False)
    assert decide(recommending(recommended, guards=guards), held, NOW).desired == desired


def test_the_reason_names_an_exact_override_even_if_the_capacity_is_already_there() -> None:
    held = replace(state([50], 4), override=Override(exact=4, reason="load test"))
    decision = decide(recommending(4), held, NOW)
    assert (decision.desired, decision.limited_by) == (4, ())
    assert "an override sets exactly 4 (load test)" in decision.reason


def test_an_exact_override_does_not_wait_for_the_cooldown_and_gives_its_reason() -> None:
    held = state([50], 4, confirmed(60, target=4))
    held = replace(held, override=Override(exact=7, reason="load test"))
    decision = decide(recommending(2), held, NOW)
    assert (decision.desired, decision.applies) == (7, True)
    assert "an override sets exactly 7 (load test)" in decision.reason


# --- pending actions ---


def under_way(target: int, **changes: Any) -> ScalingState:
    """A state with five instances and a pending action to another capacity."""
    held = state([50], 5, desired(target=target, previous=5, epoch=7))
    return replace(held, **changes)


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (under_way(3, override=Override(freeze_scale_in=True)), "an override prevents scale-in"),
        (under_way(3, override=Override(exact=5)), "an override sets exactly 5"),
        (under_way(3, override=Override(floor=5)), "an override sets at least 5"),
        (
            under_way(3, histories={**silent(500, 5).histories}),
            "backlog has had no sample for 500 s: no scale-in",
        ),
    ],
)
def test_a_pending_action_that_is_no_longer_allowed_is_revoked(
    held: ScalingState, text: str
) -> None:
    decision = decide(recommending(5), held, NOW)
    assert (decision.desired, decision.applies) == (5, True)
    assert f"the action of epoch 7 is revoked because {text}" in decision.reason
    assert request(decision, held.desired).epoch == 8


def test_a_recommendation_to_stay_revokes_the_pending_action_only_if_it_is_paced() -> None:
    assert not decide(recommending(5), under_way(8), NOW).applies
    paced = replace(recommending(5), policy=lambda _: Recommendation(5, "enough", paced=True))
    assert decide(paced, under_way(8), NOW).applies
    coming = replace(recommending(8), policy=lambda _: Recommendation(8, "needed", paced=True))
    assert not decide(coming, under_way(8), NOW).applies


@pytest.mark.parametrize(
    ("capacity", "recommended", "expected"),
    [(20, 28, 28), (20, 20, 20), (20, 5, 20), (3, 1, 3), (2, 2, 3), (2, 1, 3), (2, 6, 6)],
)
def test_a_fallback_raises_a_lower_capacity_and_otherwise_only_prevents_scale_in(
    capacity: int, recommended: int, expected: int
) -> None:
    """CPU still has samples, so the policy may recommend more than the fallback."""
    guards = Guards(missing=Missing(180, 3), flap_projection=False)
    declared = replace(recommending(recommended, guards=guards), limits=Limits(1, 30))
    decision = decide(declared, silent(500, capacity), NOW)
    assert decision.desired == expected
    assert decision.fallback == (3 if capacity < expected == 3 else None)


@pytest.mark.parametrize(
    ("capacity", "recommended", "target", "expected"),
    [(2, 2, 5, 2), (2, 2, 4, 2), (2, 2, 3, 4), (2, 3, 8, 4), (5, 5, 2, 5)],
)
def test_a_fallback_replaces_a_pending_action_only_if_that_leads_to_fewer_instances(
    capacity: int, recommended: int, target: int, expected: int
) -> None:
    held = replace(silent(500, capacity), desired=desired(target=target, previous=capacity))
    decision = decide(recommending(recommended, guards=Guards(missing=Missing(180, 4))), held, NOW)
    assert decision.desired == expected
    assert decision.applies is (expected != 2)  # if 2 of 5 are pending, that action is revoked


@pytest.mark.parametrize("paced", [False, True])
@pytest.mark.parametrize("pending", [False, True])
def test_a_fallback_waits_for_the_cooldown_although_the_policy_may_not(
    paced: bool, pending: bool
) -> None:
    last = confirmed(60, target=2, changed_out=True)
    if pending:
        last = replace(last, target=3, previous=2, status=ActionStatus.PENDING)
    held = replace(silent(500, 2), desired=last)
    ordered = Recommendation(3 if pending and paced else 2, "", paced=paced)
    declared = recommending(2, guards=Guards(missing=Missing(180, 8)))
    declared = replace(declared, policy=lambda _: ordered)
    assert not decide(declared, held, NOW).applies
    later = NOW + timedelta(seconds=700)
    assert decide(declared, held, later).desired == 8


def test_a_fallback_takes_effect_once_it_has_lasted_for_the_stabilization_window() -> None:
    guards = Guards(missing=Missing(180, 8), stabilisation_out_seconds=240)
    declared, held = recommending(4, guards=guards), silent(120)
    found = []
    for minute in range(8):
        decision = decide(declared, held, ago(-60 * minute))
        held = remember(declared, held, decision)
        found.append(decision.desired)
    assert found == [4] * 6 + [8] * 2  # missing from minute 2 on


def test_an_open_breaker_without_recent_samples_does_not_prevent_scale_out() -> None:
    held = state([900], 4)
    old = Window((sample(1, 7200),))
    held = replace(held, histories={**held.histories, "breaker": old})
    both = recommending(
        6,
        metrics={"backlog": SOURCE, "breaker": SOURCE},
        guards=Guards(breaker_metric="breaker"),
    )
    assert decide(both, held, NOW).desired == 6


def test_after_a_manual_change_a_paced_policy_waits_for_the_cooldown_before_it_scales_in() -> None:
    by_hand = adopt(confirmed(900, target=2), 10, ago(15))
    held = state([0], 10, by_hand)
    eager = replace(recommending(1), policy=lambda _: Recommendation(1, "idle", paced=True))
    assert decided(eager, held) == (10, ("cooldown",))
    own = state([0], 10, confirmed(15, target=10, changed_out=True))
    assert decide(eager, own, NOW).desired == 1


@pytest.mark.parametrize("status", [ActionStatus.PENDING, ActionStatus.FAILED])
def test_the_cooldown_of_a_manual_change_applies_beside_an_action_that_did_not_succeed(
    status: ActionStatus,
) -> None:
    """25 instances were set manually, and the action to the maximum of 20 was refused."""
    by_hand = adopt(confirmed(900, target=2), 25, ago(60))
    action = request(decide(recommending(20), state([0], 25, by_hand), ago(30)), by_hand)
    held = state([0], 25, replace(action, status=status))
    eager = replace(recommending(1), policy=lambda _: Recommendation(1, "idle", paced=True))
    assert decide(eager, held, NOW).desired in (20, 25)


# --- all guards ---


guards_of_any_kind = st.builds(
    Guards,
    missing=st.builds(Missing, st.just(180), st.sampled_from(["hold", "hold_in", 0, 50])),
    stabilisation_in_seconds=st.sampled_from([0, 300]),
    stabilisation_out_seconds=st.sampled_from([0, 300]),
    rate_limits=st.lists(
        st.builds(
            RateLimit,
            st.sampled_from(["out", "in"]),
            st.just(300),
            st.none() | st.integers(0, 5),
            st.sampled_from([0.0, 50.0, 200.0]),
        ),
        max_size=2,
    ).map(tuple),
    flap_projection=st.booleans(),
)


@given(
    guards=guards_of_any_kind,
    recommended=st.integers(-5, 30),
    capacity=st.integers(1, 25),
    seconds=st.sampled_from([0, 200, 4000]),
    override=st.builds(
        Override,
        floor=st.none() | st.integers(0, 30),
        exact=st.none() | st.integers(0, 30),
        freeze_scale_in=st.booleans(),
    ),
    failed=st.booleans(),
)
def test_any_combination_of_guards_keeps_the_capacity_in_bounds_and_gives_reasons(
    guards: Guards, recommended: int, capacity: int, seconds: int, override: Override, failed: bool
) -> None:
    held = replace(silent(seconds, capacity), override=override)
    if failed:
        last = confirmed(900, target=capacity, changed_out=True)
        held = replace(held, desired=replace(last, status=ActionStatus.FAILED, retry_at=ago(-5)))
    declared = recommending(recommended, guards=guards)
    decision = decide(declared, held, NOW)
    assert decision.desired is not None
    if decision.applies:
        assert declared.limits.minimum <= decision.desired <= declared.limits.maximum
    if decision.desired != recommended:
        assert decision.limited_by
        assert decision.reason.count(";") >= len(decision.limited_by)


@given(
    guards=guards_of_any_kind.map(lambda guards: replace(guards, breaker_metric="backlog")),
    capacity=st.integers(1, 25),
    seconds=st.sampled_from([0, 200, 4000]),
    last=st.sampled_from(ActionStatus),
    changed_out=st.booleans(),
    paced=st.booleans(),
)
def test_guards_that_are_skipped_for_a_recommendation_to_stay_would_not_apply_to_it(
    guards: Guards, capacity: int, seconds: int, last: ActionStatus, changed_out: bool, paced: bool
) -> None:
    action = confirmed(30, target=capacity, changed_out=changed_out)
    action = replace(action, status=last, retry_at=ago(-5))
    declared, held = (
        recommending(capacity, guards=guards),
        replace(silent(seconds, capacity), desired=action),
    )
    seen = observe(declared, held, capacity, NOW)
    context = Context(declared, held, seen, None, replace(declared.policy(seen), paced=paced))
    spared = [guard for guard in GUARDS if guard not in GUARDS_WHEN_HOLDING]
    assert [guard(capacity, context) for guard in spared] == [None] * len(spared)


def test_missing_data_prevents_scale_in_by_default() -> None:
    quiet = resource(policy=Threshold("backlog", 100, 10, minimum_samples=1))
    held = silent(500, 4)
    held = replace(held, histories={**held.histories, "backlog": Window((sample(0, 500),))})
    assert decided(quiet, held) == (4, ("missing_data",))


def test_a_pending_action_to_the_capacity_that_the_guards_allow_is_not_revoked() -> None:
    """There are ten instances, the maximum is nine, and the action to nine is pending."""
    held = state((), 10, desired(target=9, previous=10))
    declared = replace(recommending(0), limits=Limits(1, 9))
    assert decided(declared, held) == (10, ("missing_data", "bounds", "already_requested"))
