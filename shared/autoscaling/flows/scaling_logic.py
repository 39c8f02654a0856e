"""scaling_logic: merge one sample, decide, commit both in one transaction, hand out the action."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from shared.autoscaling.actions import action_of, confirm_if_observed, entry, request
from shared.autoscaling.decide import decide
from shared.autoscaling.flows.declared import check_metric_name, find
from shared.autoscaling.flows.races import until_won
from shared.autoscaling.flows.telling import tell
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
from shared.autoscaling.samples import MergeOutcome, merge

log = logging.getLogger(__name__)


async def run(
    metric: Metric, resources: Mapping[str, Resource], store: StateStore
) -> ScaleAction | None:
    """The action to send, if any. Raises BadMessage, or StateConflict after too many lost races."""
    resource = find(resources, metric.resource_name)
    check_metric_name(resource, metric.name)
    return await until_won(resource.name, lambda: _attempt(metric, resource, store))


async def _attempt(metric: Metric, resource: Resource, store: StateStore) -> ScaleAction | None:
    snapshot = await store.load(resource.name)
    now = snapshot.read_at
    merged = merge(snapshot.state, metric, now, resource.window_seconds, resource.history_seconds)
    if merged.outcome is MergeOutcome.DUPLICATE:
        return _pending_action(resource, snapshot)
    if merged.outcome is MergeOutcome.STALE:
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
    told = f"{decision.current} → {decision.desired}: {decision.reason}"
    tell(log, "decided", decision.resource_name, told)


def _tell_stale(metric: Metric, count: int) -> None:
    told = (
        f"sample of {metric.name} of {metric.value.time.isoformat()} is older than the window and "
        f"is dropped, {count} so far"
    )
    tell(log, "stale_sample_dropped", metric.resource_name, told, logging.WARNING)
