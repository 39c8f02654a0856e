"""The life cycle of an action: which fields each step changes, and which it keeps."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from shared.autoscaling import ManualChange, Mode
from shared.autoscaling.acting.actions import (
    NO_CHANGE,
    Reconciliation,
    Settlement,
    adopt,
    changed_by_hand,
    confirm,
    confirm_if_observed,
    defer,
    enforce,
    entry,
    fail,
    reason_to_ignore,
    reconcile,
    reopen,
    request,
    settle,
)
from shared.autoscaling.deciding.decide import Decision, EntryKind, LogEntry
from shared.autoscaling.state import ActionStatus, Desired, Override, ScaleAction, ScalingState
from tests.builders import NOW, TIMING, ago, confirmed, desired, resource, sample

ENFORCING = resource(on_manual_change=ManualChange.ENFORCE)


def line(kind: EntryKind, reason: str, last: Desired) -> LogEntry:
    """The log entry about an action in the state ``last``."""
    return LogEntry(
        resource_name="plan-1",
        time=NOW,
        kind=kind,
        entry_id=f"{kind}-{last.epoch}-{last.attempts}",
        reason=reason,
        current=last.previous,
        desired=last.target,
        epoch=last.epoch,
    )


def reconciled(
    last: Desired, actual: int, declared: object = None, override: Override | None = None
) -> Reconciliation:
    state = ScalingState(desired=last, override=override)
    return reconcile(declared or resource(), state, actual, NOW, TIMING)  # type: ignore[arg-type]


# --- requested ---


def test_a_request_is_sent_at_once_and_keeps_the_last_change_and_its_direction() -> None:
    decision = Decision("plan-1", NOW, 2, 4, "busy", applies=True)
    last = confirmed(900, target=2, epoch=7, changed_out=False)
    assert request(decision, last) == Desired(
        target=4,
        epoch=8,
        reason="busy",
        requested_at=NOW,
        previous=2,
        sent_at=NOW,
        changed_at=ago(900),
        changed_out=False,
    )


def test_the_first_request_has_no_previous_change() -> None:
    first = request(Decision("plan-1", NOW, 2, 4, "busy", applies=True), None)
    assert (first.epoch, first.changed_at, first.changed_out) == (1, None, None)


# --- confirmed, deferred, failed ---


@pytest.mark.parametrize(("target", "out"), [(3, True), (2, False), (1, False)])
def test_a_confirmation_starts_the_cooldown_of_its_direction_and_clears_the_error(
    target: int, out: bool
) -> None:
    late = desired(target=target, retry_at=ago(-15), attempts=2, last_error="409")
    assert confirm(late, NOW) == replace(
        late,
        status=ActionStatus.CONFIRMED,
        changed_at=NOW,
        changed_out=out,
        retry_at=None,
        last_error="",
    )


def test_a_deferred_action_stays_pending_with_its_error_and_the_time_of_its_retry() -> None:
    last = desired(attempts=1)
    assert defer(last, NOW, "409", TIMING) == replace(
        last, retry_at=ago(-30), attempts=2, last_error="409"
    )


def test_a_failed_action_records_its_error_and_when_the_next_one_is_allowed() -> None:
    last = desired(attempts=1)
    assert fail(last, NOW, "403", TIMING) == replace(
        last, status=ActionStatus.FAILED, retry_at=ago(-60), attempts=2, last_error="403"
    )


# --- settled ---

SETTLEMENTS = [
    Settlement(EntryKind.FAILED, "403"),
    Settlement(EntryKind.DEFERRED, "409"),
    Settlement(EntryKind.MANUAL_CHANGE, "set by hand", actual=6),
    Settlement(EntryKind.CONFIRMED, "capacity changed 2 → 3"),
]


@pytest.mark.parametrize("late", SETTLEMENTS, ids=lambda s: str(s.kind))
def test_a_late_outcome_does_not_change_a_confirmed_action(late: Settlement) -> None:
    """The second delivery of a message may fail after the first one has succeeded."""
    assert settle(confirmed(5, target=3), late, NOW, TIMING) is None


@pytest.mark.parametrize("late", SETTLEMENTS[:3], ids=lambda s: str(s.kind))
def test_only_a_confirmation_changes_a_failed_action(late: Settlement) -> None:
    given_up = desired(status=ActionStatus.FAILED, retry_at=ago(-60))
    assert settle(given_up, late, NOW, TIMING) is None
    assert settle(given_up, SETTLEMENTS[3], NOW, TIMING) == confirm(given_up, NOW)


def test_each_outcome_of_a_pending_action_is_recorded_with_time_reason_and_wait() -> None:
    last = desired()
    failed, deferred, by_hand, done = SETTLEMENTS
    assert settle(last, failed, NOW, TIMING) == fail(last, NOW, "403", TIMING)
    assert settle(last, deferred, NOW, TIMING) == defer(last, NOW, "409", TIMING)
    assert settle(last, by_hand, NOW, TIMING) == adopt(last, 6, NOW)
    assert settle(last, done, NOW, TIMING) == confirm(last, NOW)
    throttled = Settlement(EntryKind.DEFERRED, "429", retry_after_seconds=90)
    assert settle(last, throttled, NOW, TIMING) == defer(last, NOW, "429", TIMING, 90)


# --- manual changes ---


@pytest.mark.parametrize(("actual", "out"), [(6, True), (1, False)])
def test_an_adopted_capacity_is_confirmed_now_with_its_direction(actual: int, out: bool) -> None:
    assert adopt(confirmed(900, target=3, epoch=7), actual, NOW) == Desired(
        target=actual,
        epoch=8,
        reason=f"the capacity was changed manually from 3 to {actual}: adopted",
        requested_at=NOW,
        previous=3,
        status=ActionStatus.CONFIRMED,
        changed_at=NOW,
        changed_out=out,
        changed_by_hand=True,
    )


def test_a_manual_change_to_the_same_capacity_is_not_a_scale_out() -> None:
    assert adopt(confirmed(900, target=3), 3, NOW).changed_out is False


def test_an_enforced_capacity_is_requested_now_and_keeps_the_running_cooldown() -> None:
    last = confirmed(900, target=3, epoch=7, changed_out=True)
    assert enforce(last, 6, NOW, resource().limits) == Desired(
        target=3,
        epoch=8,
        reason="the capacity was changed manually from 3 to 6: set back to 3",
        requested_at=NOW,
        previous=6,
        sent_at=NOW,
        changed_at=ago(900),
        changed_out=True,
    )


def test_a_manual_change_is_adopted_or_set_back_and_logged() -> None:
    last = confirmed(900, target=3, epoch=7)
    adopted, back = adopt(last, 6, NOW), enforce(last, 6, NOW, resource().limits)
    kind = EntryKind.MANUAL_CHANGE
    assert reconciled(last, 6) == Reconciliation(adopted, None, line(kind, adopted.reason, adopted))
    action = ScaleAction("plan-1", 3, 8, back.reason, NOW)
    reconciliation = Reconciliation(back, action, line(kind, back.reason, back))
    assert reconciled(last, 6, ENFORCING) == reconciliation


def test_a_pending_action_is_sent_again_instead_of_setting_a_manual_change_back() -> None:
    """The target is absolute, so the action also reverts the manual change, without a new epoch."""
    reconciliation = reconciled(desired(sent_at=ago(60)), 6, ENFORCING)
    assert reconciliation.entry is not None
    assert reconciliation.entry.kind is EntryKind.RESENT
    assert reconciliation.action is not None
    assert (reconciliation.action.target, reconciliation.action.epoch) == (3, 7)
    assert reconciled(desired(sent_at=ago(59)), 6, ENFORCING) == NO_CHANGE


def test_a_change_counts_as_manual_until_the_next_change_by_the_app_is_confirmed() -> None:
    by_hand = adopt(confirmed(900, target=3), 6, ago(60))
    requested = request(Decision("plan-1", NOW, 6, 4, "idle", applies=True), by_hand)
    assert by_hand.changed_by_hand
    assert requested.changed_by_hand
    assert fail(requested, NOW, "403", TIMING).changed_by_hand
    assert enforce(by_hand, 9, NOW, resource().limits).changed_by_hand
    assert not confirm(requested, NOW).changed_by_hand
    assert confirm(reopen(by_hand, 3, NOW), NOW).changed_by_hand


def test_a_failed_action_that_takes_effect_after_a_capacity_was_enforced_is_not_by_hand() -> None:
    failed = fail(desired(target=8, previous=3, sent_at=ago(600)), ago(300), "403", TIMING)
    back = enforce(failed, 6, NOW, resource().limits)
    assert (back.target, back.superseded) == (3, (8,))
    assert not changed_by_hand(back, 8)
    assert changed_by_hand(back, 7)


# --- reopened ---


def test_a_late_change_makes_a_confirmed_action_pending_again() -> None:
    last = confirmed(900, target=3, previous=2)
    assert reopen(last, 4, NOW) == replace(
        last,
        status=ActionStatus.PENDING,
        previous=4,
        superseded=(4,),
        requested_at=NOW,
        retry_at=NOW,
        last_error="a late change by an older action may have undone this action",
    )


@pytest.mark.parametrize(
    ("last", "capacity"),
    [
        (confirmed(900, target=3), 3),
        (desired(target=3), 2),
        (desired(target=3, status=ActionStatus.FAILED), 2),
        (desired(target=3), 3),
    ],
)
def test_a_late_change_to_a_capacity_that_the_action_explains_does_not_reopen_it(
    last: Desired, capacity: int
) -> None:
    assert reopen(last, capacity, NOW) is last


@pytest.mark.parametrize("status", [ActionStatus.PENDING, ActionStatus.FAILED])
def test_a_late_change_by_the_app_beside_an_open_action_is_not_taken_for_a_manual_one(
    status: ActionStatus,
) -> None:
    """Epoch 5 was confirmed long ago, and is delivered again while epoch 7 is pending."""
    last = desired(previous=2, target=3, superseded=(4,), status=status)
    late = reopen(last, 5, NOW)
    assert late == replace(last, superseded=(4, 5))
    assert not changed_by_hand(late, 5)
    assert reconciled(late, 5).entry is None
    assert reopen(late, 5, NOW) is late


def test_a_reopened_action_gets_a_new_deadline_and_is_sent_at_once() -> None:
    again = reopen(confirmed(900, target=3, epoch=7), 2, NOW)
    reconciliation = reconciled(again, 2)
    assert reconciliation.entry is not None
    assert reconciliation.entry.kind is EntryKind.RESENT
    assert reconciliation.action is not None
    assert (reconciliation.action.target, reconciliation.action.epoch) == (3, 7)


def test_a_capacity_sample_from_before_an_action_was_reopened_does_not_confirm_it() -> None:
    again = ScalingState(desired=reopen(confirmed(900, target=3), 2, ago(10)))
    assert confirm_if_observed(again, sample(3, seconds_ago=11)) is again
    seen = confirm_if_observed(again, sample(3, seconds_ago=9)).desired
    assert seen is not None
    assert seen.status is ActionStatus.CONFIRMED


def test_a_capacity_sample_of_the_same_second_as_the_request_does_not_confirm_it() -> None:
    """The server's clock shows whole seconds, so the sample may be older than the request."""
    requested = ScalingState(desired=desired(requested_at=NOW))
    assert confirm_if_observed(requested, sample(3)) is requested


