from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shared.autoscaling import Limits, ManualChange, Mode
from shared.autoscaling.acting.actions import (
    changed_by_hand,
    confirm_if_observed,
    defer,
    reason_to_ignore,
    reconcile,
    reopen,
    request,
)
from shared.autoscaling.deciding.decide import EntryKind, decide
from shared.autoscaling.state import ActionStatus, Desired, Override, ScaleAction, ScalingState
from tests.builders import NOW, TIMING, ago, confirmed, desired, resource, sample, state


def action(**changes: object) -> ScaleAction:
    return replace(ScaleAction("plan-1", 3, 7, "why", ago(30)), **changes)  # type: ignore[arg-type]


def test_each_decision_has_the_next_epoch_and_keeps_the_time_of_the_last_change() -> None:
    decision = decide(resource(), state([200] * 6), NOW)
    first = request(decision, None)
    assert (first.epoch, first.target, first.previous, first.pending) == (1, 3, 2, True)
    second = request(decision, confirmed(900, epoch=7))
    assert (second.epoch, second.changed_at) == (8, ago(900))


# --- which action may still be carried out ---


@pytest.mark.parametrize(
    ("message", "last", "reason"),
    [
        (action(), desired(), None),
        (action(epoch=6), desired(), "was replaced by the decision of epoch 7"),
        (action(epoch=8), desired(), "has no decision of epoch"),
        (action(), None, "has no decision of epoch"),
        (action(target=4), desired(), "the target of epoch 7 is 3, but the message says 4"),
        (action(), confirmed(5, target=3), "already confirmed"),
        (action(), desired(status=ActionStatus.FAILED), "already failed"),
    ],
)
def test_only_the_pending_epoch_is_carried_out(
    message: ScaleAction, last: Desired | None, reason: str | None
) -> None:
    ignored = reason_to_ignore(resource(), ScalingState(desired=last), message, NOW)
    assert (ignored is None) if reason is None else (ignored is not None and reason in ignored)


def test_an_action_of_a_resource_that_is_not_active_is_ignored() -> None:
    pending = ScalingState(desired=desired(), override=Override(Mode.PAUSED))
    reason = "mode paused, set by an override"
    assert reason_to_ignore(resource(), pending, action(), NOW) == reason
    running = ScalingState(desired=desired())
    assert reason_to_ignore(resource(mode=Mode.DRY_RUN), running, action(), NOW) is not None


@pytest.mark.parametrize(
    ("last", "actual", "by_hand"),
    [
        (desired(previous=2, target=3), 6, True),
        (desired(previous=2, target=3), 2, False),
        (desired(previous=2, target=3), 3, False),
        (desired(previous=2, target=3, superseded=(5, 4)), 5, False),
        (desired(previous=2, target=3, status=ActionStatus.FAILED), 2, False),
        (desired(previous=2, target=3, status=ActionStatus.FAILED), 5, True),
        (confirmed(900, target=3), 2, True),
        (confirmed(900, target=3), 3, False),
    ],
)
def test_a_capacity_that_no_decision_explains_was_set_manually(
    last: Desired, actual: int, by_hand: bool
) -> None:
    assert changed_by_hand(last, actual) is by_hand


def test_no_action_within_one_start_up_time_is_taken_for_a_manual_change() -> None:
    last = None
    for target in (3, 4, 3, 5):
        decision = replace(decide(resource(), state([200] * 5), NOW), desired=target)
        last = request(decision, last)
    assert last is not None
    assert last.superseded == (4, 3)
    assert not any(changed_by_hand(last, actual) for actual in (2, 3, 4, 5))
    assert changed_by_hand(last, 6)
    assert request(decision, confirmed(5)).superseded == ()


# --- confirmation by observation ---


def test_a_pending_action_is_confirmed_once_its_capacity_is_observed() -> None:
    seen = confirm_if_observed(ScalingState(desired=desired(target=3)), sample(3))
    assert seen.desired is not None
    assert (seen.desired.status, seen.desired.changed_at) == (ActionStatus.CONFIRMED, NOW)


