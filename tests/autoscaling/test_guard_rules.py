"""Each guard on its own: its limit and its reason at each of its bounds."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil, floor
from typing import Any, Literal

import pytest

from shared.autoscaling import (
    Cooldown,
    Limits,
    Observation,
    PolicyFunction,
    Recommendation,
    Throughput,
)
from shared.autoscaling.deciding import guards as rules
from shared.autoscaling.deciding.decide import decide
from shared.autoscaling.deciding.guards import Context, Guard, Limit
from shared.autoscaling.deciding.samples import observe
from shared.autoscaling.declaring import Guards, Missing, RateLimit
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import ActionStatus, Desired, Override, ScalingState
from shared.values.measurements import CAPACITY_METRIC, Window
from tests.builders import NOW, SOURCE, ago, confirmed, desired, history, resource, sample, state


def recommending(recommendation: Recommendation) -> PolicyFunction:
    return lambda _: recommendation


def context(
    held: ScalingState,
    recommendation: Recommendation,
    override: Override | None = None,
    **changes: Any,
) -> Context:
    declared: Resource = resource(
        policy=recommending(recommendation), limits=Limits(1, 20), **changes
    )
    seen = observe(declared, held, int(held.histories[CAPACITY_METRIC].samples[-1].value), NOW)
    return Context(declared, held, seen, override, recommendation)


def limit_of(
    guard: Guard,
    recommended: int,
    held: ScalingState | None = None,
    *,
    paced: bool = False,
    **changes: Any,
) -> Limit | None:
    """The guard's limit for a recommendation. By default the capacity is four."""
    recommendation = Recommendation(recommended, "recommended", paced=paced)
    return guard(recommended, context(held or state([50], 4), recommendation, **changes))


def silent(**seconds: float | None) -> ScalingState:
    """A state in which the newest sample of each metric has this age; None means no sample."""
    held = state(capacity=4)
    old = {name: Window((sample(50, age),)) for name, age in seconds.items() if age is not None}
    return replace(held, histories={CAPACITY_METRIC: held.histories[CAPACITY_METRIC], **old})


# --- missing data ---


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize(
    ("strict", "lax", "answer"),
    [
        ("hold", "hold_in", Limit(4, "a has had no sample for 500 s: holding")),
        ("hold", 3, Limit(4, "a has had no sample for 500 s: holding")),
        (3, 0, Limit(4, "b has had no sample for 500 s: no scale-in")),
        (9, "hold", Limit(9, "a has had no sample for 500 s: falling back to 9")),
        (9, "hold_in", Limit(9, "a has had no sample for 500 s: falling back to 9")),
        (9, 6, Limit(9, "a has had no sample for 500 s: falling back to 9")),
    ],
)
def test_a_higher_fallback_wins_over_a_hold_and_a_hold_over_a_ban_on_scale_in(
    names: tuple[str, str], strict: Any, lax: Any, answer: Limit
) -> None:
    missing = {"a": Missing(180, strict), "b": Missing(180, lax)}
    guards = Guards(missing_by_metric=missing)
    metrics = dict.fromkeys(names, SOURCE)
    held = silent(a=500, b=500)
    assert limit_of(rules.missing_data, 2, held, metrics=metrics, guards=guards) == answer


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_if_several_metrics_are_missing_with_the_same_rule_the_first_declared_one_is_named(
    names: tuple[str, str],
) -> None:
    guards = Guards(missing=Missing(180, "hold"))
    metrics = dict.fromkeys(names, SOURCE)
    answer = limit_of(rules.missing_data, 2, silent(a=500, b=500), metrics=metrics, guards=guards)
    assert answer == Limit(4, f"{names[0]} has had no sample for 500 s: holding")


