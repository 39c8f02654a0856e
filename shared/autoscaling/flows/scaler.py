"""scaler: carry out one action. Absolute, fenced by its epoch, and confirmed by reading back."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from shared.autoscaling.actions import (
    ActionTiming,
    Settlement,
    changed_by_hand,
    entry,
    reason_to_ignore,
    reopen,
    settle,
)
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.declaring import ManualChange
from shared.autoscaling.errors import CapacityDelayed, CapacityRefused
from shared.autoscaling.flows.common import find, log_action, until_won
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import CapacityControl, Snapshot, StateStore
from shared.autoscaling.state import Desired, ScaleAction

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
    settlement = await _carry_out(resource, desired, control)
    return await until_won(
        resource.name, lambda: _settle(resource, action, settlement, store, timing)
    )


async def _carry_out(resource: Resource, desired: Desired, control: CapacityControl) -> Settlement:
    """Change the capacity where it is not there yet, and read it back."""
    ordered = False
    try:
        before = int((await control.read(resource.target)).value)
        respected = resource.on_manual_change is ManualChange.ADOPT
        if respected and changed_by_hand(desired, before):
            reason = f"capacity was changed by hand to {before} meanwhile: adopted"
            return Settlement(EntryKind.MANUAL_CHANGE, reason, actual=before)
        if before != desired.target:
            await control.change(resource.target, desired.target)
            ordered = True
            after = int((await control.read(resource.target)).value)
            if after != desired.target:
                return Settlement(EntryKind.DEFERRED, f"capacity still reads {after}", ordered)
    except CapacityDelayed as error:
        ordered = ordered or error.maybe_done
        return Settlement(EntryKind.DEFERRED, str(error), ordered, error.retry_after_seconds)
    except CapacityRefused as error:
        return Settlement(EntryKind.FAILED, str(error), ordered)
    reason = f"capacity changed {before} → {desired.target}: {desired.reason}"
    return Settlement(EntryKind.CONFIRMED, reason, ordered)


async def _settle(
    resource: Resource,
    action: ScaleAction,
    settlement: Settlement,
    store: StateStore,
    timing: ActionTiming,
) -> EntryKind:
    """Write how it ended; where a newer decision has taken over meanwhile, see that it holds."""
    snapshot = await store.load(resource.name)
    desired, now = snapshot.state.desired, snapshot.read_at
    if desired is None or desired.epoch != action.epoch:
        return await _superseded(resource, action, settlement, store, snapshot)
    settled = settle(desired, settlement, now, timing)
    if settled is None:
        return EntryKind(desired.status)
    line = entry(resource, settled, settlement.kind, now, settlement.reason)
    await store.commit(snapshot, snapshot.state.with_desired(settled), [line])
    _log(line)
    return settlement.kind


async def _superseded(
    resource: Resource,
    action: ScaleAction,
    settlement: Settlement,
    store: StateStore,
    snapshot: Snapshot,
) -> EntryKind:
    """This change came late: if it may have undone a newer one, that one has to be done again.

    ARM does not fence writers, so the late one repairs what it may have broken.
    """
    desired, now = snapshot.state.desired, snapshot.read_at
    if desired is not None and settlement.ordered:
        again = reopen(desired, action.target, now)
        if again != desired:
            reason = f"epoch {action.epoch} changed the capacity late: {again.last_error}"
            line = entry(resource, again, EntryKind.REOPENED, now, reason)
            await store.commit(snapshot, snapshot.state.with_desired(again), [line])
            _log(line)
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
    _log(line)
    return EntryKind.IGNORED


def _log(line: LogEntry) -> None:
    level = logging.WARNING if line.kind is EntryKind.FAILED else logging.INFO
    text = f"epoch {line.epoch} to {line.desired}: {line.reason}"
    log_action(log, f"action_{line.kind}", line.resource_name, text, level)