def test_a_new_request_keeps_the_late_change_of_a_reopened_action_as_the_apps_own() -> None:
    """The decision uses an old capacity sample; only the reopened action has the actual one."""
    again = reopen(confirmed(900, target=5), 4, ago(60))
    newest = request(Decision("plan-1", NOW, 5, 6, "busy", applies=True), again)
    assert not any(changed_by_hand(newest, capacity) for capacity in (4, 5, 6))


# --- the mode in force ---


@pytest.mark.parametrize(("expires_at", "ignored"), [(ago(-1), True), (NOW, False)])
def test_an_override_stops_actions_until_it_expires(expires_at: datetime, ignored: bool) -> None:
    paused = Override(Mode.PAUSED, expires_at=expires_at)
    state = ScalingState(desired=desired(sent_at=ago(600)), override=paused)
    action = ScaleAction("plan-1", 3, 7, "why", ago(30))
    assert (reason_to_ignore(resource(), state, action, NOW) is not None) is ignored
    reconciliation = reconcile(resource(), state, 2, NOW, TIMING)
    assert (reconciliation == NO_CHANGE) is ignored


# --- reconciled ---


@pytest.mark.parametrize("last", [desired(), desired(status=ActionStatus.FAILED)])
def test_a_desired_capacity_that_is_reached_is_confirmed_and_logged(
    last: Desired,
) -> None:
    done = confirm(last, NOW)
    entry_written = line(EntryKind.CONFIRMED, "the capacity is 3, as requested by epoch 7", done)
    assert reconciled(last, 3) == Reconciliation(done, None, entry_written)