def test_by_default_missing_data_limits_only_a_scale_in() -> None:
    as_many = Guards(missing=Missing(180, 4))
    assert limit_of(rules.missing_data, 4, silent(backlog=500), guards=as_many) is None
    assert limit_of(rules.missing_data, 4, silent(backlog=500)) is None
    assert limit_of(rules.missing_data, 3, silent(backlog=500)) == Limit(
        4, "backlog has had no sample for 500 s: no scale-in"
    )


def test_a_missing_count_of_finished_items_limits_nothing() -> None:
    """Only the throughput is learned from it. Decisions do not use it."""
    metrics = {"backlog": SOURCE, "done": SOURCE}
    throughput = Throughput(completed_metric="done")
    held = silent(backlog=0, done=5000)
    assert limit_of(rules.missing_data, 2, held, metrics=metrics, throughput=throughput) is None


def test_without_capacity_samples_the_app_has_had_no_time_to_read_a_metric() -> None:
    known = ScalingState(desired=confirmed(900, target=4))
    guards = Guards(missing=Missing(0, 9))
    decision = decide(resource(guards=guards), known, NOW)
    assert decision.desired == 4
    reason = "backlog has no samples yet: holding; falls back to 9 if none arrives within 0 s"
    assert reason in decision.reason
    assert rules.waited_seconds((), NOW) == 0


# --- the consumer's breaker ---


@pytest.mark.parametrize(("age", "scales"), [(600, False), (601, True)])
def test_the_breaker_metric_is_used_for_as_long_as_its_own_missing_rule_allows(
    age: float, scales: bool
) -> None:
    guards = Guards(breaker_metric="breaker", missing_by_metric={"breaker": Missing(600)})
    held = silent(backlog=0, breaker=age)
    metrics = {"backlog": SOURCE, "breaker": SOURCE}
    answer = limit_of(rules.consumer_broken, 6, held, metrics=metrics, guards=guards)
    why = "the consumer's circuit breaker is open (breaker): no scale-out"
    assert answer == (None if scales else Limit(4, why))


# --- stabilization ---


def stabilized(capacity: int, which: str, recommended: int) -> Limit:
    reason = f"the {which} recommendation of the last 240 s is {recommended} (stabilization)"
    return Limit(capacity, reason)


@pytest.mark.parametrize(
    ("recommended", "kept", "answer"),
    [
        (2, [(3, 240)], stabilized(3, "highest", 3)),
        (2, [(3, 241)], None),
        (2, [(6, 60)], stabilized(4, "highest", 6)),
        (6, [(5, 240)], stabilized(5, "lowest", 5)),
        (6, [(5, 241)], None),
        (6, [(2, 60)], stabilized(4, "lowest", 2)),
        (4, [(2, 60), (6, 60)], None),
    ],
)
def test_the_mildest_recommendation_in_the_stabilization_window_wins(
    recommended: int, kept: list[tuple[int, float]], answer: Limit | None
) -> None:
    held = replace(state([50], 4), recommendations=Window(tuple(sample(*each) for each in kept)))
    guards = Guards(stabilisation_in_seconds=240, stabilisation_out_seconds=240)
    assert limit_of(rules.stabilisation, recommended, held, guards=guards) == answer


@pytest.mark.parametrize(
    ("guards", "recommended"),
    [
        (Guards(stabilisation_in_seconds=240), 6),
        (Guards(stabilisation_out_seconds=240), 2),
    ],
)
def test_the_stabilization_window_of_one_direction_does_not_limit_the_other(
    guards: Guards, recommended: int
) -> None:
    held = replace(state([50], 4), recommendations=Window((sample(4, 60),)))
    assert limit_of(rules.stabilisation, recommended, held, guards=guards) is None


# --- flaps ---


class Share:
    """Recommends one more instance while CPU is above 60 %."""

    utilisation_names = ("cpu", "undeclared")

    def __call__(self, seen: Observation) -> Recommendation:
        now, then = seen.window("cpu").latest, seen.history("cpu").latest
        assert now is not None
        assert then is not None
        assert now.value == then.value
        more = now.value > 60
        return Recommendation(seen.capacity + more, "busy" if more else "fine")


