"""override: a person overrides the policy, in one transaction with the log line about it."""

from __future__ import annotations

import logging

from shared.autoscaling.deciding.decide import LogEntry
from shared.autoscaling.flows.common import log_action, until_won
from shared.autoscaling.operating.overrides import Change, check, line, starting
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import StateStore

log = logging.getLogger(__name__)


async def run(resource: Resource, change: Change, store: StateStore) -> LogEntry:
    """The line written. Raises OverrideRefused, or StateConflict after too many lost races."""
    check(change, resource)
    entry = await until_won(resource.name, lambda: _attempt(resource, change, store))
    log_action(log, "override", resource.name, entry.reason, logging.WARNING)
    return entry


async def _attempt(resource: Resource, change: Change, store: StateStore) -> LogEntry:
    snapshot = await store.load(resource.name)
    entry = line(resource, change, snapshot.read_at)
    await store.put_override(snapshot, starting(change, snapshot.read_at), entry)
    return entry
