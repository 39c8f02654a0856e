"""Each guard by itself: exactly what it answers at its bounds, and in which words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from shared.autoscaling.measurements import CAPACITY_METRIC, Window
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import ActionStatus, Desired, Override, ScalingState
from tests.builders import NOW, SOURCE, ago, confirmed, desired, history, resource, sample, state


def wanting(wish: Recommendation) -> PolicyFunction:
    return lambda _: wish


def context(
    held: ScalingState, wish: Recommendation, word: Override | None = None, **changes: Any
) -> Context:
    found: Resource = resource(policy=wanting(wish), limits=Limits(1, 20), **changes)
    seen = observe(found, held, int(held.histories[CAPACITY_METRIC].samples[-1].value), NOW)
    return Context(found, held, seen, word, wish)


def said(
    guard: Guard,
    wanted: int,
    held: ScalingState | None = None,
    *,
    paced: bool = False,
    forced: bool = False,
    **changes: Any,
) -> Limit | None:
    """The guard's answer to a wish where four instances are, unless the state says otherwise."""
    wish = Recommendation(wanted, "wanted", paced=paced)
    asked = context(held or state([50], 4), wish, **changes)
    asked.forced = forced
    return guard(wanted, asked)


def silent(**seconds: float | None) -> ScalingState:
    """Metrics that were read last so long ago; None for never."""
    held = state(capacity=4)
    old = {name: Window((sample(50, age),)) for name, age in seconds.items() if age is not None}
    return replace(held, histories={CAPACITY_METRIC: held.histories[CAPACITY_METRIC], **old})


# --- missing data ---


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize(
    ("strict", "lax", "answer"),
    [
        ("hold", "hold_in", Limit(4, "a is missing for 500 s: holding")),
        (3, "hold", Limit(3, "a is missing for 500 s: falling back to 3")),
        (0, "hold", Limit(0, "a is missing for 500 s: falling back to 0")),
        (0, "hold_in", Limit(0, "a is missing for 500 s: falling back to 0")),
        (5, 3, Limit(5, "a is missing for 500 s: falling back to 5")),
    ],
)
def test_of_missing_metrics_a_fallback_counts_before_a_hold_and_a_hold_before_no_scale_in(
    names: tuple[str, str], strict: Any, lax: Any, answer: Limit
) -> None:
    missing = {"a": Missing(180, strict), "b": Missing(180, lax)}
    guards = Guards(missing_by_metric=missing)
    metrics = dict.fromkeys(names, SOURCE)
    held = silent(a=500, b=500)
    assert said(rules.missing_data, 2, held, metrics=metrics, guards=guards) == answer


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_of_metrics_that_are_missing_alike_the_first_that_is_declared_is_named(
    names: tuple[str, str],
) -> None:
    guards = Guards(missing=Missing(180, "hold"))
    metrics = dict.fromkeys(names, SOURCE)
    answer = said(rules.missing_data, 2, silent(a=500, b=500), metrics=metrics, guards=guards)
    assert answer == Limit(4, f"{names[0]} is missing for 500 s: holding")


def test_missing_data_say_nothing_to_a_wish_that_is_no_scale_in() -> None:
    assert said(rules.missing_data, 4, silent(backlog=500)) is None
    assert said(rules.missing_data, 3, silent(backlog=500)) == Limit(
        4, "backlog is missing for 500 s: no scale-in"
    )


def test_a_count_of_finished_items_may_be_missing() -> None:
    """It teaches, and decides nothing."""
    metrics = {"backlog": SOURCE, "done": SOURCE}
    throughput = Throughput(completed_metric="done")
    held = silent(backlog=0, done=5000)
    assert said(rules.missing_data, 2, held, metrics=metrics, throughput=throughput) is None


def test_without_any_capacity_that_was_read_there_was_no_time_to_read_a_metric() -> None:
    known = ScalingState(desired=confirmed(900, target=4))
    guards = Guards(missing=Missing(0, 9))
    decision = decide(resource(guards=guards), known, NOW)
    assert decision.desired == 4
    assert "backlog was never read yet" in decision.reason
    assert rules.waited_seconds((), NOW) == 0


# --- the consumer's breaker ---


@pytest.mark.parametrize(("age", "scales"), [(600, False), (601, True)])
def test_a_breaker_counts_as_long_as_its_own_rule_for_missing_data_says(
    age: float, scales: bool
) -> None:
    guards = Guards(breaker_metric="breaker", missing_by_metric={"breaker": Missing(600)})
    held = silent(backlog=0, breaker=age)
    metrics = {"backlog": SOURCE, "breaker": SOURCE}
    answer = said(rules.consumer_broken, 6, held, metrics=metrics, guards=guards)
    why = "the consumer's circuit breaker is open (breaker): no scale-out"
    assert answer == (None if scales else Limit(4, why))