@pytest.mark.parametrize(
    ("cpu", "recommended", "answer"),
    [
        (30, 2, None),
        (31, 2, Limit(3, "at a capacity of 2, the policy would scale out again")),
        (46, 2, Limit(4, "at a capacity of 2, the policy would scale out again")),
        (30, 4, None),
        (61, 4, None),
        (61, 5, None),
        (15, 0, None),
        (16, 0, Limit(2, "at a capacity of 1, the policy would scale out again")),
    ],
)
def test_shares_per_instance_are_projected_to_the_recommended_capacity(
    cpu: float, recommended: int, answer: Limit | None
) -> None:
    held = replace(state(capacity=4), histories={
        CAPACITY_METRIC: state(capacity=4).histories[CAPACITY_METRIC], "cpu": history([cpu])
    })  # fmt: skip
    declared = resource(metrics={"cpu": SOURCE}, policy=Share(), limits=Limits(1, 20))
    seen = observe(declared, held, 4, NOW)
    for paced, expected in ((False, answer), (True, None)):
        recommendation = Recommendation(recommended, "recommended", paced=paced)
        asked = Context(declared, held, seen, None, recommendation)
        assert rules.flap_projection(recommended, asked) == expected


def test_a_policy_that_would_not_scale_out_at_the_lower_capacity_may_scale_in() -> None:
    declared = resource(policy=recommending(Recommendation(1, "idle")), limits=Limits(3, 20))
    seen = observe(declared, state([0], 4), 4, NOW)
    asked = Context(declared, state([0], 4), seen, None, Recommendation(3, "idle"))
    assert rules.flap_projection(3, asked) is None
    at_minimum = Context(
        declared,
        state([0], 3),
        observe(declared, state([0], 3), 3, NOW),
        None,
        asked.recommendation,
    )
    assert rules.flap_projection(2, at_minimum) is None


# --- rate limits ---

OUT, IN = RateLimit("out", 300, instances=2), RateLimit("in", 300, instances=1)


def rate_limited(capacity: int, direction: str, size: str, seconds: int = 300) -> Limit:
    return Limit(capacity, f"rate limit: scale {direction} by at most {size} in {seconds} s")


@pytest.mark.parametrize(
    ("limits", "recommended", "answer"),
    [
        ((OUT,), 6, None),
        ((OUT,), 7, rate_limited(6, "out", "2")),
        ((IN,), 3, None),
        ((IN,), 2, rate_limited(3, "in", "1")),
        ((IN, OUT), 7, rate_limited(6, "out", "2")),
        ((OUT, IN), 2, rate_limited(3, "in", "1")),
        ((OUT, IN), 4, None),
        ((RateLimit("out", 300, percent=50),), 7, rate_limited(6, "out", "50 %")),
        ((RateLimit("in", 300, percent=25),), 2, rate_limited(3, "in", "25 %")),
        ((RateLimit("in", 300, percent=24),), 2, rate_limited(3, "in", "24 %")),
        ((RateLimit("in", 300, instances=0),), 2, rate_limited(4, "in", "0")),
        ((RateLimit("out", 300, percent=0),), 7, rate_limited(4, "out", "0 %")),
        (
            (OUT, RateLimit("out", 60, percent=25)),
            9,
            rate_limited(5, "out", "25 %", 60),
        ),
        ((RateLimit("out", 60, percent=50), OUT), 7, rate_limited(6, "out", "50 %", 60)),
        ((RateLimit("in", 60, percent=25), IN), 2, rate_limited(3, "in", "25 %", 60)),
    ],
)
def test_the_strictest_rate_limit_of_the_direction_is_named_and_the_first_of_equal_ones(
    limits: tuple[RateLimit, ...], recommended: int, answer: Limit | None
) -> None:
    assert limit_of(rules.rate_limits, recommended, guards=Guards(rate_limits=limits)) == answer


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
            asked = Context(declared, ScalingState(), seen, None, Recommendation(wanted, ""))
            share = Fraction(tenths * base, 1000)
            size = ceil(share) if direction == "out" else max(floor(share), 1 if share else 0)
            found = rules.rate_limits(wanted, asked)
            assert found is not None
            assert abs(found.capacity - base) == size, (base, tenths / 10)


