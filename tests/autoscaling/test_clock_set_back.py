"""What a state means whose times lie in the future, because the servers' clock was set back."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from shared.autoscaling.actions import as_of, reconcile
from shared.autoscaling.deciding.samples import FUTURE_TOLERANCE_SECONDS
from shared.autoscaling.measurements import CAPACITY_METRIC, Metric, Window
from shared.autoscaling.state import ActionStatus, Desired, ScalingState
from shared.autoscaling.transition import advance, advance_all
from tests.builders import NOW, TIMING, ago, confirmed, desired, metric, resource, sample

TEN_MINUTES = 600.0
WITHIN, BEYOND = -FUTURE_TOLERANCE_SECONDS, -FUTURE_TOLERANCE_SECONDS - 1


def written_before(**changes: object) -> ScalingState:
    """A state of which the clock was set back by ten minutes: it read NOW plus that before."""
    fields = {
        "histories": {
            "backlog": Window((sample(50, 5), sample(5, -TEN_MINUTES))),
            CAPACITY_METRIC: Window((sample(4, 5), sample(2, -TEN_MINUTES))),
        },
        **changes,
    }
    return ScalingState(**fields)  # type: ignore[arg-type]


def test_samples_of_the_future_do_not_count_and_those_of_before_do() -> None:
    state = as_of(written_before(), NOW)
    assert state.histories["backlog"].samples == (sample(50, 5),)
    assert state.histories[CAPACITY_METRIC].samples == (sample(4, 5),)


def test_clocks_that_differ_by_no_more_than_those_of_services_change_nothing() -> None:
    before = ScalingState(
        {"backlog": Window((sample(5, WITHIN),))},
        confirmed(WITHIN),
        wishes=Window((sample(3, 0),)),
    )
    assert as_of(before, NOW) is before
    beyond = ScalingState({"backlog": Window((sample(5, BEYOND),))}, confirmed(BEYOND))
    assert as_of(beyond, NOW).histories["backlog"].samples == ()


def test_an_order_of_a_clock_that_differs_by_no_more_stays_as_it_was() -> None:
    ordered = ScalingState(desired=desired(requested_at=ago(WITHIN), sent_at=ago(30)))
    assert as_of(ordered, NOW) is ordered
    sent = ScalingState(desired=desired(requested_at=ago(30), sent_at=ago(WITHIN)))
    assert as_of(sent, NOW) is sent


def test_a_cooldown_begins_now_at_the_latest() -> None:
    state = as_of(written_before(desired=confirmed(-TEN_MINUTES)), NOW)
    assert state.desired is not None
    assert state.desired.changed_at == NOW


def test_times_of_the_past_stay() -> None:
    order = desired(requested_at=ago(-TEN_MINUTES), sent_at=ago(30), changed_at=ago(90))
    state = as_of(written_before(desired=order), NOW)
    assert state.desired is not None
    assert (state.desired.requested_at, state.desired.sent_at) == (NOW, ago(30))
    assert state.desired.changed_at == ago(90)


def test_an_order_of_the_future_was_sent_now_at_the_latest() -> None:
    order = desired(requested_at=ago(90), sent_at=ago(-TEN_MINUTES))
    state = as_of(written_before(desired=order), NOW)
    assert state.desired is not None
    assert (state.desired.requested_at, state.desired.sent_at) == (ago(90), NOW)


@pytest.mark.parametrize(
    ("retry_at", "expected"),
    [(ago(-TEN_MINUTES - 60), NOW), (ago(30), ago(30)), (None, None)],
)
def test_the_hold_after_a_failure_ends_now_at_the_latest(
    retry_at: datetime | None, expected: datetime | None
) -> None:
    failed = desired(status=ActionStatus.FAILED, requested_at=ago(-TEN_MINUTES), retry_at=retry_at)
    state = as_of(written_before(desired=failed), NOW)
    assert state.desired is not None
    assert state.desired.retry_at == expected


def test_wishes_of_the_future_hold_nobody_back() -> None:
    state = as_of(ScalingState(wishes=Window((sample(3, 1), sample(9, -1)))), NOW)
    assert state.wishes.samples == (sample(3, 1),)


def test_an_order_that_was_to_be_repeated_in_the_future_is_repeated_now() -> None:
    order = desired(
        requested_at=ago(-TEN_MINUTES), sent_at=ago(-TEN_MINUTES), retry_at=ago(-TEN_MINUTES - 15)
    )
    found = reconcile(resource(), ScalingState(desired=order), order.previous, NOW, TIMING)
    assert found.action is not None
    assert found.desired is not None
    assert (found.desired.sent_at, found.desired.retry_at) == (NOW, None)


def test_an_order_of_the_future_is_sent_again_and_given_up_no_later_than_others() -> None:
    order = desired(requested_at=ago(-TEN_MINUTES), sent_at=ago(-TEN_MINUTES))
    resent = reconcile(resource(), ScalingState(desired=order), order.previous, NOW, TIMING)
    assert resent.desired is not None
    late = NOW + timedelta(seconds=TIMING.deadline_seconds + 1)
    ended = reconcile(
        resource(), ScalingState(desired=resent.desired), order.previous, late, TIMING
    )
    assert ended.desired is not None
    assert ended.desired.status is ActionStatus.FAILED


def test_a_new_sample_of_the_capacity_counts_though_one_of_before_seems_newer() -> None:
    """Or the app would decide for as long on a capacity that is not there any more."""
    found = resource()
    seen = Metric("plan-1", CAPACITY_METRIC, sample(5, 1))
    for new in (
        advance(found, written_before(), seen, NOW).state,
        advance_all(found, written_before(), [seen], NOW).step.state,
    ):
        assert new.histories[CAPACITY_METRIC].samples[-1] == sample(5, 1)


def test_a_decision_is_taken_on_the_capacity_that_there_is() -> None:
    state = written_before(desired=confirmed(TEN_MINUTES * 2, target=4))
    step = advance(resource(), state, metric(500, 1), NOW)
    assert step.decision is not None
    assert step.decision.current == 4


def test_what_was_moved_is_not_taken_for_a_confirmation() -> None:
    before = written_before(desired=Desired(4, 1, "why", ago(-TEN_MINUTES), 2))
    steps = advance_all(resource(), before, [metric(50, 1)], NOW)
    assert steps.step.confirmed is False