@pytest.mark.parametrize(("error", "reason"), [("", "no confirmation arrived"), ("409", "409")])
def test_an_action_past_its_deadline_fails_with_its_last_error(error: str, reason: str) -> None:
    last = desired(requested_at=ago(601), attempts=3, last_error=error)
    failed = fail(last, NOW, reason, TIMING)
    entry_written = line(EntryKind.FAILED, f"the app gave up epoch 7 after 600 s: {reason}", failed)
    assert reconciled(last, 2) == Reconciliation(failed, None, entry_written)


def test_an_action_exactly_at_its_deadline_is_not_given_up() -> None:
    reconciliation = reconciled(desired(requested_at=ago(600), sent_at=ago(600)), 2)
    assert reconciliation.entry is not None
    assert reconciliation.entry.kind is EntryKind.RESENT


@pytest.mark.parametrize(("error", "reason"), [("", "no answer"), ("409", "409")])
def test_an_action_is_sent_again_and_logged_once_per_wait(error: str, reason: str) -> None:
    last = desired(sent_at=ago(600), retry_at=NOW, attempts=2, last_error=error)
    again = replace(last, sent_at=NOW, retry_at=None)
    action = ScaleAction("plan-1", 3, 7, last.reason, last.requested_at)
    entry_written = line(
        EntryKind.RESENT, f"epoch 7 is not confirmed yet ({reason}): sent again", again
    )
    assert reconciled(last, 2) == Reconciliation(again, action, entry_written)
    assert reconciled(again, 2) == NO_CHANGE


def test_the_log_entry_of_an_action_names_resource_epoch_and_capacities() -> None:
    last = desired(attempts=2)
    entry_written = line(EntryKind.DEFERRED, "409", last)
    assert entry(resource(), last, EntryKind.DEFERRED, NOW, "409") == entry_written
    assert entry_written.entry_id == "deferred-7-2"
