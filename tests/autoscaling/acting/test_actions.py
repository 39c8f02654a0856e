"""The life cycle of an action: which fields each step changes, and what the reconciler does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from shared.autoscaling import Limits, ManualChange, Mode
from shared.autoscaling.acting.actions import (
    NO_CHANGE,
    Reconciliation,
    Settlement,
    adopt,
    as_of,
    asked,
    changed_by_hand,
    confirm,
    confirm_if_observed,
    confirm_in_part,
    defer,
    enforce,
    fail,
    partial_target,
    reason_to_ignore,
    reconcile,
    reopen,
    request,
    settle,
)
from shared.autoscaling.deciding.decide import Decision, EntryKind, LogEntry
from shared.autoscaling.deciding.guards import recent_changes
from shared.autoscaling.state import ActionStatus, Desired, Override, ScaleAction, ScalingState
from shared.values.measurements import MetricValue
from tests.builders import NOW, TIMING, ago, confirmed, desired, resource, sample

ENFORCE: dict[str, Any] = {"on_manual_change": ManualChange.ENFORCE}
FAILED = desired(status=ActionStatus.FAILED)
FILLING = desired(target=15, previous=3, reached=9, progressed_at=ago(10), last_error="429")
IN_PART = confirm_in_part(FILLING, 9, NOW, TIMING)
"""The app no longer waits for the rest of FILLING."""
AT_NOW = int(NOW.timestamp())


def action(**changes: Any) -> ScaleAction:
    return replace(ScaleAction("plan-1", 3, 7, "why", ago(30)), **changes)


def decision(current: int, target: int) -> Decision:
    return Decision("plan-1", NOW, current, target, "busy", applies=True)


def reconciled(
    last: Desired | None, actual: int, override: Override | None = None, **changes: Any
) -> Reconciliation:
    state = ScalingState(desired=last, override=override)
    return reconcile(resource(**changes), state, actual, NOW, TIMING)


def line(kind: EntryKind, reason: str, last: Desired) -> LogEntry:
    """The log entry about an action in the state ``last``."""
    return LogEntry(
        resource_name="plan-1",
        time=NOW,
        kind=kind,
        entry_id=f"{kind}-{last.epoch}-{last.attempts}"
        + (f"-{last.target}" if last.target != last.requested else ""),
        reason=reason,
        current=last.previous,
        desired=last.target,
        epoch=last.epoch,
    )


# --- requested, confirmed, deferred, failed ---


def test_a_request_is_sent_at_once_and_keeps_the_last_change_and_its_direction() -> None:
    first = request(decision(2, 4), None)
    assert first == Desired(4, 1, "busy", NOW, 2, sent_at=NOW)
    last = confirmed(900, target=2, epoch=7, changed_out=False)
    again = replace(first, epoch=8, changed_at=ago(900), changed_out=False)
    assert request(decision(2, 4), last) == again


def test_a_manual_change_keeps_the_count_of_the_apps_own_changes() -> None:
    assert adopt(confirmed(60, changes=(1, 2)), 5, NOW).changes == (1, 2)


@pytest.mark.parametrize(("target", "out"), [(3, True), (2, False), (1, False)])
def test_a_confirmation_starts_the_cooldown_of_its_direction_and_clears_the_error(
    target: int, out: bool
) -> None:
    late = desired(target=target, retry_at=ago(-15), attempts=2, last_error="409")
    done = replace(late, status=ActionStatus.CONFIRMED, changed_at=NOW, changed_out=out)
    assert confirm(late, NOW) == replace(done, retry_at=None, last_error="")


def test_the_wait_after_a_deferral_doubles_up_to_sixteen_times() -> None:
    waits = []
    last = desired()
    for _ in range(7):
        last = defer(last, NOW, "409", TIMING)
        assert last.retry_at is not None
        waits.append((last.retry_at - NOW).total_seconds())
    assert waits == [15, 30, 60, 120, 240, 240, 240]
    assert last == replace(desired(), retry_at=ago(-240), attempts=7, last_error="409")


def test_retry_after_of_the_server_determines_the_wait() -> None:
    assert defer(desired(), NOW, "429", TIMING, 90).retry_at == ago(-90)
    assert defer(desired(), NOW, "429", TIMING, 1).retry_at == ago(-15)


def test_a_failed_action_records_its_error_and_when_the_next_one_is_allowed() -> None:
    last = desired(attempts=1)
    assert fail(last, NOW, "403", TIMING) == replace(
        last, status=ActionStatus.FAILED, retry_at=ago(-60), attempts=2, last_error="403"
    )


# --- settled ---

BY_HAND = Settlement(EntryKind.MANUAL_CHANGE, "set by hand", actual=6)
DONE = Settlement(EntryKind.CONFIRMED, "capacity changed 2 → 3")
THROTTLED = Settlement(EntryKind.DEFERRED, "429", retry_after_seconds=90)
THIRTEEN = Settlement(EntryKind.DEFERRED, "reads 13", reached=13)
REFUSED = Settlement(EntryKind.FAILED, "403")
LAST, GIVEN_UP = desired(), desired(status=ActionStatus.FAILED, retry_at=ago(-60))
SETTLED = confirmed(5, target=3)


@pytest.mark.parametrize(
    ("last", "outcome", "after"),
    [
        (LAST, Settlement(EntryKind.FAILED, "403"), fail(LAST, NOW, "403", TIMING)),
        (LAST, Settlement(EntryKind.DEFERRED, "409"), defer(LAST, NOW, "409", TIMING)),
        (LAST, THROTTLED, defer(LAST, NOW, "429", TIMING, 90)),
        (LAST, BY_HAND, adopt(LAST, 6, NOW)),
        (LAST, DONE, confirm(LAST, NOW)),
        (
            FILLING,
            THIRTEEN,
            defer(replace(FILLING, reached=13, progressed_at=NOW), NOW, "reads 13", TIMING),
        ),
        # the reconciler has seen more since, or the capacity is no step towards the target
        *[
            (last, THIRTEEN, defer(last, NOW, "reads 13", TIMING))
            for last in (replace(FILLING, reached=14), replace(FILLING, superseded=(13,)), LAST)
        ],
        (
            LAST,
            replace(THIRTEEN, part=13, change_requested=True),
            defer(LAST, NOW, "reads 13", TIMING),
        ),
        (IN_PART, DONE, confirm(IN_PART, NOW)),
        *[
            (last, REFUSED, fail(last, NOW, "403", TIMING, may_follow=asked))
            for last, asked in [
                (replace(LAST, changes=(AT_NOW - 10,)), True),
                (replace(LAST, changes=(AT_NOW - 60,)), False),  # of an earlier action
                (desired(attempts=1, sent_at=ago(5)), False),
            ]
        ],
        # a second delivery of the message has another outcome later
        *[(SETTLED, late, None) for late in (DONE, BY_HAND, THROTTLED)],
        (SETTLED, Settlement(EntryKind.FAILED, "403"), None),
        *[(GIVEN_UP, late, None) for late in (BY_HAND, THROTTLED)],
        (GIVEN_UP, Settlement(EntryKind.FAILED, "403"), None),
        (GIVEN_UP, DONE, confirm(GIVEN_UP, NOW)),
    ],
)
def test_an_outcome_is_recorded_unless_the_action_has_one_and_a_confirmation_also_after_a_failure(
    last: Desired, outcome: Settlement, after: Desired | None
) -> None:
    assert settle(last, outcome, NOW, TIMING) == after


def test_azure_counts_each_step_of_a_change_and_no_repetition_and_neither_does_the_app() -> None:
    first = asked(replace(LAST, changes=(AT_NOW - 600,)), ago(20))
    assert first.changes == (AT_NOW - 600, AT_NOW - 20)
    assert asked(first, NOW) == first
    step = replace(first, reached=9, progressed_at=ago(20))
    assert asked(step, NOW).changes == (*first.changes, AT_NOW)
    assert asked(replace(step, progressed_at=NOW), NOW).changes == (*first.changes, AT_NOW)
    assert asked(asked(step, NOW), ago(-60)) == asked(step, NOW)


@pytest.mark.parametrize(
    "again",
    [
        lambda last: request(decision(3, 4), last),
        lambda last: reopen(confirm(last, NOW), 2, NOW),
        lambda last: enforce(confirm(last, NOW), 5, NOW, Limits(1, 20)),
    ],
    ids=["another decision", "it was undone", "a manual change is set back"],
)
def test_a_change_does_not_hide_the_one_that_is_requested_in_the_same_second(
    again: Callable[[Desired], Desired],
) -> None:
    last = asked(desired(), NOW)
    assert asked(again(last), ago(-5)).changes == (AT_NOW - 1, AT_NOW + 5)


def test_changes_after_now_do_not_count() -> None:
    changes = tuple(range(AT_NOW - 10, AT_NOW + 40))
    assert len(recent_changes(confirmed(60, changes=changes), NOW)) == 11


# --- which action may still be carried out ---


@pytest.mark.parametrize(
    ("message", "last", "reason"),
    [
        (action(), desired(), None),
        (action(epoch=6), desired(), "epoch 6 was replaced by the decision of epoch 7"),
        (action(epoch=8), desired(), "the state of this resource has no decision of epoch 8"),
        (action(), None, "the state of this resource has no decision of epoch 7"),
        (action(target=4), desired(), "the target of epoch 7 is 3, but the message says 4"),
        (action(), confirmed(5, target=3), "epoch 7 is already confirmed"),
        (action(), FAILED, "epoch 7 is already failed"),
        (action(target=9), desired(target=9), "9 is above the maximum of 5"),
        (action(), desired(retry_at=ago(-1)), f"epoch 7 is tried again at {ago(-1):%H:%M:%S} UTC"),
        (action(), desired(retry_at=NOW), None),
    ],
)
def test_only_the_pending_epoch_is_carried_out(
    message: ScaleAction, last: Desired | None, reason: str | None
) -> None:
    assert reason_to_ignore(resource(), ScalingState(desired=last), message, NOW) == reason


@pytest.mark.parametrize(
    ("mode", "override", "reason"),
    [
        (Mode.ACTIVE, Override(Mode.PAUSED), "mode paused, set by an override"),
        (Mode.ACTIVE, Override(Mode.PAUSED, expires_at=ago(-1)), "mode paused, set by an override"),
        (Mode.ACTIVE, Override(Mode.PAUSED, expires_at=NOW), None),
        (Mode.DRY_RUN, None, "mode dry_run, set in scaling_rules.py"),
    ],
)
def test_actions_of_a_resource_that_is_not_active_are_ignored_and_not_sent_again(
    mode: Mode, override: Override | None, reason: str | None
) -> None:
    state = ScalingState(desired=desired(sent_at=ago(600)), override=override)
    assert reason_to_ignore(resource(mode=mode), state, action(), NOW) == reason
    reconciliation = reconcile(resource(mode=mode), state, 2, NOW, TIMING)
    assert (reconciliation == NO_CHANGE) is (reason is not None)


# --- confirmation by observation ---


@pytest.mark.parametrize(
    ("observed", "requested_at", "at"),
    [
        (sample(3), ago(30), NOW),
        (sample(2), ago(30), None),
        (sample(3, seconds_ago=31), ago(30), None),
        (sample(3), NOW, None),  # times have whole seconds, so it may be older than the request
    ],
)
def test_a_pending_action_is_confirmed_once_its_capacity_is_observed_after_its_request(
    observed: MetricValue, requested_at: datetime, at: datetime | None
) -> None:
    for status in (ActionStatus.PENDING, ActionStatus.FAILED):
        action = desired(target=3, requested_at=requested_at, status=status)
        seen = confirm_if_observed(ScalingState(desired=action), observed).desired
        assert seen == (action if at is None else confirm(action, at))


def test_a_capacity_sample_from_before_an_action_was_reopened_does_not_confirm_it() -> None:
    again = ScalingState(desired=reopen(confirmed(900, target=3), 2, ago(10)))
    assert confirm_if_observed(again, sample(3, seconds_ago=11)) is again
    seen = confirm_if_observed(again, sample(3, seconds_ago=9)).desired
    assert seen is not None
    assert seen.status is ActionStatus.CONFIRMED


# --- manual changes ---


@pytest.mark.parametrize(
    ("last", "actual", "by_hand"),
    [
        (desired(previous=2, target=3), 6, True),
        (desired(previous=2, target=3), 2, False),
        (desired(previous=2, target=3), 3, False),
        (desired(previous=2, target=3, superseded=(5, 4)), 5, False),
        (replace(FAILED, previous=2, target=3), 2, False),
        (replace(FAILED, previous=2, target=3), 5, True),
        (confirmed(900, target=3), 2, True),
        (confirmed(900, target=3), 3, False),
        # an action that may still take effect may have come to any capacity on its way
        *[(FILLING, actual, False) for actual in (9, 12, 15)],
        *[(FILLING, actual, True) for actual in (2, 3, 7, 8, 16)],
        *[(desired(target=3, previous=15, reached=9), actual, False) for actual in (3, 5, 9)],
        *[(desired(target=3, previous=15, reached=9), actual, True) for actual in (2, 10, 15)],
        *[(replace(FILLING, superseded=(5, 20)), actual, False) for actual in (5, 7, 20)],
        *[(replace(FILLING, superseded=(5, 20)), actual, True) for actual in (4, 21)],
        *[(IN_PART, actual, False) for actual in (9, 12, 15)],
        *[(IN_PART, actual, True) for actual in (3, 8, 16)],
        (desired(previous=3, target=15, status=ActionStatus.FAILED), 9, True),
        (desired(previous=3, target=15, given_up=15, status=ActionStatus.FAILED), 9, False),
    ],
)
def test_a_capacity_that_no_decision_explains_was_set_manually(
    last: Desired, actual: int, by_hand: bool
) -> None:
    assert changed_by_hand(last, actual) is by_hand


def test_no_action_within_one_start_up_time_is_taken_for_a_manual_change() -> None:
    last = None
    for target in (3, 4, 3, 5):
        last = request(decision(2, target), last)
    assert last is not None
    assert last.superseded == (4, 3)
    assert not any(changed_by_hand(last, actual) for actual in (2, 3, 4, 5))
    assert changed_by_hand(last, 6)
    assert request(decision(2, 5), confirmed(5)).superseded == ()


@pytest.mark.parametrize(("actual", "out"), [(6, True), (3, False), (1, False)])
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


def test_a_change_counts_as_manual_until_the_next_change_by_the_app_is_confirmed() -> None:
    by_hand = adopt(confirmed(900, target=3), 6, ago(60))
    requested = request(decision(6, 4), by_hand)
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
    assert not any(changed_by_hand(back, actual) for actual in (7, 8))
    assert changed_by_hand(back, 9)


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
        (desired(target=3), 3),
        (desired(target=3, superseded=(2,), status=ActionStatus.FAILED), 2),
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


def test_a_late_change_back_to_the_previous_capacity_may_follow_the_confirmation() -> None:
    """An order to six instances is delivered again while the next one, back to three, is open."""
    late = reopen(desired(previous=6, target=3), 6, NOW)
    undone = reconciled(confirm(late, NOW), 6)
    assert undone.entry is not None
    assert (undone.entry.kind, undone.action and undone.action.target) == (EntryKind.REOPENED, 3)


def test_a_new_request_keeps_the_late_change_of_a_reopened_action_as_the_apps_own() -> None:
    """The decision uses an old capacity sample; only the reopened action has the actual one."""
    again = reopen(confirmed(900, target=5), 4, ago(60))
    newest = request(decision(5, 6), again)
    assert not any(changed_by_hand(newest, capacity) for capacity in (4, 5, 6))


def test_a_late_change_back_from_what_was_reached_is_the_apps_own() -> None:
    for late in (3, 5):
        assert changed_by_hand(FILLING, late)
        assert not changed_by_hand(reopen(FILLING, late, NOW), late)
    again = reopen(IN_PART, 20, NOW)
    assert (again.target, again.previous, again.reached, again.given_up) == (9, 20, None, None)


# --- in pieces ---


def test_the_rest_of_a_change_that_was_confirmed_in_part_stays_the_apps_own() -> None:
    assert (
        replace(
            FILLING,
            target=9,
            status=ActionStatus.CONFIRMED,
            changed_at=NOW,
            changed_out=True,
            retry_at=ago(-60),
            given_up=15,
        )
        == IN_PART
    )
    later = confirm_in_part(IN_PART, 12, ago(-30), TIMING)
    assert (later.previous, later.target, later.given_up, later.retry_at) == (9, 12, 15, ago(-90))
    done = confirm(later, ago(-60))
    assert (done.previous, done.target, done.given_up, done.retry_at) == (12, 15, None, None)
    assert request(decision(9, 5), IN_PART).superseded == (15,)
    less = confirm_in_part(desired(target=3, previous=15), 9, NOW, TIMING)
    assert (less.changed_out, confirm(less, NOW).changed_out) == (False, False)


@pytest.mark.parametrize(
    ("last", "confirms"),
    [
        (desired(previous=9, target=9, superseded=(15,)), False),
        (desired(previous=9, target=12, superseded=(15,)), False),
        (desired(previous=3, target=12, reached=11, superseded=(15,)), False),
        (desired(previous=9, target=5, superseded=(15,)), True),
        (desired(previous=9, target=15, superseded=(12,)), True),
        (desired(previous=9, target=15, superseded=(15,)), True),
        (desired(previous=9, target=12, superseded=(15,), status=ActionStatus.FAILED), True),
    ],
)
def test_a_capacity_on_the_way_of_a_replaced_action_confirms_nothing(
    last: Desired, confirms: bool
) -> None:
    """The plan may only pass it. The scaler requests it anew, and then confirms it."""
    seen = confirm_if_observed(ScalingState(desired=last), sample(last.target)).desired
    assert seen is not None
    assert (seen.status is ActionStatus.CONFIRMED) is confirms
    entry = reconciled(last, last.target).entry
    assert (entry is not None and entry.kind is EntryKind.CONFIRMED) is confirms
    late = reconciled(replace(last, requested_at=LATE), last.target).entry
    assert late is not None
    assert late.kind is EntryKind.CONFIRMED, "at the deadline at the latest"


@pytest.mark.parametrize(
    ("available", "limits", "part"),
    [
        (4, Limits(1, 20), 7),
        (11, Limits(1, 20), 14),
        *[(useless, Limits(1, 20), None) for useless in (None, 0, 12, 40)],
        (4, Limits(8, 20), None),
    ],
)
def test_as_many_instances_are_taken_as_are_free_within_the_limits(
    available: int | None, limits: Limits, part: int | None
) -> None:
    assert partial_target(3, 15, available, limits) == part
    assert partial_target(15, 3, available, limits) is None


# --- reconciled ---

IN_2_TO_5: dict[str, Any] = {"limits": Limits(2, 5), **ENFORCE}
LATE = ago(601)
"""Just after the deadline of an action that was requested then."""


STOPPED = desired(target=15, previous=3, status=ActionStatus.FAILED, given_up=15)


UNDONE = replace(confirmed(60, target=6), requested_at=ago(90), superseded=(2,))
"""A confirmed action which replaced one to two instances."""


def waiting(target: int, **changes: Any) -> Desired:
    """A pending action that was sent long ago, after a change by the app to four instances."""
    return desired(target=target, **{"sent_at": ago(600), "superseded": (4,), **changes})


@pytest.mark.parametrize(
    ("last", "actual", "changes", "kind", "sent"),
    [
        (None, 2, {}, None, None),
        (desired(), 3, {}, EntryKind.CONFIRMED, None),
        (desired(sent_at=ago(59)), 2, {}, None, None),
        (desired(sent_at=ago(60)), 2, {}, EntryKind.RESENT, 3),
        (desired(sent_at=ago(600), retry_at=ago(-1)), 2, {}, None, None),
        (desired(sent_at=ago(600), retry_at=NOW), 2, {}, EntryKind.RESENT, 3),
        (desired(requested_at=ago(600), sent_at=ago(600)), 2, {}, EntryKind.RESENT, 3),
        (desired(requested_at=LATE), 2, {}, EntryKind.FAILED, None),
        (desired(requested_at=LATE), 3, {}, EntryKind.CONFIRMED, None),
        (FAILED, 2, {}, None, None),
        (FAILED, 3, {}, EntryKind.CONFIRMED, None),
        (FAILED, 6, {}, EntryKind.MANUAL_CHANGE, None),
        (replace(FAILED, previous=2, target=3), 6, ENFORCE, EntryKind.MANUAL_CHANGE, 2),
        (desired(), 6, {}, EntryKind.MANUAL_CHANGE, None),
        (confirmed(900, target=3), 3, {}, None, None),
        (confirmed(900, target=3), 6, {}, EntryKind.MANUAL_CHANGE, None),
        (confirmed(900, target=3), 6, ENFORCE, EntryKind.MANUAL_CHANGE, 3),
        # the target is absolute, so a pending action also reverts a manual change
        (desired(sent_at=ago(60)), 6, ENFORCE, EntryKind.RESENT, 3),
        (desired(sent_at=ago(59)), 6, ENFORCE, None, None),
        (reopen(confirmed(900, target=3), 2, NOW), 2, {}, EntryKind.RESENT, 3),
        # outside the limits, a pending action waits for the next decision, which replaces it
        (waiting(6), 4, IN_2_TO_5, None, None),
        (waiting(1), 4, IN_2_TO_5, None, None),
        (waiting(5), 4, IN_2_TO_5, EntryKind.RESENT, 5),
        (waiting(2), 4, IN_2_TO_5, EntryKind.RESENT, 2),
        (reopen(confirmed(900, target=6, previous=4), 4, NOW), 4, IN_2_TO_5, None, None),
        (waiting(6, requested_at=LATE), 4, IN_2_TO_5, EntryKind.FAILED, None),
        (waiting(6), 6, IN_2_TO_5, EntryKind.CONFIRMED, None),
        # a manual change is set back as far as the limits allow
        (confirmed(900, target=6), 4, IN_2_TO_5, EntryKind.MANUAL_CHANGE, 5),
        (confirmed(900, target=1), 4, IN_2_TO_5, EntryKind.MANUAL_CHANGE, 2),
        (confirmed(900, target=6), 9, IN_2_TO_5, EntryKind.MANUAL_CHANGE, 5),
        (confirmed(900, target=6), 5, IN_2_TO_5, EntryKind.MANUAL_CHANGE, None),
        (replace(FAILED, previous=6), 4, IN_2_TO_5, EntryKind.MANUAL_CHANGE, 5),
        # what a replaced action began may take effect until the deadline has passed
        *[(UNDONE, actual, {}, EntryKind.REOPENED, 6) for actual in (2, 5)],
        (UNDONE, 5, ENFORCE, EntryKind.REOPENED, 6),
        *[(UNDONE, actual, {}, EntryKind.MANUAL_CHANGE, None) for actual in (1, 7)],
        (UNDONE, 6, {}, None, None),
        (replace(UNDONE, requested_at=LATE), 5, {}, EntryKind.MANUAL_CHANGE, None),
        (replace(UNDONE, superseded=()), 5, {}, EntryKind.MANUAL_CHANGE, None),
        # in pieces, also if manual changes are set back
        *[
            (last, actual, {"limits": Limits(1, 20), **changes}, kind, sent)
            for changes in ({}, ENFORCE)
            for last, actual, kind, sent in (
                (desired(target=15, previous=3), 9, EntryKind.PROGRESS, None),
                (FILLING, 12, EntryKind.PROGRESS, None),
                (FILLING, 9, None, None),
                (replace(FILLING, sent_at=ago(60)), 9, EntryKind.RESENT, 15),
                (replace(FILLING, superseded=(12,)), 12, None, None),
                (replace(FILLING, requested_at=LATE), 9, None, None),
                (
                    replace(FILLING, progressed_at=LATE, requested_at=LATE),
                    12,
                    EntryKind.PROGRESS,
                    None,
                ),
                (
                    replace(FILLING, progressed_at=LATE, requested_at=LATE),
                    9,
                    EntryKind.CONFIRMED,
                    None,
                ),
                (IN_PART, 9, None, None),
                (IN_PART, 12, EntryKind.CONFIRMED, None),
                (IN_PART, 15, EntryKind.CONFIRMED, None),
                (STOPPED, 3, None, None),
                (STOPPED, 9, EntryKind.CONFIRMED, None),
                (STOPPED, 15, EntryKind.CONFIRMED, None),
            )
        ],
        *[(FILLING, actual, {}, EntryKind.MANUAL_CHANGE, None) for actual in (2, 3, 7, 16)],
        *[(FILLING, actual, ENFORCE, None, None) for actual in (2, 3, 7, 16)],
        *[(IN_PART, actual, {}, EntryKind.MANUAL_CHANGE, None) for actual in (7, 16)],
        (IN_PART, 16, {"limits": Limits(1, 20), **ENFORCE}, EntryKind.MANUAL_CHANGE, 9),
        (FILLING, 9, {"limits": Limits(1, 5)}, None, None),
        (replace(FILLING, sent_at=ago(90)), 9, {"limits": Limits(1, 5)}, None, None),
    ],
)
def test_the_reconciler_brings_desired_and_actual_capacity_together(
    last: Desired | None,
    actual: int,
    changes: dict[str, Any],
    kind: EntryKind | None,
    sent: int | None,
) -> None:
    reconciliation = reconciled(last, actual, **changes)
    assert (reconciliation.entry and reconciliation.entry.kind) == kind
    assert (reconciliation.action and reconciliation.action.target) == sent
    if reconciliation.action:
        assert last is not None
        is_new = kind is EntryKind.MANUAL_CHANGE
        assert reconciliation.action.epoch == last.epoch + is_new


def test_a_manual_change_is_adopted_or_set_back_and_logged() -> None:
    last = confirmed(900, target=3, epoch=7)
    adopted, back = adopt(last, 6, NOW), enforce(last, 6, NOW, resource().limits)
    kind = EntryKind.MANUAL_CHANGE
    assert reconciled(last, 6) == Reconciliation(adopted, None, line(kind, adopted.reason, adopted))
    sent = ScaleAction("plan-1", 3, 8, back.reason, NOW)
    assert reconciled(last, 6, **ENFORCE) == Reconciliation(
        back, sent, line(kind, back.reason, back)
    )


def test_a_limit_that_stopped_an_action_is_its_reason_and_delays_no_other_action() -> None:
    done = reconciled(desired(target=6, requested_at=LATE), 2, limits=Limits(1, 5))
    assert done.desired is not None
    assert done.entry is not None
    assert (done.desired.status, done.desired.retry_at) == (ActionStatus.FAILED, None)
    assert done.entry.reason.endswith("6 is above the maximum of 5")
    stood = replace(FILLING, requested_at=LATE, progressed_at=LATE)
    part = reconciled(stood, 9, limits=Limits(1, 12)).desired
    assert part is not None
    assert (part.status, part.target, part.retry_at) == (ActionStatus.CONFIRMED, 9, None)
    back = reconciled(confirmed(900, target=1), 4, **IN_2_TO_5)
    assert back.entry is not None
    assert back.entry.reason == (
        "the capacity was changed manually from 1 to 4: set back to 2, because 1 is below the "
        "minimum of 2"
    )


@pytest.mark.parametrize("mode", [Mode.PAUSED, Mode.DRY_RUN])
def test_a_resource_that_is_not_active_is_watched_but_never_changed(mode: Mode) -> None:
    def kind(last: Desired, actual: int, **changes: Any) -> EntryKind | None:
        reconciliation = reconciled(last, actual, mode=mode, **changes)
        assert reconciliation.action is None
        return None if reconciliation.entry is None else reconciliation.entry.kind

    assert kind(desired(sent_at=ago(600)), 2) is None
    assert kind(desired(requested_at=LATE), 2) is EntryKind.FAILED
    assert kind(desired(), 3) is EntryKind.CONFIRMED
    assert kind(confirmed(900, target=3), 6) is EntryKind.MANUAL_CHANGE
    assert kind(confirmed(900, target=3), 6, **ENFORCE) is None
    assert kind(UNDONE, 5) is EntryKind.REOPENED, "it was not changed manually"


@pytest.mark.parametrize("last", [desired(), FAILED])
def test_a_desired_capacity_that_is_reached_is_confirmed_and_logged(last: Desired) -> None:
    done = confirm(last, NOW)
    written = line(EntryKind.CONFIRMED, "the capacity is 3, as requested by epoch 7", done)
    assert reconciled(last, 3) == Reconciliation(done, None, written)


@pytest.mark.parametrize(("error", "reason"), [("", "no confirmation arrived"), ("409", "409")])
def test_an_action_past_its_deadline_fails_with_its_last_error(error: str, reason: str) -> None:
    last = desired(requested_at=LATE, attempts=3, last_error=error)
    failed = replace(fail(last, NOW, reason, TIMING), given_up=3)
    assert failed == fail(last, NOW, reason, TIMING, may_follow=True)
    written = line(EntryKind.FAILED, f"the app gave up epoch 7 after 600 s: {reason}", failed)
    assert reconciled(last, 2) == Reconciliation(failed, None, written)


def test_a_repeated_action_is_logged_with_the_capacity_of_the_plan() -> None:
    """The plan is at the target of the replaced action, which is no progress of this one."""
    last = replace(FILLING, target=20, reached=12, superseded=(15,), sent_at=ago(60))
    entry = reconciled(last, 15, limits=Limits(1, 20)).entry
    assert entry is not None
    assert "is not confirmed yet and stands at 15 (429)" in entry.reason


def test_progress_is_logged_once_and_renews_the_deadline_and_the_wait() -> None:
    last = desired(target=15, previous=3, sent_at=ago(50), retry_at=ago(-20))
    moved = replace(last, reached=9, progressed_at=NOW, retry_at=ago(-60))
    reason = "the capacity is 9 on the way from 3 to 15, as requested by epoch 7"
    written = replace(line(EntryKind.PROGRESS, reason, last), current=9)
    assert reconciled(last, 9, limits=Limits(1, 20)) == Reconciliation(moved, None, written)
    assert reconciled(moved, 9, limits=Limits(1, 20)) == NO_CHANGE
    later = replace(last, retry_at=ago(-90))
    again = reconciled(later, 9, limits=Limits(1, 20)).desired
    assert again is not None
    assert again.retry_at == ago(-90)


@pytest.mark.parametrize(("error", "end"), [("429", "429"), ("", "the plan comes no further")])
def test_a_plan_that_stands_still_is_confirmed_at_what_it_has_reached(error: str, end: str) -> None:
    last = replace(FILLING, requested_at=ago(900), progressed_at=LATE, last_error=error)
    part = confirm_in_part(last, 9, NOW, TIMING)
    reason = f"epoch 7 reached 9 of 15, and no more within 600 s: {end}"
    written = line(EntryKind.CONFIRMED, reason, part)
    assert reconciled(last, 9, limits=Limits(1, 20)) == Reconciliation(part, None, written)
    late = reconciled(part, 12, limits=Limits(1, 20)).entry
    assert late is not None
    late_reason = "epoch 7 reached 12 of 15, although the app no longer waits for it"
    assert (late.current, late.desired, late.reason) == (9, 12, late_reason)
    assert late.entry_id not in ("confirmed-7-0", written.entry_id), "each step is news of its own"


def test_a_given_up_action_that_the_plan_completes_is_confirmed_in_full() -> None:
    done = reconciled(IN_PART, 15)
    assert done.desired == confirm(IN_PART, NOW)
    assert done.entry is not None
    assert done.entry.reason == "the capacity is 15, as requested by epoch 7"
    state = ScalingState(desired=IN_PART)
    paused = reconcile(resource(), state, 12, NOW, TIMING, decides=False)
    assert paused == NO_CHANGE


def test_a_clock_that_was_set_back_does_not_prolong_the_wait_for_progress() -> None:
    times = tuple(int(ago(seconds).timestamp()) for seconds in (60, 0, -3600))
    ahead = replace(FILLING, progressed_at=ago(-3600), changes=times)
    seen = as_of(ScalingState(desired=ahead), NOW).desired
    assert seen is not None
    assert seen.changes == (*times[:2], times[1]), "an hour after them, none counts any more"
    assert (seen.progressed_at, seen.waiting_since) == (NOW, NOW)


@pytest.mark.parametrize(("error", "reason"), [("", ""), ("409", " (409)")])
def test_an_action_is_sent_again_and_logged_once_per_wait(error: str, reason: str) -> None:
    last = desired(sent_at=ago(600), retry_at=NOW, attempts=2, last_error=error)
    again = replace(last, sent_at=NOW, retry_at=None)
    sent = ScaleAction("plan-1", 3, 7, last.reason, last.requested_at)
    text = f"epoch 7 is not confirmed yet and stands at 2{reason}: sent again"
    written = line(EntryKind.RESENT, text, again)
    assert written.entry_id == "resent-7-2"
    assert reconciled(last, 2) == Reconciliation(again, sent, written)
    assert reconciled(again, 2) == NO_CHANGE
