"""reconciler: compares desired and actual capacity, and repairs lost messages and manual changes.

It is level-triggered: it depends only on the current state, not on any message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from logging import INFO, WARNING

from shared.autoscaling.acting.actions import ActionTiming, reconcile
from shared.autoscaling.acting.activation import standing
from shared.autoscaling.deciding.decide import EntryKind
from shared.autoscaling.errors import CapacityPostponed, StateConflict
from shared.autoscaling.flows.common import log_action, log_standing
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import CapacityControl, StateStore
from shared.autoscaling.state import ScaleAction
from shared.values.urgency import urgent

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Reconciles resources. While another ``version`` of the rules is in force, actions are only
    confirmed."""

    store: StateStore
    control: CapacityControl
    timing: ActionTiming
    timeout_seconds: float
    version: str | None = None

    async def reconcile_all(self, resources: Iterable[Resource]) -> list[ScaleAction]:
        """Reconcile all resources concurrently, and return the actions to send.

        A resource that fails or does not answer does not affect the others.
        """
        answers = await asyncio.gather(*map(self._isolated, resources))
        return [action for action in answers if action is not None]

    async def reconcile_one(self, resource: Resource) -> ScaleAction | None:
        """Reconcile one resource, and return the action to send, if any.

        If another writer changes the state meanwhile, it returns None, because the next run
        reconciles again.
        """
        snapshot = await self.store.load(resource.name)
        if snapshot.state.desired is None:
            return None
        with urgent(when=snapshot.state.desired.pending):
            actual = int((await self.control.read(resource.target)).value)
        now = snapshot.read_at
        stands = standing(resource, snapshot.state, self.version, now)
        reconciliation = reconcile(
            resource, snapshot.state, actual, now, self.timing, decides=stands.decides
        )
        desired, entry = reconciliation.desired, reconciliation.entry
        if desired is None or entry is None:
            return None
        state = snapshot.state.with_desired(desired).with_rules(stands.rules)
        try:
            await self.store.commit(snapshot, state, [entry])
        except StateConflict:
            return None
        log_standing(log, snapshot, stands)
        stalled = desired.given_up is not None or (desired.pending and desired.reached is not None)
        level = WARNING if stalled and entry.kind is not EntryKind.PROGRESS else INFO
        log_action(log, f"reconciled_{entry.kind}", resource.name, entry.reason, level)
        return reconciliation.action

    async def _isolated(self, resource: Resource) -> ScaleAction | None:
        try:
            async with asyncio.timeout(self.timeout_seconds):
                return await self.reconcile_one(resource)
        except CapacityPostponed:
            return None
        except TimeoutError:
            error = f"no answer within {self.timeout_seconds:g} s"
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        text = f"could not be reconciled; the next run tries again: {error}"
        log_action(log, "reconcile_failed", resource.name, text, WARNING)
        return None