@pytest.mark.parametrize("observed", [sample(2), sample(3, seconds_ago=31)])
def test_another_capacity_or_an_earlier_sample_does_not_confirm_an_action(observed: object) -> None:
    before = ScalingState(desired=desired(target=3, requested_at=ago(30)))
    assert confirm_if_observed(before, observed) is before  # type: ignore[arg-type]


# --- deferring ---


def test_the_wait_after_a_deferral_doubles_up_to_sixteen_times() -> None:
    waits = []
    last = desired()
    for _ in range(7):
        last = defer(last, NOW, "409", TIMING)
        assert last.retry_at is not None
        waits.append((last.retry_at - NOW).total_seconds())
    assert waits == [15, 30, 60, 120, 240, 240, 240]


def test_retry_after_of_the_server_determines_the_wait() -> None:
    assert defer(desired(), NOW, "429", TIMING, 90).retry_at == ago(-90)
    assert defer(desired(), NOW, "429", TIMING, 1).retry_at == ago(-15)


# --- reconciling ---


def kinds(last: Desired | None, actual: int, **changes: Any) -> tuple[str | None, int | None]:
    reconciliation = reconcile(resource(**changes), ScalingState(desired=last), actual, NOW, TIMING)
    kind = str(reconciliation.entry.kind) if reconciliation.entry else None
    return kind, reconciliation.action.target if reconciliation.action else None


@pytest.mark.parametrize(
    ("last", "actual", "kind", "sent"),
    [
        (None, 2, None, None),
        (desired(), 3, EntryKind.CONFIRMED, None),
        (desired(sent_at=ago(59)), 2, None, None),
        (desired(sent_at=ago(60)), 2, EntryKind.RESENT, 3),
        (desired(sent_at=ago(600), retry_at=ago(-1)), 2, None, None),
        (desired(sent_at=ago(600), retry_at=NOW), 2, EntryKind.RESENT, 3),
        (desired(requested_at=ago(601)), 2, EntryKind.FAILED, None),
        (desired(requested_at=ago(601)), 3, EntryKind.CONFIRMED, None),
        (desired(status=ActionStatus.FAILED), 2, None, None),
        (desired(status=ActionStatus.FAILED), 3, EntryKind.CONFIRMED, None),
        (desired(status=ActionStatus.FAILED), 6, EntryKind.MANUAL_CHANGE, None),
        (desired(), 6, EntryKind.MANUAL_CHANGE, None),
        (confirmed(900, target=3), 3, None, None),
        (confirmed(900, target=3), 6, EntryKind.MANUAL_CHANGE, None),
    ],
)
def test_the_reconciler_brings_desired_and_actual_capacity_together(
    last: Desired | None, actual: int, kind: str | None, sent: int | None
) -> None:
    assert kinds(last, actual) == (kind, sent)


def test_a_manual_change_is_adopted_as_the_new_desired_capacity_with_cooldown() -> None:
    held = ScalingState(desired=confirmed(900, target=3, epoch=7))
    adopted = reconcile(resource(), held, 6, NOW, TIMING).desired
    assert adopted is not None
    assert (adopted.target, adopted.epoch, adopted.status) == (6, 8, ActionStatus.CONFIRMED)
    assert adopted.changed_at == NOW


def test_a_manual_change_is_set_back_if_the_resource_enforces_its_capacity() -> None:
    enforcing = resource(on_manual_change=ManualChange.ENFORCE)
    held = ScalingState(desired=confirmed(900, target=3, epoch=7))
    reconciliation = reconcile(enforcing, held, 6, NOW, TIMING)
    assert reconciliation.action is not None
    assert (reconciliation.action.target, reconciliation.action.epoch) == (3, 8)


def test_after_a_failed_action_a_manual_change_is_set_back_to_the_capacity_before_it() -> None:
    enforcing = resource(on_manual_change=ManualChange.ENFORCE)
    failed = ScalingState(desired=desired(previous=2, target=3, status=ActionStatus.FAILED))
    reconciliation = reconcile(enforcing, failed, 6, NOW, TIMING)
    assert reconciliation.action is not None
    assert (reconciliation.action.target, reconciliation.action.epoch) == (2, 8)


