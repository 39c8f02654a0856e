"""scaling_logic: merge one sample, decide, commit both in one transaction, hand out the action."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from shared.autoscaling.actions import action_of, entry
from shared.autoscaling.advance import Step, advance
from shared.autoscaling.counterfactual import explained
from shared.autoscaling.flows.declared import check_metric_name, find
from shared.autoscaling.flows.races import until_won
from shared.autoscaling.flows.telling import tell
from shared.autoscaling.model import (
    Decision,
    EntryKind,
    LogEntry,
    Metric,
    Resource,
    ScaleAction,
)
from shared.autoscaling.ports import Snapshot, StateStore
from shared.autoscaling.samples import MergeOutcome

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
    step = advance(resource, snapshot.state, metric, now)
    if step.outcome is MergeOutcome.DUPLICATE:
        return _pending_action(resource, snapshot)
    if step.decision is not None and step.decided_on is not None:
        step = replace(step, decision=explained(resource, step.decided_on, step.decision))
    await store.commit(snapshot, step.state, _lines(metric, resource, step, now))
    if step.outcome is MergeOutcome.STALE:
        _tell_stale(metric, step.state.histories[metric.name].stale_count)
    if step.decision is None:
        return None
    _tell(step.decision)
    if not step.decision.applies or step.state.desired is None:
        return None
    return action_of(resource.name, step.state.desired)


def _lines(metric: Metric, resource: Resource, step: Step, now: datetime) -> list[LogEntry]:
    desired, lines = step.state.desired, []
    if step.confirmed and desired is not None:
        reason = f"capacity reads {desired.target}, as epoch {desired.epoch} asked for"
        lines = [entry(resource, desired, EntryKind.CONFIRMED, now, reason)]
    if step.decision is not None:
        lines.append(_entry(metric, step.decision, desired.epoch if desired else None))
    return lines


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
        counterfactual=decision.counterfactual,
        metric=metric.name,
        value=metric.value.value,
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