# --- stabilisation ---


@pytest.mark.parametrize(
    ("wanted", "wishes", "answer"),
    [
        (2, [(3, 240)], Limit(3, "3 is the highest wish of the stabilisation window")),
        (2, [(3, 241)], None),
        (2, [(6, 60)], Limit(4, "4 is the highest wish of the stabilisation window")),
        (6, [(5, 240)], Limit(5, "5 is the lowest wish of the stabilisation window")),
        (6, [(5, 241)], None),
        (6, [(2, 60)], Limit(4, "4 is the lowest wish of the stabilisation window")),
        (4, [(2, 60), (6, 60)], None),
    ],
)
def test_a_window_holds_back_all_but_the_mildest_wish_in_it(
    wanted: int, wishes: list[tuple[int, float]], answer: Limit | None
) -> None:
    held = replace(state([50], 4), wishes=Window(tuple(sample(*wish) for wish in wishes)))
    guards = Guards(stabilisation_in_seconds=240, stabilisation_out_seconds=240)
    assert said(rules.stabilisation, wanted, held, guards=guards) == answer
    assert said(rules.stabilisation, wanted, held, guards=guards, forced=True) is None


@pytest.mark.parametrize(
    ("guards", "wanted"),
    [
        (Guards(stabilisation_in_seconds=240), 6),
        (Guards(stabilisation_out_seconds=240), 2),
    ],
)
def test_a_window_of_one_direction_leaves_the_other_alone(guards: Guards, wanted: int) -> None:
    held = replace(state([50], 4), wishes=Window((sample(4, 60),)))
    assert said(rules.stabilisation, wanted, held, guards=guards) is None


# --- flaps ---


class Share:
    """Wants another instance where the load of each is above 60 %."""

    utilisation_names = ("cpu", "undeclared")

    def __call__(self, seen: Observation) -> Recommendation:
        now, then = seen.window("cpu").latest, seen.history("cpu").latest
        assert now is not None
        assert then is not None
        assert now.value == then.value
        more = now.value > 60
        return Recommendation(seen.capacity + more, "busy" if more else "fine")


@pytest.mark.parametrize(
    ("cpu", "wanted", "answer"),
    [
        (30, 2, None),
        (31, 2, Limit(3, "at 2 the rules would scale out again")),
        (46, 2, Limit(4, "at 2 the rules would scale out again")),
        (30, 4, None),
        (61, 4, None),
        (61, 5, None),
        (15, 0, None),
        (16, 0, Limit(2, "at 1 the rules would scale out again")),
    ],
)
def test_shares_per_instance_are_projected_to_the_capacity_that_is_wanted(
    cpu: float, wanted: int, answer: Limit | None
) -> None:
    held = replace(state(capacity=4), histories={
        CAPACITY_METRIC: state(capacity=4).histories[CAPACITY_METRIC], "cpu": history([cpu])
    })  # fmt: skip
    found = resource(metrics={"cpu": SOURCE}, policy=Share(), limits=Limits(1, 20))
    seen = observe(found, held, 4, NOW)
    for paced, forced, expected in (
        (False, False, answer),
        (True, False, None),
        (False, True, None),
    ):
        wish = Recommendation(wanted, "wanted", paced=paced)
        asked = Context(found, held, seen, None, wish, forced)
        assert rules.flap_projection(wanted, asked) == expected


def test_a_rule_that_is_content_at_the_lower_capacity_may_scale_in_though_it_asks_for_less() -> (
    None
):
    found = resource(policy=wanting(Recommendation(1, "idle")), limits=Limits(3, 20))
    seen = observe(found, state([0], 4), 4, NOW)
    asked = Context(found, state([0], 4), seen, None, Recommendation(3, "idle"))
    assert rules.flap_projection(3, asked) is None
    at_minimum = Context(
        found, state([0], 3), observe(found, state([0], 3), 3, NOW), None, asked.wish
    )
    assert rules.flap_projection(2, at_minimum) is None


# --- rate limits ---

OUT, IN = RateLimit("out", 300, instances=2), RateLimit("in", 300, instances=1)