def test_a_rate_limit_of_100_percent_allows_every_scale_in() -> None:
    held = state([50], 100)
    all_of_them = Guards(rate_limits=(RateLimit("in", 300, percent=100),))
    assert limit_of(rules.rate_limits, 0, held, guards=all_of_them) is None


# --- cooldown ---


@pytest.mark.parametrize(
    ("recommended", "words"),
    [(6, "scale-out cooldown until 12:08:00 UTC"), (2, "scale-in cooldown until 12:08:00 UTC")],
)
def test_a_cooldown_names_its_direction_and_its_end(recommended: int, words: str) -> None:
    held = state([50], 4, confirmed(120, target=4, changed_out=True))
    cooldown = Cooldown(600, 600)
    assert limit_of(rules.cooldown, recommended, held, cooldown=cooldown) == Limit(4, words)
    assert limit_of(rules.cooldown, 4, held, cooldown=cooldown) is None


# --- overrides and bounds ---


@pytest.mark.parametrize(
    ("override", "recommended", "answer"),
    [
        (Override(exact=7), 2, Limit(7, "an override sets exactly 7")),
        (Override(exact=7, reason="sale"), 7, Limit(7, "an override sets exactly 7 (sale)")),
        (Override(floor=3), 2, Limit(3, "an override sets at least 3")),
        (Override(floor=3), 3, None),
        (Override(freeze_scale_in=True), 3, Limit(4, "an override prevents scale-in")),
        (Override(freeze_scale_in=True), 4, None),
        (Override(), 2, None),
        (None, 2, None),
    ],
)
def test_an_override_gives_its_reason_and_limits_only_what_contradicts_it(
    override: Override | None, recommended: int, answer: Limit | None
) -> None:
    assert limit_of(rules.override, recommended, override=override) == answer


@pytest.mark.parametrize(
    ("recommended", "answer"),
    [
        (0, Limit(1, "the minimum is 1")),
        (1, None),
        (20, None),
        (21, Limit(20, "the maximum is 20")),
    ],
)
def test_the_minimum_and_the_maximum_themselves_are_allowed(
    recommended: int, answer: Limit | None
) -> None:
    assert limit_of(rules.bounds, recommended) == answer


# --- actions under way ---

REFUSED = desired(status=ActionStatus.FAILED, last_error="403", retry_at=ago(-1), target=6)


@pytest.mark.parametrize(
    ("last", "recommended", "held_back"),
    [
        (REFUSED, 6, True),
        (REFUSED, 2, True),
        (REFUSED, 4, False),
        (replace(REFUSED, retry_at=NOW), 6, False),
        (replace(REFUSED, retry_at=None), 6, False),
        (replace(REFUSED, status=ActionStatus.PENDING), 6, False),
        (replace(REFUSED, status=ActionStatus.CONFIRMED, changed_at=ago(900)), 6, False),
        (None, 6, False),
    ],
)
def test_only_a_failed_action_prevents_a_change_and_only_until_its_retry_time(
    last: Desired | None, recommended: int, held_back: bool
) -> None:
    why = "the last action failed (403): holding until 12:00:01 UTC"
    answer = limit_of(rules.failed_action, recommended, state([50], 4, last))
    assert answer == (Limit(4, why) if held_back else None)


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
    answer = limit_of(rules.already_requested, recommended, state([50], 4, last))
    assert answer == (Limit(4, "already requested as epoch 7") if requested else None)
