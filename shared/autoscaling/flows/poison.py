"""Handles poison messages: logs each with its cause, and marks a pending action as failed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shared.autoscaling.acting.actions import ActionTiming, entry, fail
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.deciding.samples import merge
from shared.autoscaling.errors import BadMessage, StateUnreadable
from shared.autoscaling.flows.common import (
    declared_samples,
    find,
    log_action,
    store_time,
    until_won,
)
from shared.autoscaling.messages import (
    all_refused,
    decode_action,
    decode_samples,
    named_resource,
    split,
)
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import StateStore
from shared.autoscaling.state import ScaleAction

log = logging.getLogger(__name__)

STEP = timedelta(minutes=4)
"""The step of the times of log entries: the notifier looks back for five minutes."""
SAMPLES_QUEUE = "samples"
"""The queue of the samples of a QueueMetric, into which senders outside the app may write."""
UNATTRIBUTED = "!poison"
"""The name under which the log keeps poison messages that name no declared resource."""


@dataclass(frozen=True, slots=True)
class PoisonMessage:
    """A message of a poison queue, with its id and the time of its arrival there."""

    queue: str
    message_id: str
    body: str
    inserted_at: datetime


UNEXPLAINED = (
    "the message is valid, but processing it failed each time; "
    "see the errors in the log of the function"
)


async def run_metric(
    message: PoisonMessage, resources: Mapping[str, Resource], store: StateStore
) -> None:
    """Log a poison message with samples, and its cause; of one for many resources, each message."""
    try:
        texts = None if message.queue == SAMPLES_QUEUE else split(message.body)
    except BadMessage as error:
        await _record(message, str(error), resources, store)
        return
    if texts is None:
        await _run_one(message, resources, store)
    for place, body in enumerate(texts or ()):
        one = replace(message, message_id=f"{message.message_id}-{place}", body=body)
        await _run_one(one, resources, store)


async def _run_one(
    message: PoisonMessage, resources: Mapping[str, Resource], store: StateStore
) -> None:
    try:
        await _find_fault(message, resources, store)
        reason = UNEXPLAINED
    except (BadMessage, StateUnreadable) as error:
        reason = str(error)
    await _record(message, reason, resources, store)


async def run_action(
    message: PoisonMessage,
    resources: Mapping[str, Resource],
    store: StateStore,
    timing: ActionTiming,
) -> None:
    """Log a poison action. If it is pending, mark it as failed, so that the policy decides
    again."""
    try:
        action = decode_action(message.body)
        resource = find(resources, action.resource_name)
        await store.load(resource.name)
    except (BadMessage, StateUnreadable) as error:
        await _record(message, str(error), resources, store)
        return
    await _record(message, UNEXPLAINED, resources, store)
    await until_won(resource.name, lambda: _free(action, resource, store, timing))


async def _find_fault(
    message: PoisonMessage, resources: Mapping[str, Resource], store: StateStore
) -> None:
    """Check the samples as scaling_logic does. Raises BadMessage, whose text names all errors."""
    samples = decode_samples(message.body)
    resource = find(resources, samples.resource_name)
    snapshot = await store.load(resource.name)
    metrics, refused = declared_samples(samples, resource, sent=message.queue == SAMPLES_QUEUE)
    found = merge(resource, snapshot.state, metrics, message.inserted_at)
    refused += [error for _, error in found.refused]
    if refused:
        raise all_refused(refused)


async def _free(
    action: ScaleAction, resource: Resource, store: StateStore, timing: ActionTiming
) -> None:
    snapshot = await store.load(resource.name)
    desired = snapshot.state.desired
    if desired is None or not desired.pending:
        return
    if (action.epoch, action.target) != (desired.epoch, desired.target):
        return  # another action, or one that the app never decided
    reason = "the message of the action was moved to the poison queue"
    failed = fail(desired, snapshot.read_at, reason, timing, may_follow=True)
    written = entry(resource, failed, EntryKind.FAILED, snapshot.read_at, reason)
    await store.commit(snapshot, snapshot.state.with_desired(failed), [written])


def _line_time(inserted_at: datetime, now: datetime) -> datetime:
    """The time of arrival plus the number of whole steps since then: recent enough for the notifier
    after the app was stopped, and the same for two writes within one step, which leave one entry.
    """
    return inserted_at + max((now - inserted_at) // STEP, 0) * STEP


async def _record(
    message: PoisonMessage, reason: str, resources: Mapping[str, Resource], store: StateStore
) -> None:
    named = named_resource(message.body)
    resource_name = named if named is not None and named in resources else UNATTRIBUTED
    now = await store_time(resource_name, store)
    await store.record(
        LogEntry(
            resource_name=resource_name,
            time=_line_time(message.inserted_at, now),
            kind=EntryKind.POISON,
            entry_id=f"poison-{message.message_id}",
            reason=f"message on {message.queue} could not be processed: {reason}",
            body=message.body,
        )
    )
    text = f"message {message.message_id} on {message.queue} could not be processed: {reason}"
    log_action(log, "poison", resource_name, text, logging.ERROR)
