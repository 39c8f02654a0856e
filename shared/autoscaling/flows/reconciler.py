"""reconciler: compares desired and actual capacity, and repairs lost messages and manual changes.

It is level-triggered: it depends only on the current state, not on any message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from shared.autoscaling.actions import ActionTiming, reconcile
from shared.autoscaling.activation import standing
from shared.autoscaling.errors import StateConflict
from shared.autoscaling.flows.common import log_action, log_standing
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import CapacityControl, StateStore
from shared.autoscaling.state import ScaleAction

log = logging.getLogger(__name__)


async def reconcile_all(
    resources: Iterable[Resource],
    store: StateStore,
    control: CapacityControl,
    timing: ActionTiming,
    timeout_seconds: float,
    version: str | None = None,
) -> list[ScaleAction]:
    """Reconcile all resources concurrently, and return the actions to send. While another
    ``version`` of the rules is in force, actions are only confirmed.

    A resource that fails or does not answer does not affect the others.
    """

    async def isolated(resource: Resource) -> ScaleAction | None:
        try:
            async with asyncio.timeout(timeout_seconds):
                return await reconcile_one(resource, store, control, timing, version)
        except TimeoutError:
            error = f"no answer within {timeout_seconds:g} s"
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        text = f"could not be reconciled; the next run tries again: {error}"
        log_action(log, "reconcile_failed", resource.name, text, logging.WARNING)
        return None

    answers = await asyncio.gather(*map(isolated, resources))
    return [action for action in answers if action is not None]


async def reconcile_one(
    resource: Resource,
    store: StateStore,
    control: CapacityControl,
    timing: ActionTiming,
    version: str | None = None,
) -> ScaleAction | None:
    """Reconcile one resource, and return the action to send, if any.

    If another writer changes the state meanwhile, it returns None, because the next run reconciles
    again.
    """
    snapshot = await store.load(resource.name)
    if snapshot.state.desired is None:
        return None
    actual = int((await control.read(resource.target)).value)
    stands = standing(resource, snapshot.state, version, snapshot.read_at)
    reconciliation = reconcile(
        resource, snapshot.state, actual, snapshot.read_at, timing, decides=stands.decides
    )
    if reconciliation.desired is None or reconciliation.entry is None:
        return None
    state = snapshot.state.with_desired(reconciliation.desired).with_rules(stands.rules)
    try:
        await store.commit(snapshot, state, [reconciliation.entry])
    except StateConflict:
        return None
    log_standing(log, snapshot, stands)
    log_action(
        log, f"reconciled_{reconciliation.entry.kind}", resource.name, reconciliation.entry.reason
    )
    return reconciliation.action
