"""scaler: carry out one action. Absolute, fenced by its epoch, and confirmed by reading back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from shared.autoscaling.actions import (
    ActionTiming,
    changed_by_hand,
    confirm,
    defer,
    entry,
    fail,
    reason_to_ignore,
)
from shared.autoscaling.errors import CapacityDelayed, CapacityRefused
from shared.autoscaling.flows.races import until_won
from shared.autoscaling.flows.scaling_logic import find
from shared.autoscaling.model import Desired, EntryKind, LogEntry, Resource, ScaleAction
from shared.autoscaling.ports import CapacityControl, Snapshot, StateStore

log = logging.getLogger(__name__)

Settle = Callable[[Desired, Snapshot], tuple[Desired, EntryKind, str]]


async def run(
    action: ScaleAction,
    resources: Mapping[str, Resource],
    store: StateStore,
    control: CapacityControl,
    timing: ActionTiming,
) -> EntryKind:
    """How it ended, as it stands in the decision log. Raises BadMessage for an unknown resource."""
    resource = find(resources, action.resource_name)
    snapshot = await store.load(resource.name)
    ignored = reason_to_ignore(resource, snapshot.state, action, snapshot.read_at)
    if ignored is not None:
        return await _ignore(store, action, snapshot, ignored)
    desired = snapshot.state.desired
    assert desired is not None  # or there had been a reason to ignore it
    settle = await _carry_out(resource, desired, control, timing)
    return await until_won(resource.name, lambda: _settle(resource, action, store, settle))


async def _carry_out(
    resource: Resource, desired: Desired, control: CapacityControl, timing: ActionTiming
) -> Settle:
    """Change the capacity where it is not there yet; the answer says what to make of the state."""
    try:
        before = int((await control.read(resource.target)).value)
        if changed_by_hand(resource, desired, before):
            return _failing(f"capacity was changed by hand to {before} meanwhile", timing)
        if before != desired.target:
            await control.change(resource.target, desired.target)
            after = int((await control.read(resource.target)).value)
            if after != desired.target:
                return _deferring(CapacityDelayed(f"capacity still reads {after}"), timing)
    except CapacityDelayed as error:
        return _deferring(error, timing)
    except CapacityRefused as error:
        return _failing(str(error), timing)
    return lambda now_desired, snapshot: (
        confirm(now_desired, snapshot.read_at),
        EntryKind.CONFIRMED,
        f"capacity changed {before} → {now_desired.target}: {now_desired.reason}",
    )


def _deferring(error: CapacityDelayed, timing: ActionTiming) -> Settle:
    return lambda desired, snapshot: (
        defer(desired, snapshot.read_at, str(error), timing, error.retry_after_seconds),
        EntryKind.DEFERRED,
        f"not done yet, will be tried again: {error}",
    )


def _failing(error: str, timing: ActionTiming) -> Settle:
    return lambda desired, snapshot: (
        fail(desired, snapshot.read_at, error, timing),
        EntryKind.FAILED,
        f"given up: {error}",
    )


async def _settle(
    resource: Resource, action: ScaleAction, store: StateStore, settle: Settle
) -> EntryKind:
    """Write the outcome, unless a newer decision has taken over while the target was busy."""
    snapshot = await store.load(resource.name)
    desired = snapshot.state.desired
    if desired is None or desired.epoch != action.epoch or not desired.pending:
        return await _ignore(store, action, snapshot, "a newer word on it came meanwhile")
    settled, kind, reason = settle(desired, snapshot)
    line = entry(resource, settled, kind, snapshot.read_at, reason)
    await store.commit(snapshot, replace(snapshot.state, desired=settled), [line])
    _tell(line)
    return kind


async def _ignore(
    store: StateStore, action: ScaleAction, snapshot: Snapshot, reason: str
) -> EntryKind:
    line = LogEntry(
        resource_name=action.resource_name,
        time=snapshot.read_at,
        kind=EntryKind.IGNORED,
        entry_id=f"ignored-{action.epoch}",
        reason=f"action to {action.target} ignored: {reason}",
        desired=action.target,
        epoch=action.epoch,
    )
    await store.record(line)
    _tell(line)
    return EntryKind.IGNORED


def _tell(line: LogEntry) -> None:
    level = logging.WARNING if line.kind is EntryKind.FAILED else logging.INFO
    log.log(
        level,
        "%s: epoch %s to %s %s: %s",
        line.resource_name,
        line.epoch,
        line.desired,
        line.kind,
        line.reason,
        extra={"action": f"action_{line.kind}", "resource": line.resource_name},
    )
