"""scaling_logic: merge one sample, decide, commit both in one transaction, hand out the action."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from shared.autoscaling.actions import action_of, confirm_if_observed, entry, request
from shared.autoscaling.decide import decide
from shared.autoscaling.errors import UnknownResource
from shared.autoscaling.flows.races import until_won
from shared.autoscaling.model import (
    CAPACITY_METRIC,
    Decision,
    EntryKind,
    LogEntry,
    Metric,
    Resource,
    ScaleAction,
    ScalingState,
)
from shared.autoscaling.ports import Snapshot, StateStore
from shared.autoscaling.samples import Outcome, merge

log = logging.getLogger(__name__)


async def run(
    metric: Metric, resources: Mapping[str, Resource], store: StateStore
) -> ScaleAction | None:
    """The action to send, if any. Raises BadMessage, or StateConflict after too many lost races."""
    resource = find(resources, metric.resource_name)
    check_metric_name(resource, metric.name)
    return await until_won(resource.name, lambda: _attempt(metric, resource, store))


def find(resources: Mapping[str, Resource], name: str) -> Resource:
    if name not in resources:
        known = ", ".join(sorted(resources)) or "none"
        raise UnknownResource(
            f"resource {name!r} is not declared in scaling_rules.py (known: {known})"
        )
    return resources[name]


def check_metric_name(resource: Resource, name: str) -> None:
    if name != CAPACITY_METRIC and name not in resource.metrics:
        known = ", ".join(sorted(resource.metrics))
        raise UnknownResource(
            f"metric {name!r} of {resource.name!r} is not declared in scaling_rules.py "
            f"(known: {known})"
        )


async def _attempt(metric: Metric, resource: Resource, store: StateStore) -> ScaleAction | None:
    snapshot = await store.load(resource.name)
    now = snapshot.read_at
    merged = merge(snapshot.state, metric, now, resource.window_seconds)
    if merged.outcome is Outcome.DUPLICATE:
        return _pending_action(resource, snapshot)
    if merged.outcome is Outcome.STALE:
        await store.commit(snapshot, merged.state)
        _tell_stale(metric, merged.state.histories[metric.name].stale_count)
        return None
    if metric.name == CAPACITY_METRIC:
        await _note_capacity(metric, resource, snapshot, merged.state, store)
        return None
    decision = decide(resource, merged.state, now)
    state = merged.state
    if decision.applies:
        state = replace(state, desired=request(decision, state.desired))
    epoch = state.desired.epoch if state.desired else None
    await store.commit(snapshot, state, [_entry(metric, decision, epoch)])
    _tell(decision)
    if not decision.applies or state.desired is None:
        return None
    return action_of(resource.name, state.desired)


async def _note_capacity(
    metric: Metric,
    resource: Resource,
    snapshot: Snapshot,
    merged: ScalingState,
    store: StateStore,
) -> None:
    """The target's own word decides nothing, but it may confirm what was decided."""
    state = confirm_if_observed(merged, metric.value)
    lines = []
    if state.desired is not None and state.desired != merged.desired:
        reason = f"capacity reads {state.desired.target}, as epoch {state.desired.epoch} asked for"
        lines = [entry(resource, state.desired, EntryKind.CONFIRMED, snapshot.read_at, reason)]
    await store.commit(snapshot, state, lines)


def _pending_action(resource: Resource, snapshot: Snapshot) -> ScaleAction | None:
    """A redelivered message may have died between commit and send: say it again, it is absolute."""
    desired = snapshot.state.desired
    if desired is None or not desired.pending or desired.retry_at is not None:
        return None
    return action_of(resource.name, desired)


def _entry(metric: Metric, decision: Decision, epoch: int | None) -> LogEntry:
    return LogEntry(
        resource_name=decision.resource_name,
        time=decision.time,
        kind=EntryKind.DECISION,
        entry_id=f"{metric.name}-{int(metric.value.time.timestamp() * 1_000_000)}",
        reason=decision.reason,
        current=decision.current,
        desired=decision.desired,
        epoch=epoch,
        applies=decision.applies,
        limited_by=decision.limited_by,
        candidates=decision.candidates,
        evidence=decision.evidence,
    )


def _tell(decision: Decision) -> None:
    log.info(
        "%s: %s → %s: %s",
        decision.resource_name,
        decision.current,
        decision.desired,
        decision.reason,
        extra={"action": "decided", "resource": decision.resource_name},
    )


def _tell_stale(metric: Metric, count: int) -> None:
    log.warning(
        "%s of %s: sample of %s is older than the window and is dropped, %d so far",
        metric.name,
        metric.resource_name,
        metric.value.time.isoformat(),
        count,
        extra={"action": "stale_sample_dropped", "resource": metric.resource_name},
    )
