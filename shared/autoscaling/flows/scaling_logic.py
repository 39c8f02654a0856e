"""scaling_logic: merges samples, decides, and commits the samples and the decision together.

If the state then awaits a reading of the plan, the resource is to be reconciled at once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import count

from shared.autoscaling.acting.actions import action_of, awaits_reading, entry
from shared.autoscaling.acting.activation import standing
from shared.autoscaling.deciding import clocks
from shared.autoscaling.deciding.decide import Decision, EntryKind, LogEntry, within_plan
from shared.autoscaling.deciding.samples import samples_of
from shared.autoscaling.declaring import Limits
from shared.autoscaling.errors import BadMessage
from shared.autoscaling.flows.common import (
    T,
    declared_samples,
    find,
    log_action,
    log_standing,
    until_won,
    work_through,
)
from shared.autoscaling.flows.policy_threads import POLICY_THREADS, PolicyThreads
from shared.autoscaling.learning.throughput import contradiction
from shared.autoscaling.messages import Samples, all_refused, decode_samples, split, summary
from shared.autoscaling.plan_facts import PlanFacts, of_fields
from shared.autoscaling.policy import Resource, held_at_maximum
from shared.autoscaling.ports import Snapshot, StateStore
from shared.autoscaling.state import ScaleAction, ScalingState
from shared.autoscaling.transition import Transition
from shared.values.measurements import CAPACITY_METRIC, Metric, span

log = logging.getLogger(__name__)

CONFIRMED_AFTER_SECONDS = 5
"""A pending action is looked for this long after it was sent: the scaler needs some time."""
BUDGET_SECONDS = 60
"""The time budget of a message for many resources. What it does not cover is sent again alone."""


async def process_message(
    body: str,
    process: Callable[[Samples], Awaitable[T | None]],
    budget_seconds: float = BUDGET_SECONDS,
) -> tuple[list[T], list[str]]:
    """Process the samples of a message, and return the actions to send. If the message is for many
    resources, the messages of those that fail are the second result, to be sent again, each alone.
    """
    texts = split(body)
    if texts is None:
        action = await process(decode_samples(body))
        return [action] if action else [], []

    async def work(text: str) -> T | None:
        return await process(decode_samples(text))

    actions, left, why = await work_through(texts, work, budget_seconds)
    if left:
        text = f"some messages failed and are sent again, each alone: {why}"
        log_action(log, "sent_alone", "all", text, logging.WARNING)
    return [action for action in actions if action is not None], left


async def process_samples(
    samples: Samples,
    resources: Mapping[str, Resource],
    store: StateStore,
    version: str | None = None,
    threads: PolicyThreads = POLICY_THREADS,
    *,
    sent: bool = False,
    due: list[Resource] | None = None,
) -> ScaleAction | None:
    """Process all samples of a message with one decision and one commit, and return the action to
    send, if any. While another ``version`` of the rules is in force, the samples are only stored.
    ``sent`` says that they come from a sender outside the app. The resource is added to ``due`` if
    it has to be reconciled now.

    Invalid samples are logged and do not affect the others. If the policy does not answer in time,
    the capacity is held. Raises BadMessage if no sample is valid, and StateConflict after too many
    conflicts.
    """
    resource = find(resources, samples.resource_name)
    metrics, refused = declared_samples(samples, resource, sent=sent)
    if not metrics:
        raise all_refused(refused)
    attempts, plan = count(), None if sent else _plan(samples, refused)
    action, is_due = await until_won(
        resource.name,
        lambda: _attempt(metrics, refused, resource, store, version, threads, next(attempts), plan),
    )
    if is_due and due is not None:
        due.append(resource)
    return action


def _is_reading_due(state: ScalingState, accepted: Sequence[Metric], now: datetime) -> bool:
    """True if the plan has to be read now: an action was sent a while ago, or these samples have a
    reading that is not what the state expects, or that an action which was given up may explain."""
    desired = state.desired
    if desired is None or not awaits_reading(state):
        return False
    if not desired.pending:
        return any(metric.name == CAPACITY_METRIC for metric in accepted)
    return now >= (desired.sent_at or desired.requested_at) + span(CONFIRMED_AFTER_SECONDS)


def _plan(samples: Samples, refused: list[BadMessage]) -> PlanFacts | None:
    """The facts about the plan; None if there are none, or if they were added to ``refused``."""
    try:
        return None if samples.plan is None else of_fields(samples.plan)
    except ValueError as error:
        refused.append(BadMessage(f"plan: {error}"))
        return None


def _newest(
    plan: PlanFacts | None, metrics: Sequence[Metric], state: ScalingState
) -> PlanFacts | None:
    """The facts, if no reading of the plan is known that is newer, as after a late message."""
    read = [each.value.time for each in metrics if each.name == CAPACITY_METRIC]
    known = [each.time for each in samples_of(state, CAPACITY_METRIC)[-1:]]
    return plan if read and max(read) >= max(known, default=max(read)) else None


async def _attempt(
    metrics: Sequence[Metric],
    unknown: Sequence[BadMessage],
    resource: Resource,
    store: StateStore,
    version: str | None,
    threads: PolicyThreads,
    attempt: int,
    plan: PlanFacts | None,
) -> tuple[ScaleAction | None, bool]:
    """The action to send, if any, and whether the plan has to be read now."""
    snapshot = await store.load(resource.name)
    now = snapshot.read_at
    state = clocks.noted(snapshot.state, metrics, now)
    metrics = [clocks.dated(state, metric, now) for metric in metrics]
    state = state.with_plan(_newest(plan, metrics, state))
    stands = standing(resource, state, version, now)
    step = await threads.advance(resource, state, metrics, now, decides=stands.decides)
    refused = [*unknown, *[error for _, error in step.merged.refused]]
    if not step.merged.accepted:
        if state.histories.get(clocks.NOTES) != snapshot.state.histories.get(clocks.NOTES):
            await store.commit(snapshot, state)
        return _nothing_accepted(step, refused, resource, snapshot), False
    decision, decided_on = step.decision, step.decided_on
    if decision is not None and decided_on is not None and decision.is_change:
        step = replace(step, decision=await threads.explain(resource, decided_on, decision))
    entries = _entries(resource, step, now, snapshot.decided)
    if refused:
        entries.append(_refusal(resource, metrics[0], refused, now))
    if attempt:  # after a clock was set back, the log may already have an entry of this time and ID
        entries = [replace(each, entry_id=f"{each.entry_id}-{attempt}") for each in entries]
    await store.commit(snapshot, step.state.with_rules(stands.rules), entries)
    log_standing(log, snapshot, stands)
    _log_left_out(resource, step.merged.stale, refused)
    is_due = _is_reading_due(step.state, step.merged.accepted, now)
    if step.decision is None:
        return None, is_due
    known, text = (contradiction(resource.throughput, s.learned, now) for s in (state, step.state))
    limits = within_plan(resource, step.state).limits
    _log(step.decision, entries, limits, "" if known else text)
    if not step.decision.applies or step.state.desired is None:
        return None, is_due
    return action_of(resource.name, step.state.desired), False


def _nothing_accepted(
    step: Transition, refused: Sequence[BadMessage], resource: Resource, snapshot: Snapshot
) -> ScaleAction | None:
    """Handle a message without any new sample. Raises BadMessage if all samples are invalid."""
    if not step.merged.duplicates and not step.merged.stale:
        raise all_refused(refused)
    _log_left_out(resource, step.merged.stale, refused)
    return _pending_action(resource, snapshot) if step.merged.duplicates else None


def _entries(
    resource: Resource, step: Transition, now: datetime, before: LogEntry | None
) -> list[LogEntry]:
    confirmed, entries = (step.decided_on or step.state).desired, []
    if step.confirmed and confirmed is not None:
        reason = f"the capacity reads {confirmed.target}, as requested by epoch {confirmed.epoch}"
        entries = [entry(resource, confirmed, EntryKind.CONFIRMED, now, reason)]
    if step.decision is not None and step.decided_by is not None:
        entries.append(_entry(step, step.decision, step.decided_by).after(before))
    return entries


def _refusal(
    resource: Resource, first: Metric, refused: Sequence[BadMessage], now: datetime
) -> LogEntry:
    """The log entry about the invalid samples of a message that also has valid samples."""
    return LogEntry(
        resource_name=resource.name,
        time=now,
        kind=EntryKind.POISON,
        entry_id=f"refused-{_sample_id(first)}",
        reason=f"{len(refused)} sample(s) of a message could not be processed: {summary(refused)}",
    )


def _pending_action(resource: Resource, snapshot: Snapshot) -> ScaleAction | None:
    """The pending action, to be sent once more for a redelivered message: the first delivery may
    have been interrupted before sending it."""
    desired = snapshot.state.desired
    if desired is None or not desired.pending or desired.retry_at is not None:
        return None
    return action_of(resource.name, desired)


def _entry(step: Transition, decision: Decision, metric: Metric) -> LogEntry:
    """The log entry of a decision. If it holds while an action is pending, the desired capacity is
    still the target of that action."""
    desired = step.state.desired
    pending = desired is not None and desired.pending and decision.desired == decision.current
    names = dict.fromkeys(each.name for each in step.merged.accepted)
    return LogEntry(
        resource_name=decision.resource_name,
        time=decision.time,
        kind=EntryKind.DECISION,
        entry_id=_sample_id(metric),
        reason=decision.reason,
        current=decision.current,
        desired=desired.target if desired and pending else decision.desired,
        epoch=desired.epoch if desired else None,
        applies=decision.applies,
        limited_by=decision.limited_by,
        candidates=decision.candidates,
        evidence=decision.evidence,
        counterfactual=decision.counterfactual,
        metric=metric.name,
        value=metric.value.value,
        samples={n: tuple(m.value for m in step.merged.accepted if m.name == n) for n in names},
    )


def _log(decision: Decision, written: Sequence[LogEntry], limits: Limits, refuted: str) -> None:
    text = f"{decision.current} → {decision.desired}: {decision.reason}"
    fields = next((each.fields for each in written if each.kind is EntryKind.DECISION), {})
    log_action(log, "decided", decision.resource_name, text, **fields)
    if held_at_maximum(decision.current, decision.candidates, limits):
        text = f"the maximum is {limits.maximum}, and the rules recommend no less"
        log_action(log, "held_at_maximum", decision.resource_name, text)
    if refuted:
        log_action(log, "rate_refuted", decision.resource_name, refuted, logging.WARNING)


def _sample_id(metric: Metric) -> str:
    return f"{metric.name}-{int(metric.value.time.timestamp() * 1_000_000)}"


def _log_left_out(
    resource: Resource, stale: Sequence[Metric], refused: Sequence[BadMessage]
) -> None:
    if stale:
        newest = max([metric.value.time for metric in stale])
        names = ", ".join(sorted({metric.name for metric in stale}))
        text = (
            f"{len(stale)} sample(s) of {names} are older than the window and are dropped; the "
            f"newest is of {newest.isoformat()}"
        )
        log_action(log, "stale_sample_dropped", resource.name, text, logging.WARNING)
    if refused:
        text = f"{len(refused)} invalid sample(s) were left out: {summary(refused)}"
        log_action(log, "samples_refused", resource.name, text, logging.WARNING)
