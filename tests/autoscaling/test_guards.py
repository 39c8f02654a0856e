"""What each guard does to a rule's wish, as it shows in the decision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.autoscaling import Cooldown, Limits, Mode, Observation, Recommendation, Threshold
from shared.autoscaling.actions import adopt, request
from shared.autoscaling.deciding.decide import Decision, decide, remember
from shared.autoscaling.deciding.guards import GUARDS, GUARDS_OF_A_STAY, Context
from shared.autoscaling.deciding.samples import observe
from shared.autoscaling.declaring import Guards, Missing, RateLimit
from shared.autoscaling.measurements import CAPACITY_METRIC, Window
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import ActionStatus, Override, ScalingState
from tests.builders import NOW, SOURCE, ago, confirmed, desired, history, resource, sample, state


def wants(capacity: int, **changes: Any) -> Resource:
    """A resource whose rule always wants the same."""
    return resource(
        policy=lambda _: Recommendation(capacity, f"{capacity} it shall be"),
        limits=Limits(1, 20),
        **changes,
    )


def decided(found: Resource, held: ScalingState) -> tuple[int | None, tuple[str, ...]]:
    decision = decide(found, held, NOW)
    return decision.desired, decision.limited_by


def silent(seconds: float, capacity: int = 4) -> ScalingState:
    """A state whose backlog was last read so long ago."""
    held = state([50], capacity)
    return replace(held, histories={**held.histories, "backlog": Window((sample(50, seconds),))})


# --- missing data ---


@pytest.mark.parametrize(
    ("then", "wish", "seconds", "desired", "by"),
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
    then: Any, wish: int, seconds: float, desired: int, by: tuple[str, ...]
) -> None:
    guards = Guards(missing=Missing(180, then), flap_projection=False)
    assert decided(wants(wish, guards=guards), silent(seconds)) == (desired, by)


def test_each_source_may_have_its_own_rule_for_missing_data() -> None:
    guards = Guards(missing_by_metric={"backlog": Missing(600, "hold")}, flap_projection=False)
    assert decided(wants(2, guards=guards), silent(599)) == (2, ())
    assert decided(wants(2, guards=guards), silent(601)) == (4, ("missing_data",))


def test_one_missing_metric_of_two_keeps_capacity() -> None:
    both = wants(2, metrics={"backlog": SOURCE, "other": SOURCE})
    decision = decide(both, state([1, 1], 4), NOW)
    assert decision.desired == 4
    assert "other was never read: no scale-in" in decision.reason


@pytest.mark.parametrize("names", [("first", "second"), ("second", "first")])
def test_of_several_missing_metrics_the_highest_fallback_counts(names: tuple[str, str]) -> None:
    rules = {"first": Missing(180, 8), "second": Missing(180, 3), "third": Missing(180, "hold")}
    guards = Guards(missing_by_metric=rules, flap_projection=False)
    old = Window((sample(50, 500),))
    held = state(capacity=4)
    held = replace(held, histories={**held.histories, **dict.fromkeys((*names, "third"), old)})
    found = wants(2, guards=guards, metrics=dict.fromkeys((*names, "third"), SOURCE))
    assert decide(found, held, NOW).desired == 8


def test_a_metric_that_was_never_read_falls_back_only_after_its_time() -> None:
    guards = Guards(missing=Missing(180, 9))
    fresh = state(capacity=4)
    fresh = replace(fresh, histories={CAPACITY_METRIC: Window((sample(4, 60),))})
    assert decided(wants(2, guards=guards), fresh)[0] == 4
    waiting = replace(fresh, histories={CAPACITY_METRIC: Window((sample(4, 300), sample(4)))})
    assert decided(wants(2, guards=guards), waiting)[0] == 9


# --- circuit breaker ---


@pytest.mark.parametrize(("open_", "wish", "desired"), [(1, 6, 4), (0, 6, 6), (1, 2, 2)])
def test_an_open_breaker_of_the_consumer_stops_scale_out(
    open_: float, wish: int, desired: int
) -> None:
    held = state([900], 4)
    held = replace(held, histories={**held.histories, "breaker": history([open_])})
    both = wants(
        wish,
        metrics={"backlog": SOURCE, "breaker": SOURCE},
        guards=Guards(breaker_metric="breaker", flap_projection=False),
    )
    assert decide(both, held, NOW).desired == desired


# --- stabilisation ---


def after_wishes(found: Resource, wishes: list[int], held: ScalingState) -> Decision:
    """The decision after the rule has wanted these, one a minute, the last one now."""
    for age, wish in zip(range(len(wishes) - 1, -1, -1), wishes, strict=True):
        found = replace(found, policy=wants(wish).policy)
        decision = decide(found, held, ago(60 * age))
        held = remember(found, held, decision)
    return decision


@pytest.mark.parametrize(
    ("wishes", "desired"),
    [([6, 2], 4), ([3, 2], 3), ([3, 2, 2, 2, 2, 2], 2), ([2, 6], 4), ([5, 6], 5), ([6], 6)],
)
def test_a_wish_counts_once_it_has_lasted(wishes: list[int], desired: int) -> None:
    guards = Guards(
        stabilisation_in_seconds=240, stabilisation_out_seconds=240, flap_projection=False
    )
    assert after_wishes(wants(4, guards=guards), wishes, state([50], 4)).desired == desired


def test_wishes_are_remembered_only_where_a_window_asks_for_them() -> None:
    held = state([50], 4)
    assert remember(wants(6), held, decide(wants(6), held, NOW)) == held


# --- rate limits ---


@pytest.mark.parametrize(
    ("limit", "wish", "desired"),
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
    limit: RateLimit, wish: int, desired: int
) -> None:
    """Four instances until a minute ago, five since then."""
    held = state([50], 5)
    capacities = Window((sample(4, 900), sample(4, 75), sample(5, 60), sample(5)))
    held = replace(held, histories={**held.histories, CAPACITY_METRIC: capacities})
    guards = Guards(rate_limits=(limit,), flap_projection=False)
    assert decide(wants(wish, guards=guards), held, NOW).desired == desired


def test_the_strictest_rate_limit_holds() -> None:
    limits = (RateLimit("out", 300, instances=3), RateLimit("out", 300, percent=50))
    guards = Guards(rate_limits=limits)
    assert decide(wants(12, guards=guards), state([50], 4), NOW).desired == 6


# --- cooldown by direction ---


@pytest.mark.parametrize(
    ("changed_out", "wish", "pierces", "desired"),
    [(False, 6, True, 6), (False, 6, False, 4), (True, 6, True, 4), (False, 2, True, 4)],
)
def test_a_scale_out_pierces_the_rest_after_a_scale_in(
    changed_out: bool, wish: int, pierces: bool, desired: int
) -> None:
    held = state([50] * 3, 4, confirmed(120, target=4, changed_out=changed_out))
    cooldown = Cooldown(600, 600, scale_out_pierces=pierces)
    assert decide(wants(wish, cooldown=cooldown), held, NOW).desired == desired


def test_a_rule_that_paces_itself_needs_no_cooldown() -> None:
    held = state([50] * 3, 4, confirmed(120, target=4, changed_out=True))
    paced = wants(6)
    paced = replace(paced, policy=lambda _: Recommendation(6, "now", paced=True))
    assert decide(paced, held, NOW).desired == 6


# --- flaps ---


def relative(seen: Observation) -> Recommendation:
    """Flaps between four and three: 100 waiting are too few for four and too many for three."""
    waiting = seen.window("backlog").latest
    assert waiting is not None
    each = waiting.value / seen.capacity
    if each > 30:
        return Recommendation(seen.capacity + 1, "too many for each")
    if each < 26:
        return Recommendation(seen.capacity - 1, "too few for each")
    return Recommendation(seen.capacity, "fine")


def test_nobody_scales_in_to_where_the_rules_would_scale_out_again() -> None:
    flapping = resource(policy=relative)
    assert decided(flapping, state([100], 4)) == (4, ("flap_projection",))
    assert decided(flapping, state([60], 4)) == (3, ())
    guards = Guards(flap_projection=False)
    assert decided(replace(flapping, guards=guards), state([100], 4)) == (3, ())


# --- overrides ---


@pytest.mark.parametrize(
    ("override", "wish", "desired"),
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
def test_a_persons_word_counts_before_the_rules_but_inside_the_limits(
    override: Override, wish: int, desired: int
) -> None:
    held = replace(state([50], 4), override=override)
    guards = Guards(flap_projection=False)
    assert decide(wants(wish, guards=guards), held, NOW).desired == desired


def test_a_capacity_that_is_pinned_says_so_even_when_it_is_there() -> None:
    held = replace(state([50], 4), override=Override(exact=4, reason="load test"))
    decision = decide(wants(4), held, NOW)
    assert (decision.desired, decision.limited_by) == (4, ())
    assert "exactly 4 by override (load test)" in decision.reason


def test_an_exact_override_does_not_wait_for_the_cooldown_and_says_who() -> None:
    held = state([50], 4, confirmed(60, target=4))
    held = replace(held, override=Override(exact=7, reason="load test"))
    decision = decide(wants(2), held, NOW)
    assert (decision.desired, decision.applies) == (7, True)
    assert "exactly 7 by override (load test)" in decision.reason


# --- orders under way ---


def under_way(target: int, **changes: Any) -> ScalingState:
    """Five instances, and an order for another number that is not confirmed yet."""
    held = state([50], 5, desired(target=target, previous=5, epoch=7))
    return replace(held, **changes)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (under_way(3, override=Override(freeze_scale_in=True)), "scale-in is frozen"),
        (under_way(3, override=Override(exact=5)), "exactly 5 by override"),
        (under_way(3, override=Override(floor=5)), "at least 5 by override"),
        (
            under_way(3, histories={**silent(500, 5).histories}),
            "backlog is missing for 500 s: no scale-in",
        ),
    ],
)
def test_an_order_that_is_not_allowed_any_more_is_taken_back(held: ScalingState, said: str) -> None:
    decision = decide(wants(5), held, NOW)
    assert (decision.desired, decision.applies) == (5, True)
    assert f"epoch 7 is taken back: {said}" in decision.reason
    assert request(decision, held.desired).epoch == 8


def test_a_rule_that_merely_stays_takes_nothing_back_and_one_that_knows_of_it_does() -> None:
    assert not decide(wants(5), under_way(8), NOW).applies
    paced = replace(wants(5), policy=lambda _: Recommendation(5, "enough", paced=True))
    assert decide(paced, under_way(8), NOW).applies
    coming = replace(wants(8), policy=lambda _: Recommendation(8, "needed", paced=True))
    assert not decide(coming, under_way(8), NOW).applies


def test_a_fallback_waits_for_no_cooldown() -> None:
    held = replace(silent(500, 2), desired=confirmed(60, target=2, changed_out=True))
    guards = Guards(missing=Missing(180, 8))
    assert decide(wants(2, guards=guards), held, NOW).desired == 8


def test_a_breaker_that_was_read_long_ago_stops_nothing() -> None:
    held = state([900], 4)
    old = Window((sample(1, 7200),))
    held = replace(held, histories={**held.histories, "breaker": old})
    both = wants(
        6,
        metrics={"backlog": SOURCE, "breaker": SOURCE},
        guards=Guards(breaker_metric="breaker"),
    )
    assert decide(both, held, NOW).desired == 6


def test_what_a_person_set_is_not_taken_down_at_once_by_a_rule_that_paces_itself() -> None:
    by_hand = adopt(confirmed(900, target=2), 10, ago(15))
    held = state([0], 10, by_hand)
    eager = replace(wants(1), policy=lambda _: Recommendation(1, "idle", paced=True))
    assert decided(eager, held) == (10, ("cooldown",))
    own = state([0], 10, confirmed(15, target=10, changed_out=True))
    assert decide(eager, own, NOW).desired == 1


@pytest.mark.parametrize("status", [ActionStatus.PENDING, ActionStatus.FAILED])
def test_what_a_person_set_stands_for_its_cooldown_beside_an_order_that_came_to_nothing(
    status: ActionStatus,
) -> None:
    """25 instances were set by hand, and the order for the maximum of 20 was refused."""
    by_hand = adopt(confirmed(900, target=2), 25, ago(60))
    order = request(decide(wants(20), state([0], 25, by_hand), ago(30)), by_hand)
    held = state([0], 25, replace(order, status=status))
    eager = replace(wants(1), policy=lambda _: Recommendation(1, "idle", paced=True))
    assert decide(eager, held, NOW).desired in (20, 25)


# --- all of them ---


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
    wish=st.integers(-5, 30),
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
def test_whatever_the_guards_the_capacity_stays_in_bounds_and_is_explained(
    guards: Guards, wish: int, capacity: int, seconds: int, override: Override, failed: bool
) -> None:
    held = replace(silent(seconds, capacity), override=override)
    if failed:
        last = confirmed(900, target=capacity, changed_out=True)
        held = replace(held, desired=replace(last, status=ActionStatus.FAILED, retry_at=ago(-5)))
    found = wants(wish, guards=guards)
    decision = decide(found, held, NOW)
    assert decision.desired is not None
    if decision.applies:
        assert found.limits.minimum <= decision.desired <= found.limits.maximum
    if decision.desired != wish:
        assert decision.limited_by
        assert decision.reason.count(";") >= len(decision.limited_by)


@given(
    guards=guards_of_any_kind.map(lambda found: replace(found, breaker_metric="backlog")),
    capacity=st.integers(1, 25),
    seconds=st.sampled_from([0, 200, 4000]),
    last=st.sampled_from(ActionStatus),
    changed_out=st.booleans(),
    forced=st.booleans(),
)
def test_a_wish_to_stay_passes_the_guards_that_it_is_spared(
    guards: Guards, capacity: int, seconds: int, last: ActionStatus, changed_out: bool, forced: bool
) -> None:
    order = confirmed(30, target=capacity, changed_out=changed_out)
    order = replace(order, status=last, retry_at=ago(-5))
    found, held = wants(capacity, guards=guards), replace(silent(seconds, capacity), desired=order)
    seen = observe(found, held, capacity, NOW)
    context = Context(found, held, seen, None, found.policy(seen), forced)
    spared = [guard for guard in GUARDS if guard not in GUARDS_OF_A_STAY]
    assert [guard(capacity, context) for guard in spared] == [None] * len(spared)


def test_no_scale_in_on_missing_data_by_default() -> None:
    quiet = resource(policy=Threshold("backlog", 100, 10, minimum_samples=1))
    held = silent(500, 4)
    held = replace(held, histories={**held.histories, "backlog": Window((sample(0, 500),))})
    assert decided(quiet, held) == (4, ("missing_data",))


def test_the_order_that_the_guards_themselves_come_to_is_not_taken_back() -> None:
    """Ten instances where nine are the maximum: the order for nine stands, seen or unseen."""
    held = state((), 10, desired(target=9, previous=10))
    found = replace(wants(0), limits=Limits(1, 9))
    assert decided(found, held) == (10, ("missing_data", "bounds", "already_requested"))
