"""scaler: carries out one action, and confirms it if the answer states the new capacity.

A change that Azure has only accepted is confirmed by whoever reads the plan next. Actions of an
older epoch are ignored. The target is absolute, so a repeated action does no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from shared.autoscaling.acting.actions import (
    ActionTiming,
    Settlement,
    asked,
    changed_by_hand,
    entry,
    partial_target,
    passes_target,
    reason_to_ignore,
    reopen,
    settle,
)
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.declaring import ManualChange
from shared.autoscaling.errors import CapacityDelayed, CapacityRefused
from shared.autoscaling.flows.common import find, log_action, until_won
from shared.autoscaling.plan_facts import PlanReading
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import CapacityControl, Snapshot, StateStore
from shared.autoscaling.state import Desired, ScaleAction
from shared.values.urgency import urgent

log = logging.getLogger(__name__)

OUTCOMES = {
    EntryKind.DEFERRED: "the change is not confirmed yet and will be tried again: ",
    EntryKind.FAILED: "the change was refused: ",
}
"""How the reason of an entry begins if the rest of it is an answer of Azure Resource Manager."""


class Count(NamedTuple):
    """The desired state before and after the change was counted."""

    before: Desired
    after: Desired


@dataclass(frozen=True, slots=True)
class Scaler:
    resources: Mapping[str, Resource]
    store: StateStore
    control: CapacityControl
    timing: ActionTiming

    async def execute(self, action: ScaleAction) -> EntryKind | None:
        """Carry out the action, and return the outcome that the decision log records; None if Azure
        has accepted the change, which is still under way. Raises BadMessage if the resource is
        unknown."""
        resource = find(self.resources, action.resource_name)
        with urgent():
            count = await until_won(resource.name, lambda: self._count(resource, action))
            if count is None:
                return EntryKind.IGNORED
            settlement = await self._carry_out(resource, count.before)
            return await until_won(
                resource.name, lambda: self._settle(resource, action, settlement, count)
            )

    async def _count(self, resource: Resource, action: ScaleAction) -> Count | None:
        """Count the change before Azure is asked for it: afterwards, this process may have ended or
        a newer decision may have replaced the action, which this write notices if it came before.
        Returns None if the action is ignored."""
        snapshot = await self.store.load(resource.name)
        ignored = reason_to_ignore(resource, snapshot.state, action, snapshot.read_at)
        if ignored is not None:
            await self._ignore(action, snapshot, ignored)
            return None
        before = snapshot.state.desired
        assert before is not None  # otherwise there would be a reason to ignore the action
        now = snapshot.read_at
        after = replace(asked(before, now), sent_at=before.sent_at and now)
        await self.store.commit(snapshot, snapshot.state.with_desired(after))
        return Count(before, after)

    async def _carry_out(self, resource: Resource, desired: Desired) -> Settlement:
        """Change the capacity unless the target already has it."""
        requested, target = False, desired.target
        try:
            read = await self.control.read(resource.target)
            before = int(read.value)
            adopts = resource.on_manual_change is ManualChange.ADOPT
            if adopts and changed_by_hand(desired, before):
                reason = (
                    f"the capacity was changed manually to {before} meanwhile, which is adopted"
                )
                return Settlement(EntryKind.MANUAL_CHANGE, reason, actual=before)
            if before != target or passes_target(desired):
                after, part, lacking = await self._change(resource, read, target)
                requested = True
                if after != target:
                    still = "still " if after == before else ""
                    reason = f"the capacity {still}reads {after} after the change{lacking}"
                    if after is None:
                        reason = f"Azure accepted the change{lacking or f' to {target}'}"
                    kind = None if after is part is None else EntryKind.DEFERRED
                    return Settlement(kind, reason, requested, reached=after, part=part)
        except CapacityDelayed as error:
            requested = requested or error.maybe_done
            return Settlement(EntryKind.DEFERRED, str(error), requested, error.retry_after_seconds)
        except CapacityRefused as error:
            return Settlement(EntryKind.FAILED, str(error), requested)
        reason = f"capacity changed {before} → {target}: {desired.reason}"
        return Settlement(EntryKind.CONFIRMED, reason, requested)

    async def _change(
        self, resource: Resource, read: PlanReading, target: int
    ) -> tuple[int | None, int | None, str]:
        """Change the capacity to the target, or as far as there are instances. Returns the capacity
        afterwards, if the change is complete, the capacity of such a part, and its reason for the
        end of a sentence."""
        try:
            return await self.control.change(resource.target, target, read), None, ""
        except CapacityDelayed as error:
            part = partial_target(int(read.value), target, error.available, resource.limits)
            if part is None:
                raise
            after = await self.control.change(resource.target, part, read)
            why = f" to {part} of {target}, because no more instances are available: {error}"
            return after, part, why

    async def _settle(
        self, resource: Resource, action: ScaleAction, settlement: Settlement, count: Count
    ) -> EntryKind | None:
        """Record the outcome. A change that Azure was not asked for no longer counts. If there is a
        newer decision, check whether this action undid it."""
        snapshot = await self.store.load(resource.name)
        desired, now = snapshot.state.desired, snapshot.read_at
        if desired is None or desired.epoch != action.epoch:
            if settlement.change_requested:
                late = replace(action, target=settlement.part or action.target)
                await self._superseded(resource, late, snapshot, settlement.reached)
            return await self._ignore(action, snapshot, "a newer decision was made meanwhile")
        if not settlement.change_requested:
            desired = count.before if desired == count.after else desired
        elif desired.changes != count.after.changes:  # another delivery has taken the count back
            desired = asked(desired, now)
        settled = settle(desired, settlement, now, self.timing)
        if settled is None:
            return EntryKind(desired.status)
        moved = settled.pending and settled.reached != desired.reached
        kind = EntryKind.PROGRESS if moved else settlement.kind
        state = snapshot.state.with_desired(settled)
        if kind is None:
            await self.store.commit(snapshot, state)
            told = {"epoch": settled.epoch, "desired": settled.target}
            log_action(log, "action_accepted", resource.name, settlement.reason, **told)
            return None
        reason = f"{OUTCOMES.get(kind, '')}{settlement.reason}"
        written = entry(resource, settled, kind, now, reason)
        await self.store.commit(snapshot, state, [written])
        _log(written)
        return kind

    async def _superseded(
        self, resource: Resource, action: ScaleAction, snapshot: Snapshot, actual: int | None
    ) -> None:
        """Handle a change that was requested by an action which a newer decision has replaced.
        Resource Manager does not reject late writers, so it may have undone the newer one, which is
        then carried out again."""
        if actual is None:
            with suppress(CapacityDelayed, CapacityRefused):
                actual = int((await self.control.read(resource.target)).value)
        desired, now = snapshot.state.desired, snapshot.read_at
        reopened = desired and reopen(desired, action.target, now, actual)
        if reopened is None or reopened == desired:
            return
        reason = f"epoch {action.epoch} changed the capacity late: {reopened.last_error}"
        written = entry(resource, reopened, EntryKind.REOPENED, now, reason)
        await self.store.commit(snapshot, snapshot.state.with_desired(reopened), [written])
        _log(written)

    async def _ignore(self, action: ScaleAction, snapshot: Snapshot, reason: str) -> EntryKind:
        written = LogEntry(
            resource_name=action.resource_name,
            time=snapshot.read_at,
            kind=EntryKind.IGNORED,
            entry_id=f"ignored-{action.epoch}",
            reason=f"action to {action.target} ignored: {reason}",
            desired=action.target,
            epoch=action.epoch,
        )
        await self.store.record(written)
        _log(written)
        return EntryKind.IGNORED


def _log(written: LogEntry) -> None:
    level = logging.WARNING if written.kind is EntryKind.FAILED else logging.INFO
    text = f"epoch {written.epoch} to {written.desired}: {written.reason}"
    log_action(log, f"action_{written.kind}", written.resource_name, text, level, **written.fields)
