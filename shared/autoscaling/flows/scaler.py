"""scaler: carry out one action. Absolute, fenced by its epoch, and confirmed by reading back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from shared.autoscaling.actions import (
    ActionTiming,
    Outcome,
    changed_by_hand,
    entry,
    reason_to_ignore,
    reopen,
    settle,
)
from shared.autoscaling.errors import CapacityDelayed, CapacityRefused
from shared.autoscaling.flows.races import until_won
from shared.autoscaling.flows.scaling_logic import find
from shared.autoscaling.model import Desired, EntryKind, LogEntry, Resource, ScaleAction
from shared.autoscaling.ports import CapacityControl, Snapshot, StateStore

log = logging.getLogger(__name__)


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
    outcome = await _carry_out(resource, desired, control)
    return await until_won(resource.name, lambda: _settle(resource, action, outcome, store, timing))


async def _carry_out(resource: Resource, desired: Desired, control: CapacityControl) -> Outcome:
    """Change the capacity where it is not there yet, and read it back."""
    ordered = False
    try:
        before = int((await control.read(resource.target)).value)
        if changed_by_hand(resource, desired, before):
            reason = f"capacity was changed by hand to {before} meanwhile"
            return Outcome(EntryKind.FAILED, reason)
        if before != desired.target:
            ordered = True
            await control.change(resource.target, desired.target)
            after = int((await control.read(resource.target)).value)
            if after != desired.target:
                return Outcome(EntryKind.DEFERRED, f"capacity still reads {after}", ordered)
    except CapacityDelayed as error:
        return Outcome(EntryKind.DEFERRED, str(error), ordered, error.retry_after_seconds)
    except CapacityRefused as error:
        return Outcome(EntryKind.FAILED, str(error), ordered)
    reason = f"capacity changed {before} → {desired.target}: {desired.reason}"
    return Outcome(EntryKind.CONFIRMED, reason, ordered)


async def _settle(
    resource: Resource,
    action: ScaleAction,
    outcome: Outcome,
    store: StateStore,
    timing: ActionTiming,
) -> EntryKind:
    """Write the outcome; where a newer decision has taken over meanwhile, see that it holds."""
    snapshot = await store.load(resource.name)
    desired, now = snapshot.state.desired, snapshot.read_at
    if desired is None or desired.epoch != action.epoch:
        return await _superseded(action, outcome, store, snapshot)
    if not desired.pending:  # the capacity has been seen, and confirmed, by somebody else
        return EntryKind(desired.status)
    settled = settle(desired, outcome, now, timing)
    line = entry(resource, settled, outcome.kind, now, outcome.reason)
    await store.commit(snapshot, replace(snapshot.state, desired=settled), [line])
    _tell(line)
    return outcome.kind


async def _superseded(
    action: ScaleAction,
    outcome: Outcome,
    store: StateStore,
    snapshot: Snapshot,
) -> EntryKind:
    """This change came late: if it may have undone a newer one, that one has to be done again.

    ARM does not fence writers, so the late one repairs what it may have broken.
    """
    desired = snapshot.state.desired
    if desired is not None and outcome.ordered:
        again = reopen(desired, action.target, snapshot.read_at)
        await store.commit(snapshot, replace(snapshot.state, desired=again))
    return await _ignore(store, action, snapshot, "a newer decision came meanwhile")


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
