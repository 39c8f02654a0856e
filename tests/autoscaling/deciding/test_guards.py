"""Each guard: its limit and its reason at each of its bounds, and what it changes in a decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from math import ceil, floor
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.autoscaling import Cooldown, Limits, Mode, Observation, Recommendation, Throughput
from shared.autoscaling.acting.actions import adopt, request
from shared.autoscaling.deciding import guards as rules
from shared.autoscaling.deciding.decide import decide, remember
from shared.autoscaling.deciding.guards import Context, Guard, Limit
from shared.autoscaling.deciding.samples import observe
from shared.autoscaling.declaring import Guards, Missing, RateLimit
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import (
    ActionStatus,
    BusyIntervals,
    Desired,
    Learned,
    Override,
    ScalingState,
)
from shared.values.measurements import CAPACITY_METRIC, Window
from tests.builders import NOW, SOURCE, ago, confirmed, desired, history, resource, sample, state

Answer = tuple[int, str] | None
"""The capacity that a guard allows, and its reason; None if it limits nothing."""

REFUSED = desired(status=ActionStatus.FAILED, last_error="403", retry_at=ago(-1), target=6)
IN_PART = replace(REFUSED, status=ActionStatus.CONFIRMED, target=4, given_up=6, changed_at=ago(900))
BROKEN = "the consumer's circuit breaker is open (breaker): no scale-out"


def recommending(capacity: int, *, paced: bool = False, **changes: Any) -> Resource:
    """A resource whose policy always recommends this capacity."""
    recommendation = Recommendation(capacity, f"{capacity} recommended", paced=paced)
    fields = {"limits": Limits(1, 20), "guards": Guards(flap_projection=False), **changes}
    return resource(policy=lambda _: recommendation, **fields)


def holding(*ages: float, capacity: int = 4, **changes: Any) -> ScalingState:
    """A state with a backlog sample of each age, and with this capacity for 500 s."""
    capacities = Window((sample(capacity, 500), sample(capacity)))
    backlog = Window(tuple(sample(50, age) for age in ages))
    return ScalingState({"backlog": backlog, CAPACITY_METRIC: capacities}, **changes)


def asked(guard: Guard, declared: Resource, held: ScalingState) -> Answer:
    """The guard's answer to the recommendation of the resource's policy."""
    capacity = int(held.histories[CAPACITY_METRIC].samples[-1].value)
    seen = observe(declared, held, capacity, NOW)
    recommendation = declared.policy(seen)
    context = Context(declared, held, seen, held.override, recommendation)
    limit = guard(recommendation.capacity, context)
    return None if limit is None else (limit.capacity, limit.reason)


# --- instances that help nobody ---

UNHELPFUL = Learned(work=BusyIntervals(NOW, ((100.0, 2.0),) * 6 + ((100.0, 4.0),) * 6, 12, 1))
SAID = "2 more instances finished nothing more"


@pytest.mark.parametrize(
    ("recommended", "capacity", "changes", "answer"),
    [
        (6, 4, {}, (4, f"{SAID}: no scale-out above 4")),
        (4, 4, {}, None),
        (3, 4, {}, None),
        (6, 1, {}, (2, f"{SAID}: no scale-out above 2")),
        (2, 1, {}, None),
        (6, 4, {"nothing_finished_seconds": 0}, None),
        (6, 4, {"step_back": True}, (2, f"{SAID}: back to 2")),
        (4, 4, {"step_back": True}, (2, f"{SAID}: back to 2")),
        (2, 4, {"step_back": True}, None),
        (6, 2, {"step_back": True}, (2, f"{SAID}: no scale-out above 2")),
        (6, 4, {"step_back": True, "missing": Missing(20)}, (4, f"{SAID}: no scale-out above 4")),
        (4, 4, {"step_back": True, "missing": Missing(20)}, None),
    ],
)
def test_instances_that_finished_nothing_more_prevent_a_scale_out_or_are_removed(
    recommended: int, capacity: int, changes: dict[str, Any], answer: Answer
) -> None:
    declared = recommending(recommended, guards=Guards(**changes))
    held = holding(30, capacity=capacity, learned=UNHELPFUL)
    assert asked(rules.nothing_finished, declared, held) == answer


@pytest.mark.parametrize(("age", "holds"), [(1799, True), (1800, False)])
def test_old_counts_say_nothing_about_instances_that_help_nobody(age: float, holds: bool) -> None:
    work = replace(UNHELPFUL.work, until=ago(age))
    held = holding(30, learned=Learned(work=work))
    assert bool(asked(rules.nothing_finished, recommending(6), held)) is holds


@pytest.mark.parametrize("paced", [True, False])
def test_no_other_guard_keeps_the_instances_that_helped_nobody(paced: bool) -> None:
    declared = recommending(6, paced=paced, guards=Guards(step_back=True))
    held = holding(30, learned=UNHELPFUL)
    assert decide(declared, held, NOW).desired == 2


# --- missing data ---

SILENT = "backlog has had no sample for"


@pytest.mark.parametrize(
    ("missing", "recommended", "seconds", "answer"),
    [
        (Missing(180), 2, 180, None),
        (Missing(180), 2, 181, (4, f"{SILENT} 181 s: no scale-in")),
        (Missing(180), 3, 500, (4, f"{SILENT} 500 s: no scale-in")),
        (Missing(180), 4, 500, None),
        (Missing(180), 6, 181, None),
        (Missing(180, "hold"), 6, 181, (4, f"{SILENT} 181 s: holding")),
        (Missing(180, "hold"), 2, 181, (4, f"{SILENT} 181 s: holding")),
        (Missing(180, 9), 2, 180, None),
        (Missing(180, 9), 2, 181, (9, f"{SILENT} 181 s: falling back to 9")),
        (Missing(180, 4), 4, 500, None),
        (Missing(600, "hold"), 2, 599, None),
    ],
)
def test_missing_data_holds_or_falls_back(
    missing: Missing, recommended: int, seconds: float, answer: Answer
) -> None:
    for guards in (Guards(missing), Guards(missing_by_metric={"backlog": missing})):
        declared = recommending(recommended, guards=guards)
        assert asked(rules.missing_data, declared, holding(seconds)) == answer


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize(
    ("strict", "lax", "capacity", "text"),
    [
        ("hold", "hold_in", 4, "a has had no sample for 500 s: holding"),
        ("hold", 3, 4, "a has had no sample for 500 s: holding"),
        (3, 0, 4, "b has had no sample for 500 s: no scale-in"),
        (9, "hold", 9, "a has had no sample for 500 s: falling back to 9"),
        (9, "hold_in", 9, "a has had no sample for 500 s: falling back to 9"),
        (9, 6, 9, "a has had no sample for 500 s: falling back to 9"),
        ("hold", "hold", 4, "{first} has had no sample for 500 s: holding"),
    ],
)
def test_a_higher_fallback_wins_over_a_hold_and_a_hold_over_a_ban_on_scale_in(
    names: tuple[str, str], strict: Any, lax: Any, capacity: int, text: str
) -> None:
    guards = Guards(missing_by_metric={"a": Missing(180, strict), "b": Missing(180, lax)})
    declared = recommending(2, metrics=dict.fromkeys(names, SOURCE), guards=guards)
    old = dict.fromkeys(names, Window((sample(50, 500),)))
    held = replace(holding(), histories={**holding().histories, **old})
    expected = (capacity, text.format(first=names[0]))
    assert asked(rules.missing_data, declared, held) == expected


def test_a_missing_count_of_finished_items_limits_nothing() -> None:
    """Only the throughput is learned from it. Decisions do not use it."""
    metrics = {"backlog": SOURCE, "done": SOURCE}
    declared = recommending(2, metrics=metrics, throughput=Throughput(completed_metric="done"))
    held = holding(0).with_history("done", Window((sample(1, 5000),)))
    assert asked(rules.missing_data, declared, held) is None


WAITING = "backlog has no samples yet: holding; falls back to 9 if none arrives within 180 s"


@pytest.mark.parametrize(
    ("known_seconds", "recommended", "answer"),
    [
        (60, 2, (4, WAITING)),
        (60, 6, None),
        (180, 2, (4, WAITING)),
        (181, 2, (9, "backlog has no samples yet: falling back to 9")),
    ],
)
def test_a_metric_without_samples_is_missing_once_the_app_has_had_time_to_read_it(
    known_seconds: float, recommended: int, answer: Answer
) -> None:
    capacities = Window((sample(4, known_seconds), sample(4)))
    declared = recommending(recommended, guards=Guards(Missing(180, 9)))
    held = ScalingState({CAPACITY_METRIC: capacities})
    assert asked(rules.missing_data, declared, held) == answer


def test_without_capacity_samples_the_app_has_had_no_time_to_read_a_metric() -> None:
    known = ScalingState(desired=confirmed(900, target=4))
    decision = decide(recommending(2, guards=Guards(Missing(0, 9))), known, NOW)
    assert decision.desired == 4
    assert "falls back to 9 if none arrives within 0 s" in decision.reason
    assert rules.waited_seconds((), NOW) == 0


@pytest.mark.parametrize(
    ("capacity", "recommended", "pending", "expected"),
    [
        (20, 28, None, 28),  # CPU still has samples, so the policy may recommend more
        (20, 20, None, 20),
        (20, 5, None, 20),
        (4, 1, None, 4),
        (3, 1, None, 4),
        (2, 2, None, 4),
        (2, 6, None, 6),
        (2, 2, 5, 2),
        (2, 2, 4, 2),
        (2, 2, 3, 4),
        (2, 3, 8, 4),
        (5, 5, 2, 5),
    ],
)
def test_a_fallback_raises_what_would_be_fewer_instances_and_otherwise_prevents_scale_in(
    capacity: int, recommended: int, pending: int | None, expected: int
) -> None:
    guards = Guards(missing=Missing(180, 4), flap_projection=False)
    declared = recommending(recommended, guards=guards, limits=Limits(1, 30))
    action = None if pending is None else desired(target=pending, previous=capacity)
    decision = decide(declared, holding(500, capacity=capacity, desired=action), NOW)
    assert decision.desired == expected
    revokes = pending == 2
    assert decision.applies is (expected != capacity or revokes)
    assert decision.fallback == (4 if capacity < expected == 4 else None)


@pytest.mark.parametrize("paced", [False, True])
@pytest.mark.parametrize("pending", [False, True])
def test_a_fallback_waits_for_the_cooldown_although_the_policy_may_not(
    paced: bool, pending: bool
) -> None:
    last = confirmed(60, target=2, changed_out=True)
    if pending:
        last = replace(last, target=3, previous=2, status=ActionStatus.PENDING)
    ordered = 3 if pending and paced else 2
    declared = recommending(ordered, paced=paced, guards=Guards(missing=Missing(180, 8)))
    held = holding(500, capacity=2, desired=last)
    assert not decide(declared, held, NOW).applies
    assert decide(declared, held, NOW + timedelta(seconds=700)).desired == 8


# --- the consumer's breaker ---


@pytest.mark.parametrize(
    ("is_open", "age", "recommended", "answer"),
    [
        (1, 0, 6, (4, BROKEN)),
        (0, 0, 6, None),
        (1, 0, 4, None),
        (1, 0, 2, None),
        (1, 600, 6, (4, BROKEN)),
        (1, 601, 6, None),  # it is unknown whether it is still open
    ],
)
def test_an_open_breaker_of_the_consumer_prevents_scale_out(
    is_open: float, age: float, recommended: int, answer: Answer
) -> None:
    guards = Guards(breaker_metric="breaker", missing_by_metric={"breaker": Missing(600)})
    metrics = {"backlog": SOURCE, "breaker": SOURCE}
    declared = recommending(recommended, metrics=metrics, guards=guards)
    held = holding(0).with_history("breaker", Window((sample(is_open, age),)))
    assert asked(rules.consumer_broken, declared, held) == answer


# --- stabilization ---

IN, OUT = Guards(stabilisation_in_seconds=240), Guards(stabilisation_out_seconds=240)
BOTH = Guards(stabilisation_in_seconds=240, stabilisation_out_seconds=240, flap_projection=False)


@pytest.mark.parametrize(
    ("guards", "recommended", "kept", "capacity", "which"),
    [
        (BOTH, 2, [(3, 240)], 3, "highest"),
        (BOTH, 2, [(3, 241)], None, ""),
        (BOTH, 2, [(6, 60)], 4, "highest"),
        (BOTH, 6, [(5, 240)], 5, "lowest"),
        (BOTH, 6, [(5, 241)], None, ""),
        (BOTH, 6, [(2, 60)], 4, "lowest"),
        (BOTH, 4, [(2, 60), (6, 60)], None, ""),
        (IN, 6, [(4, 60)], None, ""),
        (OUT, 2, [(4, 60)], None, ""),
    ],
)
def test_the_mildest_recommendation_in_the_stabilization_window_wins(
    guards: Guards,
    recommended: int,
    kept: list[tuple[int, float]],
    capacity: int | None,
    which: str,
) -> None:
    held = holding(0, recommendations=Window(tuple(sample(*each) for each in kept)))
    text = f"the {which} recommendation of the last 240 s is {kept[0][0]} (stabilization)"
    expected = None if capacity is None else (capacity, text)
    assert asked(rules.stabilisation, recommending(recommended, guards=guards), held) == expected


def decided_each_minute(declared: list[Resource], held: ScalingState) -> list[int | None]:
    found = []
    for minute, each in enumerate(declared):
        decision = decide(each, held, NOW + timedelta(minutes=minute))
        held = remember(each, held, decision)
        found.append(decision.desired)
    return found


@pytest.mark.parametrize(
    ("recommended", "decided"),
    [([6, 2], 4), ([3, 2], 3), ([3, 2, 2, 2, 2, 2], 2), ([2, 6], 4), ([5, 6], 5), ([6], 6)],
)
def test_a_recommendation_takes_effect_once_it_has_lasted(
    recommended: list[int], decided: int
) -> None:
    declared = [recommending(capacity, guards=BOTH) for capacity in recommended]
    held = holding(-300)  # the backlog is never missing
    assert decided_each_minute(declared, held)[-1] == decided


def test_a_fallback_takes_effect_once_it_has_lasted_for_the_stabilization_window() -> None:
    guards = Guards(missing=Missing(180, 8), stabilisation_out_seconds=240)
    declared = [recommending(4, guards=guards)] * 8
    # missing from minute 2 on
    assert decided_each_minute(declared, holding(120)) == [4] * 6 + [8] * 2


KEPT = (sample(3, 241), sample(4, 240), sample(5, 60))


@pytest.mark.parametrize(
    ("guards", "mode", "remembered"),
    [
        (Guards(), Mode.ACTIVE, KEPT),
        (IN, Mode.ACTIVE, (*KEPT[1:], sample(6))),
        (OUT, Mode.ACTIVE, (*KEPT[1:], sample(6))),
        (replace(OUT, stabilisation_in_seconds=60), Mode.ACTIVE, (*KEPT[1:], sample(6))),
        (IN, Mode.PAUSED, KEPT),
    ],
)
def test_recommendations_are_kept_for_the_longer_stabilization_window_only(
    guards: Guards, mode: Mode, remembered: tuple[object, ...]
) -> None:
    declared = recommending(6, guards=guards, mode=mode)
    held = state([50], 4, recommendations=Window(KEPT))
    after = remember(declared, held, decide(declared, held, NOW))
    assert after.recommendations.samples == remembered


# --- flaps ---


class Share:
    """Recommends one more instance while CPU is above 60 %."""

    utilisation_names = ("cpu", "undeclared")

    def __call__(self, seen: Observation) -> Recommendation:
        now, then = seen.window("cpu").latest, seen.history("cpu").latest
        assert now is not None
        assert now == then
        more = now.value > 60
        return Recommendation(seen.capacity + more, "busy" if more else "fine")


@pytest.mark.parametrize(
    ("cpu", "recommended", "capacity", "at"),
    [
        (30, 2, None, 0),
        (31, 2, 3, 2),
        (46, 2, 4, 2),
        (30, 4, None, 0),
        (61, 4, None, 0),
        (61, 5, None, 0),
        (15, 0, None, 0),
        (16, 0, 2, 1),
    ],
)
def test_no_scale_in_to_a_capacity_at_which_the_policy_would_scale_out_again(
    cpu: float, recommended: int, capacity: int | None, at: int
) -> None:
    """CPU is projected from four instances to the recommended capacity."""
    held = holding().with_history("cpu", history([cpu]))
    off = Guards(flap_projection=False)
    for paced, guards in ((False, Guards()), (True, Guards()), (False, off)):
        declared = resource(metrics={"cpu": SOURCE}, policy=Share(), guards=guards)
        seen = observe(declared, held, 4, NOW)
        recommendation = Recommendation(recommended, "recommended", paced=paced)
        context = Context(declared, held, seen, None, recommendation)
        text = f"at a capacity of {at}, the policy would scale out again"
        expected = None if paced or guards is off or capacity is None else Limit(capacity, text)
        assert rules.flap_projection(recommended, context) == expected


@pytest.mark.parametrize(("capacity", "recommended"), [(4, 3), (3, 2)])
def test_a_policy_that_would_not_scale_out_at_the_lower_capacity_may_scale_in(
    capacity: int, recommended: int
) -> None:
    declared = recommending(1, limits=Limits(3, 20), guards=Guards())
    held = state([0], capacity)
    seen = observe(declared, held, capacity, NOW)
    context = Context(declared, held, seen, None, Recommendation(recommended, "idle"))
    assert rules.flap_projection(recommended, context) is None


# --- rate limits ---

TWO_OUT, ONE_IN = RateLimit("out", 300, instances=2), RateLimit("in", 300, instances=1)


@pytest.mark.parametrize(
    ("limits", "recommended", "capacity", "named"),
    [
        ((TWO_OUT,), 6, None, ""),
        ((TWO_OUT,), 7, 6, "out by at most 2 in 300"),
        ((ONE_IN,), 3, None, ""),
        ((ONE_IN,), 2, 3, "in by at most 1 in 300"),
        ((ONE_IN, TWO_OUT), 7, 6, "out by at most 2 in 300"),
        ((TWO_OUT, ONE_IN), 2, 3, "in by at most 1 in 300"),
        ((TWO_OUT, ONE_IN), 4, None, ""),
        ((RateLimit("out", 300, percent=50),), 7, 6, "out by at most 50 % in 300"),
        ((RateLimit("in", 300, instances=0),), 2, 4, "in by at most 0 in 300"),
        ((RateLimit("out", 300, percent=0),), 7, 4, "out by at most 0 % in 300"),
        ((TWO_OUT, RateLimit("out", 60, percent=25)), 9, 5, "out by at most 25 % in 60"),
        ((RateLimit("out", 60, percent=50), TWO_OUT), 7, 6, "out by at most 50 % in 60"),
        ((RateLimit("in", 60, percent=25), ONE_IN), 2, 3, "in by at most 25 % in 60"),
    ],
)
def test_the_strictest_rate_limit_of_the_direction_is_named_and_the_first_of_equal_ones(
    limits: tuple[RateLimit, ...], recommended: int, capacity: int | None, named: str
) -> None:
    declared = recommending(recommended, guards=Guards(rate_limits=limits))
    expected = None if capacity is None else (capacity, f"rate limit: scale {named} s")
    assert asked(rules.rate_limits, declared, holding(0)) == expected


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
    capacities = Window((sample(4, 900), sample(4, 75), sample(5, 60), sample(5)))
    held = state([50], 5).with_history(CAPACITY_METRIC, capacities)
    guards = Guards(rate_limits=(limit,), flap_projection=False)
    assert decide(recommending(recommended, guards=guards), held, NOW).desired == desired


@pytest.mark.parametrize("direction", ["out", "in"])
def test_a_percentage_is_rounded_from_its_exact_value_and_above_0_allows_one_instance(
    direction: Literal["out", "in"],
) -> None:
    wanted = 10_000 if direction == "out" else -10_000
    for tenths in (*range(0, 1001, 10), 1, 4, 333, 335, 999):
        limit = RateLimit(direction, 300, percent=tenths / 10)
        declared = resource(limits=Limits(1, 20), guards=Guards(rate_limits=(limit,)))
        for base in range(1, 101):
            seen = Observation("plan-1", NOW, base, declared.limits, {})
            context = Context(declared, ScalingState(), seen, None, Recommendation(wanted, ""))
            share = Fraction(tenths * base, 1000)
            size = ceil(share) if direction == "out" else max(floor(share), 1 if share else 0)
            found = rules.rate_limits(wanted, context)
            assert found is not None
            assert abs(found.capacity - base) == size, (base, tenths / 10)


# --- cooldown ---


def changed(seconds_ago: float, *, out: bool) -> Desired:
    return confirmed(seconds_ago, target=4, changed_out=out)


BY_HAND = adopt(confirmed(900, target=2), 4, ago(60))
WAITS, PIERCES = Cooldown(300, 600, scale_out_pierces=False), Cooldown(300, 600)


@pytest.mark.parametrize(
    ("last", "recommended", "paced", "cooldown", "answer"),
    [
        (changed(300, out=True), 6, False, WAITS, (4, "scale-out cooldown until 12:00:00 UTC")),
        (changed(301, out=True), 6, False, WAITS, None),
        (changed(600, out=True), 2, False, WAITS, (4, "scale-in cooldown until 12:00:00 UTC")),
        (changed(601, out=True), 2, False, WAITS, None),
        (changed(120, out=True), 4, False, WAITS, None),
        (changed(120, out=False), 6, False, PIERCES, None),
        (changed(120, out=False), 6, False, WAITS, (4, "scale-out cooldown until 12:03:00 UTC")),
        (changed(120, out=True), 6, False, PIERCES, (4, "scale-out cooldown until 12:03:00 UTC")),
        (changed(120, out=False), 2, False, PIERCES, (4, "scale-in cooldown until 12:08:00 UTC")),
        (changed(120, out=True), 6, True, WAITS, None),
        (changed(120, out=True), 2, True, WAITS, None),
        (BY_HAND, 6, True, WAITS, None),
        (BY_HAND, 2, True, WAITS, (4, "scale-in cooldown until 12:09:00 UTC")),
    ],
)
def test_the_cooldown_of_each_direction_runs_from_the_confirmed_change(
    last: Desired, recommended: int, paced: bool, cooldown: Cooldown, answer: Answer
) -> None:
    """A paced policy does not wait, except for a scale-in after a manual change."""
    declared = recommending(recommended, paced=paced, cooldown=cooldown)
    assert asked(rules.cooldown, declared, holding(0, desired=last)) == answer


FILLS = desired(target=15, previous=3, reached=9)
EMPTIES = desired(target=3, previous=15, reached=9)


@pytest.mark.parametrize(
    ("wanted", "last", "capacity", "decided"),
    [
        (lambda n: n + 8, FILLS, 9, 9),
        (lambda n: n + 1, FILLS, 9, 9),
        (lambda n: n - 1, EMPTIES, 9, 9),
        # what does not follow from the progress, what is against it, and what is not on the way
        (lambda _: 20, FILLS, 9, 20),
        (lambda _: 12, FILLS, 9, 12),
        (lambda n: n - 1, FILLS, 9, 8),
        (lambda n: n + 1, EMPTIES, 9, 10),
        (lambda n: n + 1, FILLS, 3, 4),
        (lambda n: n + 1, FILLS, 15, 16),
        (lambda n: n + 1, replace(FILLS, status=ActionStatus.FAILED), 9, 10),
    ],
)
@pytest.mark.parametrize("paced", [False, True])
def test_the_instances_that_a_change_has_brought_lead_to_no_further_change_in_its_direction(
    wanted: Callable[[int], int], last: Desired, capacity: int, decided: int, paced: bool
) -> None:
    declared = replace(
        recommending(1),
        policy=lambda seen: Recommendation(wanted(seen.capacity), "wanted", paced=paced),
    )
    found = decide(declared, holding(0, capacity=capacity, desired=last), NOW)
    assert found.desired == (wanted(capacity) if paced else decided)
    assert ("filling" in found.limited_by) is (found.desired == capacity)


def test_a_fallback_capacity_does_not_wait_for_a_plan_that_fills() -> None:
    guards = Guards(missing=Missing(60, 20), flap_projection=False)
    declared = replace(
        recommending(1, guards=guards),
        policy=lambda seen: Recommendation(seen.capacity, "no samples"),
    )
    assert decide(declared, holding(500, capacity=9, desired=FILLS), NOW).desired == 20


@pytest.mark.parametrize("status", [ActionStatus.PENDING, ActionStatus.FAILED])
def test_the_cooldown_of_a_manual_change_applies_beside_an_action_that_did_not_succeed(
    status: ActionStatus,
) -> None:
    """25 instances were set manually, and the action to the maximum of 20 was refused."""
    by_hand = adopt(confirmed(900, target=2), 25, ago(60))
    action = request(decide(recommending(20), state([0], 25, by_hand), ago(30)), by_hand)
    held = state([0], 25, replace(action, status=status))
    assert decide(recommending(1, paced=True), held, NOW).desired in (20, 25)


# --- overrides and bounds ---


@pytest.mark.parametrize(
    ("override", "recommended", "answer"),
    [
        (Override(exact=7), 2, (7, "an override sets exactly 7")),
        (Override(exact=7, reason="sale"), 7, (7, "an override sets exactly 7 (sale)")),
        (Override(floor=3), 2, (3, "an override sets at least 3")),
        (Override(floor=3), 3, None),
        (Override(freeze_scale_in=True), 3, (4, "an override prevents scale-in")),
        (Override(freeze_scale_in=True), 4, None),
        (Override(), 2, None),
        (None, 2, None),
    ],
)
def test_an_override_gives_its_reason_and_limits_only_what_contradicts_it(
    override: Override | None, recommended: int, answer: Answer
) -> None:
    held = holding(0, override=override)
    assert asked(rules.override, recommending(recommended), held) == answer


@pytest.mark.parametrize(
    ("recommended", "answer"),
    [(0, (1, "the minimum is 1")), (1, None), (20, None), (21, (20, "the maximum is 20"))],
)
def test_the_minimum_and_the_maximum_themselves_are_allowed(
    recommended: int, answer: Answer
) -> None:
    assert asked(rules.bounds, recommending(recommended), holding(0)) == answer


# --- actions under way ---


@pytest.mark.parametrize(
    ("last", "recommended", "held_back"),
    [
        (REFUSED, 6, True),
        (REFUSED, 2, True),
        (REFUSED, 4, False),
        (replace(REFUSED, retry_at=NOW), 6, False),
        (replace(REFUSED, retry_at=None), 6, False),
        (replace(REFUSED, status=ActionStatus.PENDING), 6, False),
        (confirmed(900, target=6), 6, False),
        (IN_PART, 6, True),
        (IN_PART, 4, False),
        (replace(IN_PART, retry_at=NOW), 6, False),
        (None, 6, False),
    ],
)
def test_only_an_action_that_ended_early_prevents_a_change_and_only_until_its_retry_time(
    last: Desired | None, recommended: int, held_back: bool
) -> None:
    answer = asked(rules.failed_action, recommending(recommended), holding(0, desired=last))
    ended = "reached 4 of 6" if last and last.given_up else "failed"
    why = f"the last action {ended} (403): holding until 12:00:01 UTC"
    assert answer == ((4, why) if held_back else None)


@pytest.mark.parametrize(
    ("last", "recommended", "requested"),
    [
        (desired(target=6), 6, True),
        (desired(target=6), 7, False),
        (REFUSED, 6, False),
        (None, 6, False),
    ],
)
def test_only_the_target_of_a_pending_action_counts_as_already_requested(
    last: Desired | None, recommended: int, requested: bool
) -> None:
    answer = asked(rules.already_requested, recommending(recommended), holding(0, desired=last))
    assert answer == ((4, "already requested as epoch 7") if requested else None)


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
    recommended=st.integers(-100, 100),
    capacity=st.integers(1, 25),
    seconds=st.sampled_from([0, 200, 4000]),
    override=st.builds(
        Override,
        floor=st.none() | st.integers(0, 30),
        exact=st.none() | st.integers(0, 30),
        freeze_scale_in=st.booleans(),
    ),
    last=st.sampled_from([None, REFUSED, confirmed(30), desired(), desired(target=9)]),
)
def test_any_combination_of_guards_keeps_the_capacity_in_bounds_and_gives_reasons(
    guards: Guards,
    recommended: int,
    capacity: int,
    seconds: int,
    override: Override,
    last: Desired | None,
) -> None:
    held = holding(seconds, capacity=capacity, override=override, desired=last)
    declared = recommending(recommended, guards=guards)
    decision = decide(declared, held, NOW)
    assert decision.desired is not None
    if decision.applies:
        assert declared.limits.minimum <= decision.desired <= declared.limits.maximum
        assert decision.desired != decision.current or "revoked" in decision.limited_by
    if decision.desired != recommended:
        assert decision.limited_by
        assert decision.reason.count(";") >= len(decision.limited_by)