@pytest.mark.parametrize(
    ("limits", "wanted", "answer"),
    [
        ((OUT,), 6, None),
        ((OUT,), 7, Limit(6, "at most 2 out in 300 s")),
        ((IN,), 3, None),
        ((IN,), 2, Limit(3, "at most 1 in in 300 s")),
        ((IN, OUT), 7, Limit(6, "at most 2 out in 300 s")),
        ((OUT, IN), 2, Limit(3, "at most 1 in in 300 s")),
        ((OUT, IN), 4, None),
        ((RateLimit("out", 300, percent=50),), 7, Limit(6, "at most 50 % out in 300 s")),
        ((RateLimit("in", 300, percent=25),), 2, Limit(3, "at most 25 % in in 300 s")),
        ((RateLimit("in", 300, percent=24),), 2, Limit(4, "at most 24 % in in 300 s")),
        ((RateLimit("in", 300, instances=0),), 2, Limit(4, "at most 0 in in 300 s")),
        ((RateLimit("out", 300, percent=0),), 7, Limit(4, "at most 0 % out in 300 s")),
        (
            (OUT, RateLimit("out", 60, percent=25)),
            9,
            Limit(5, "at most 25 % out in 60 s"),
        ),
        ((RateLimit("out", 60, percent=50), OUT), 7, Limit(6, "at most 50 % out in 60 s")),
        ((RateLimit("in", 60, percent=25), IN), 2, Limit(3, "at most 25 % in in 60 s")),
    ],
)
def test_the_strictest_limit_of_the_direction_is_named_and_the_first_of_equals(
    limits: tuple[RateLimit, ...], wanted: int, answer: Limit | None
) -> None:
    assert said(rules.rate_limits, wanted, guards=Guards(rate_limits=limits)) == answer


def test_a_percentage_counts_to_the_last_hundredth_of_many_instances() -> None:
    held = state([50], 100)
    all_of_them = Guards(rate_limits=(RateLimit("in", 300, percent=100),))
    assert said(rules.rate_limits, 0, held, guards=all_of_them) is None


# --- cooldown ---


@pytest.mark.parametrize(
    ("wanted", "words"),
    [(6, "scale-out cooldown until 12:08:00 UTC"), (2, "scale-in cooldown until 12:08:00 UTC")],
)
def test_a_cooldown_names_its_direction_and_its_end(wanted: int, words: str) -> None:
    held = state([50], 4, confirmed(120, target=4, changed_out=True))
    cooldown = Cooldown(600, 600)
    assert said(rules.cooldown, wanted, held, cooldown=cooldown) == Limit(4, words)
    assert said(rules.cooldown, 4, held, cooldown=cooldown) is None
    assert said(rules.cooldown, wanted, held, cooldown=cooldown, forced=True) is None


# --- people ---


@pytest.mark.parametrize(
    ("word", "wanted", "answer"),
    [
        (Override(exact=7), 2, Limit(7, "exactly 7 by override")),
        (Override(exact=7, reason="sale"), 7, Limit(7, "exactly 7 by override (sale)")),
        (Override(floor=3), 2, Limit(3, "at least 3 by override")),
        (Override(floor=3), 3, None),
        (Override(freeze_scale_in=True), 3, Limit(4, "scale-in is frozen by override")),
        (Override(freeze_scale_in=True), 4, None),
        (Override(), 2, None),
        (None, 2, None),
    ],
)
def test_a_person_is_quoted_and_overrules_only_what_goes_against_the_word(
    word: Override | None, wanted: int, answer: Limit | None
) -> None:
    assert said(rules.override, wanted, word=word) == answer


@pytest.mark.parametrize(
    ("wanted", "answer"),
    [
        (0, Limit(1, "minimum is 1")),
        (1, None),
        (20, None),
        (21, Limit(20, "maximum is 20")),
    ],
)
def test_bounds_are_allowed_themselves(wanted: int, answer: Limit | None) -> None:
    assert said(rules.bounds, wanted) == answer


# --- orders under way ---

REFUSED = desired(status=ActionStatus.FAILED, last_error="403", retry_at=ago(-1), target=6)


@pytest.mark.parametrize(
    ("last", "wanted", "held_back"),
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
def test_only_a_refused_action_holds_back_a_change_and_only_until_its_next_try(
    last: Desired | None, wanted: int, held_back: bool
) -> None:
    why = "last action failed (403); next try after 12:00:01 UTC"
    answer = said(rules.failed_action, wanted, state([50], 4, last))
    assert answer == (Limit(4, why) if held_back else None)


@pytest.mark.parametrize(
    ("last", "wanted", "requested"),
    [
        (desired(target=6), 6, True),
        (desired(target=6), 7, False),
        (REFUSED, 6, False),
        (None, 6, False),
    ],
)
def test_only_the_pending_target_is_requested_already(
    last: Desired | None, wanted: int, requested: bool
) -> None:
    answer = said(rules.already_requested, wanted, state([50], 4, last))
    assert answer == (Limit(4, "already requested as epoch 7") if requested else None)
