"""reconciler: compares desired and actual capacity, and repairs lost messages and manual changes.

It depends only on the current state. A timer runs it for all resources, and a message of a resource
whose state awaits a reading for that one.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from dataclasses import dataclass
from logging import INFO, WARNING

from shared.autoscaling.acting.actions import ActionTiming, awaits_reading, reconcile
from shared.autoscaling.acting.activation import standing
from shared.autoscaling.deciding.decide import EntryKind
from shared.autoscaling.deciding.samples import samples_of
from shared.autoscaling.errors import CapacityPostponed, StateConflict
from shared.autoscaling.flows.common import log_action, log_standing, work_through
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import CapacityControl, StateStore
from shared.autoscaling.state import ScaleAction
from shared.values.measurements import CAPACITY_METRIC, span
from shared.values.urgency import TURN_SHARE, urgent

log = logging.getLogger(__name__)

BUDGET_SECONDS = 50
"""The time budget of a run of the timer, which is shorter than its interval by default."""
FRESH_SECONDS = 60
"""No plan is read again within this time, unless the state awaits a reading."""


@dataclass(frozen=True, slots=True)
class Reconciler:
    """While another ``version`` of the rules is in force, actions are only confirmed."""

    store: StateStore
    control: CapacityControl
    timing: ActionTiming
    timeout_seconds: float
    version: str | None = None

    async def reconcile_all(
        self,
        resources: Iterable[Resource],
        budget_seconds: float = BUDGET_SECONDS,
    ) -> list[ScaleAction]:
        """Reconcile resources concurrently (see ``reconcile_one``), and return the actions to send.

        A resource that fails does not affect the others. Those that the time budget does not cover
        are left to the next run. The order is random, so that none is left out in every run.
        """
        chosen = list(resources)
        random.shuffle(chosen)
        answers, left, why = await work_through(chosen, self._limited, budget_seconds)
        if left:
            text = f"some resources were not reconciled; the next run tries again: {why}"
            log_action(log, "reconcile_failed", "all", text, WARNING)
        return [action for action in answers if action is not None]

    async def reconcile_one(
        self, resource: Resource, fresh_seconds: float = 0
    ) -> ScaleAction | None:
        """Reconcile one resource, and return the action to send, if any; none if another writer
        changes the state meanwhile. The plan is not read if its capacity was read within
        ``fresh_seconds``, and the state does not await a reading."""
        snapshot = await self.store.load(resource.name)
        state, now = snapshot.state, snapshot.read_at
        newest = samples_of(state, CAPACITY_METRIC)[-1:]
        is_fresh = any(now - each.time < span(fresh_seconds) for each in newest)
        if state.desired is None or (is_fresh and not awaits_reading(state)):
            return None
        with urgent(self.timeout_seconds * TURN_SHARE if state.desired.pending else 0):
            read = await self.control.read(resource.target)
        stands = standing(resource, state, self.version, now)
        reconciliation = reconcile(
            resource,
            state,
            int(read.value),
            now,
            self.timing,
            decides=stands.decides,
            failure=read.failure,
        )
        desired, entry = reconciliation.desired, reconciliation.entry
        if desired is None or entry is None:
            return None
        try:
            changed = state.with_desired(desired).with_rules(stands.rules)
            await self.store.commit(snapshot, changed, [entry])
        except StateConflict:
            return None
        log_standing(log, snapshot, stands)
        stalled = desired.given_up is not None or (desired.pending and desired.reached is not None)
        level = WARNING if stalled and entry.kind is not EntryKind.PROGRESS else INFO
        log_action(
            log, f"reconciled_{entry.kind}", resource.name, entry.reason, level, **entry.fields
        )
        return reconciliation.action

    async def _limited(self, resource: Resource) -> ScaleAction | None:
        try:
            async with asyncio.timeout(self.timeout_seconds):
                return await self.reconcile_one(resource, FRESH_SECONDS)
        except CapacityPostponed:
            return None
        except TimeoutError as error:
            seconds = f"{self.timeout_seconds:g} s"
            raise TimeoutError(f"{resource.name}: no answer within {seconds}") from error