@pytest.mark.parametrize(
    ("last", "actual", "kind", "sent"),
    [
        # a pending action waits for the next decision, which replaces it
        (desired(target=6, sent_at=ago(600)), 4, None, None),
        (desired(target=1, sent_at=ago(600)), 4, None, None),
        (desired(target=5, sent_at=ago(600)), 4, EntryKind.RESENT, 5),
        (desired(target=2, sent_at=ago(600)), 4, EntryKind.RESENT, 2),
        (reopen(confirmed(900, target=6, previous=4), 4, NOW), 4, None, None),
        (desired(target=6, requested_at=ago(601)), 4, EntryKind.FAILED, None),
        (desired(target=6), 6, EntryKind.CONFIRMED, None),
        # a manual change is set back as far as the limits allow
        (confirmed(900, target=6), 4, EntryKind.MANUAL_CHANGE, 5),
        (confirmed(900, target=1), 4, EntryKind.MANUAL_CHANGE, 2),
        (confirmed(900, target=6), 9, EntryKind.MANUAL_CHANGE, 5),
        (confirmed(900, target=6), 5, EntryKind.MANUAL_CHANGE, None),
        (desired(previous=6, status=ActionStatus.FAILED), 4, EntryKind.MANUAL_CHANGE, 5),
    ],
)
def test_the_reconciler_sets_no_target_outside_the_limits_that_its_copy_has_now(
    last: Desired, actual: int, kind: str | None, sent: int | None
) -> None:
    last = replace(last, superseded=(4,)) if last.pending else last
    changes = {"limits": Limits(2, 5), "on_manual_change": ManualChange.ENFORCE}
    assert kinds(last, actual, **changes) == (kind, sent)


def test_a_limit_that_stopped_an_action_is_its_reason_and_delays_no_other_action() -> None:
    waiting = ScalingState(desired=desired(target=6, requested_at=ago(601)))
    done = reconcile(resource(limits=Limits(1, 5)), waiting, 2, NOW, TIMING)
    assert done.desired is not None
    assert done.entry is not None
    assert (done.desired.status, done.desired.retry_at) == (ActionStatus.FAILED, None)
    assert done.entry.reason.endswith("6 is above the maximum of 5")
    limited = resource(limits=Limits(2, 5), on_manual_change=ManualChange.ENFORCE)
    back = reconcile(limited, ScalingState(desired=confirmed(900, target=1)), 4, NOW, TIMING)
    assert back.entry is not None
    assert back.entry.reason == (
        "the capacity was changed manually from 1 to 4: set back to 2, because 1 is below the "
        "minimum of 2"
    )


@pytest.mark.parametrize("mode", [Mode.PAUSED, Mode.DRY_RUN])
def test_a_resource_that_is_not_active_is_watched_but_never_changed(mode: Mode) -> None:
    assert kinds(desired(sent_at=ago(600)), 2, mode=mode) == (None, None)
    assert kinds(desired(requested_at=ago(601)), 2, mode=mode) == (EntryKind.FAILED, None)
    assert kinds(desired(), 3, mode=mode) == (EntryKind.CONFIRMED, None)
    by_hand = confirmed(900, target=3)
    assert kinds(by_hand, 6, mode=mode) == (EntryKind.MANUAL_CHANGE, None)
    enforce = {"mode": mode, "on_manual_change": ManualChange.ENFORCE}
    assert kinds(by_hand, 6, **enforce) == (None, None)


def test_a_resent_action_keeps_its_epoch() -> None:
    held = ScalingState(desired=desired(sent_at=ago(61)))
    reconciliation = reconcile(resource(), held, 2, NOW, TIMING)
    assert reconciliation.action is not None
    assert reconciliation.action.epoch == 7
    assert reconciliation.desired is not None
    assert reconciliation.desired.sent_at == NOW
