"""States with times in the future, as after the clock of the servers was set back."""

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
    """A state written before the clock was set back by ten minutes, from NOW + 10 min to NOW."""
    fields = {
        "histories": {
            "backlog": Window((sample(50, 5), sample(5, -TEN_MINUTES))),
            CAPACITY_METRIC: Window((sample(4, 5), sample(2, -TEN_MINUTES))),
        },
        **changes,
    }
    return ScalingState(**fields)  # type: ignore[arg-type]


def test_samples_from_the_future_are_dropped_and_older_ones_stay() -> None:
    state = as_of(written_before(), NOW)
    assert state.histories["backlog"].samples == (sample(50, 5),)
    assert state.histories[CAPACITY_METRIC].samples == (sample(4, 5),)


def test_times_in_the_future_within_the_tolerance_of_clocks_stay() -> None:
    before = ScalingState(
        {"backlog": Window((sample(5, WITHIN),))},
        confirmed(WITHIN),
        recommendations=Window((sample(3, 0),)),
    )
    assert as_of(before, NOW) is before
    beyond = ScalingState({"backlog": Window((sample(5, BEYOND),))}, confirmed(BEYOND))
    assert as_of(beyond, NOW).histories["backlog"].samples == ()


def test_an_action_from_the_future_within_the_tolerance_of_clocks_stays() -> None:
    pending = ScalingState(desired=desired(requested_at=ago(WITHIN), sent_at=ago(30)))
    assert as_of(pending, NOW) is pending
    sent = ScalingState(desired=desired(requested_at=ago(30), sent_at=ago(WITHIN)))
    assert as_of(sent, NOW) is sent


def test_a_cooldown_from_the_future_starts_now() -> None:
    state = as_of(written_before(desired=confirmed(-TEN_MINUTES)), NOW)
    assert state.desired is not None
    assert state.desired.changed_at == NOW


def test_only_the_times_in_the_future_are_moved_to_now() -> None:
    action = desired(requested_at=ago(-TEN_MINUTES), sent_at=ago(30), changed_at=ago(90))
    state = as_of(written_before(desired=action), NOW)
    assert state.desired is not None
    assert (state.desired.requested_at, state.desired.sent_at) == (NOW, ago(30))
    assert state.desired.changed_at == ago(90)


def test_a_sending_time_in_the_future_is_moved_to_now() -> None:
    action = desired(requested_at=ago(90), sent_at=ago(-TEN_MINUTES))
    state = as_of(written_before(desired=action), NOW)
    assert state.desired is not None
    assert (state.desired.requested_at, state.desired.sent_at) == (ago(90), NOW)


@pytest.mark.parametrize(
    ("retry_at", "expected"),
    [(ago(-TEN_MINUTES - 60), NOW), (ago(30), ago(30)), (None, None)],
)
def test_a_hold_after_a_failure_that_ends_in_the_future_ends_now(
    retry_at: datetime | None, expected: datetime | None
) -> None:
    failed = desired(status=ActionStatus.FAILED, requested_at=ago(-TEN_MINUTES), retry_at=retry_at)
    state = as_of(written_before(desired=failed), NOW)
    assert state.desired is not None
    assert state.desired.retry_at == expected


def test_recommendations_from_the_future_are_dropped() -> None:
    state = as_of(ScalingState(recommendations=Window((sample(3, 1), sample(9, -1)))), NOW)
    assert state.recommendations.samples == (sample(3, 1),)


def test_an_action_whose_retry_time_lies_in_the_future_is_sent_again_now() -> None:
    action = desired(
        requested_at=ago(-TEN_MINUTES), sent_at=ago(-TEN_MINUTES), retry_at=ago(-TEN_MINUTES - 15)
    )
    reconciliation = reconcile(
        resource(), ScalingState(desired=action), action.previous, NOW, TIMING
    )
    assert reconciliation.action is not None
    assert reconciliation.desired is not None
    assert (reconciliation.desired.sent_at, reconciliation.desired.retry_at) == (NOW, None)


def test_an_action_from_the_future_is_sent_again_and_given_up_after_its_usual_deadline() -> None:
    action = desired(requested_at=ago(-TEN_MINUTES), sent_at=ago(-TEN_MINUTES))
    resent = reconcile(resource(), ScalingState(desired=action), action.previous, NOW, TIMING)
    assert resent.desired is not None
    late = NOW + timedelta(seconds=TIMING.deadline_seconds + 1)
    ended = reconcile(
        resource(), ScalingState(desired=resent.desired), action.previous, late, TIMING
    )
    assert ended.desired is not None
    assert ended.desired.status is ActionStatus.FAILED


def test_a_new_capacity_sample_replaces_older_ones_that_seem_newer() -> None:
    """Otherwise the app would decide from an outdated capacity until the clock has caught up."""
    declared = resource()
    seen = Metric("plan-1", CAPACITY_METRIC, sample(5, 1))
    for new in (
        advance(declared, written_before(), seen, NOW).state,
        advance_all(declared, written_before(), [seen], NOW).step.state,
    ):
        assert new.histories[CAPACITY_METRIC].samples[-1] == sample(5, 1)


def test_a_decision_uses_the_newest_capacity_that_is_not_from_the_future() -> None:
    state = written_before(desired=confirmed(TEN_MINUTES * 2, target=4))
    step = advance(resource(), state, metric(500, 1), NOW)
    assert step.decision is not None
    assert step.decision.current == 4


def test_moving_times_back_does_not_count_as_a_confirmation() -> None:
    before = written_before(desired=Desired(4, 1, "why", ago(-TEN_MINUTES), 2))
    steps = advance_all(resource(), before, [metric(50, 1)], NOW)
    assert steps.step.confirmed is False
