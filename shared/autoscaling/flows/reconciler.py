"""reconciler: level-triggered; whatever got lost between decision and capacity is found here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace

from shared.autoscaling.actions import ActionTiming, reconcile
from shared.autoscaling.errors import StateConflict
from shared.autoscaling.model import Resource, ScaleAction
from shared.autoscaling.ports import CapacityControl, StateStore

log = logging.getLogger(__name__)


async def run(
    resources: Iterable[Resource],
    store: StateStore,
    control: CapacityControl,
    timing: ActionTiming,
) -> list[ScaleAction]:
    """The actions to send again; each resource on its own, so none hides another."""
    answers = await asyncio.gather(
        *[_isolated(resource, store, control, timing) for resource in resources]
    )
    return [action for action in answers if action is not None]


async def reconcile_one(
    resource: Resource, store: StateStore, control: CapacityControl, timing: ActionTiming
) -> ScaleAction | None:
    """The action to send again for one resource. A lost race means: look again next time."""
    snapshot = await store.load(resource.name)
    if snapshot.state.desired is None:
        return None
    actual = int((await control.read(resource.target)).value)
    found = reconcile(resource, snapshot.state, actual, snapshot.read_at, timing)
    if found.desired is None or found.entry is None:
        return None
    try:
        await store.commit(snapshot, replace(snapshot.state, desired=found.desired), [found.entry])
    except StateConflict:
        return None
    log.info(
        "%s: %s",
        resource.name,
        found.entry.reason,
        extra={"action": f"reconciled_{found.entry.kind}", "resource": resource.name},
    )
    return found.action


async def _isolated(
    resource: Resource, store: StateStore, control: CapacityControl, timing: ActionTiming
) -> ScaleAction | None:
    try:
        return await reconcile_one(resource, store, control, timing)
    except Exception as error:
        log.warning(
            "%s could not be reconciled, next time again: %s: %s",
            resource.name,
            type(error).__name__,
            error,
            extra={"action": "reconcile_failed", "resource": resource.name},
        )
        return None
