"""Poison queues: write down what failed and why, whole, and free the resource that waits for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from shared.autoscaling.actions import ActionTiming, entry, fail
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.deciding.samples import merge
from shared.autoscaling.errors import BadMessage, StateUnreadable
from shared.autoscaling.flows.common import (
    check_metric_name,
    find,
    log_action,
    store_time,
    until_won,
)
from shared.autoscaling.messages import all_refused, decode_action, decode_samples, named_resource
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import StateStore
from shared.autoscaling.state import ScaleAction

log = logging.getLogger(__name__)

STEP = timedelta(minutes=4)
"""Lines are looked for by their time: who tells the news looks back by five minutes."""
UNATTRIBUTED = "!poison"
"""Where the log keeps messages that no declared resource can be named for."""


@dataclass(frozen=True, slots=True)
class PoisonMessage:
    """A message as the poison queue gave it back, with its id and the time of its arrival there."""

    queue: str
    message_id: str
    body: str
    inserted_at: datetime


UNEXPLAINED = (
    "the message is in order, but processing it failed each time; "
    "see the errors of the function in its log"
)


async def run_metric(
    message: PoisonMessage, resources: Mapping[str, Resource], store: StateStore
) -> None:
    """Write down what is wrong with a metric."""
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
    """Besides writing it down, fail the pending action, so that the policy may decide again."""
    try:
        action = decode_action(message.body)
        resource = find(resources, action.resource_name)
    except BadMessage as error:
        await _record(message, str(error), resources, store)
        return
    try:
        await store.load(resource.name)
    except StateUnreadable as error:  # nobody can say what order waits; the reconciler says so too
        await _record(message, str(error), resources, store)
        return
    await _record(message, UNEXPLAINED, resources, store)
    await until_won(resource.name, lambda: _free(action, resource, store, timing))


async def _find_fault(
    message: PoisonMessage, resources: Mapping[str, Resource], store: StateStore
) -> None:
    """Go the way of scaling_logic; raises BadMessage with what is wrong with the samples."""
    samples = decode_samples(message.body)
    resource = find(resources, samples.resource_name)
    snapshot = await store.load(resource.name)
    refused = list(samples.refused)
    for metric in samples.metrics:
        try:
            check_metric_name(resource, metric.name)
            merge(snapshot.state, metric, message.inserted_at, resource.window_seconds)
        except BadMessage as error:
            refused.append(error)
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
        return  # another order, or one that nobody decided
    reason = "the action ended in the poison queue"
    failed = fail(desired, snapshot.read_at, reason, timing)
    line = entry(resource, failed, EntryKind.FAILED, snapshot.read_at, reason)
    await store.commit(snapshot, snapshot.state.with_desired(failed), [line])


def _line_time(inserted_at: datetime, now: datetime) -> datetime:
    """The time of arrival, or so many steps after it that it is less than a step ago.

    A message may have waited while the app stood still: nobody would look for its line that far
    back. Who writes it twice within a step writes it once.
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
